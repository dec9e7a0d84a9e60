"""One peer's part in the life of micro-batches: lead them, pass them on, bring gradients back.

A head starts micro-batches that it leased; a callee takes those that a peer of the stage before
brings (callee.py). Each makes one passage (passage_table.py) through this peer: its jobs run in the
order of lane.py, hop.py carries it to the next stage and back, and it ends exactly once.

For the composite
  handle(event, now_s)               all that the driver tells; what is not ours gives []
  start(micro_batch, now_s)          at a head, at most `capacity(now_s)` at a time
  set_next_stage(candidates, now_s)  the replicas of the next stage; set_link: what links measure
  set_round_gate(round)              later rounds are answered BUSY
  finish_round(round, now_s), hold(on, now_s), drain(on, now_s), abandon(reason, now_s)
  statistics(now_s), waiting(now_s), is_empty, round

Emitted
  pipeline/done            micro_batch, loss_sum, samples, tokens, redone: the head's, each once ...
  pipeline/expired         micro_batch, reason, text: ... or this; the lease goes back, unless the
                           reason is late: peers that are two rounds further will not take it
  pipeline/first_of_round  round
  pipeline/stepped         step, is_taken, data
  pipeline/saw             micro_batch, peer, stage, role, is_good: what receipts are made of
  pipeline/rejected        peer, code, micro_batch: somebody broke a rule
  micro_batch_redone       micro_batch, peer, code: sent again because that peer failed

How a round ends. When the first micro-batch of a later round reaches this peer, it holds itself: no
forward begins and no step is taken, backwards go on and count into the next round's first step. It
emits pipeline/first_of_round. Whoever owns the round answers with finish_round(the round before),
which gives the last Step if anything is pending, then does what it has to (snapshot, Mix2, outer
update: its jobs follow that Step in the lane), then hold(False). Where nothing is mixed, it says so
at once. If it learns by other means that the round has ended, it calls finish_round by itself; that
holds too, and nothing is emitted later. While held, forwards queue up to `forward_queue_max`, and
beyond that callers are told BUSY.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmd.protocols import effects as fx
from swarmd.protocols.callee import Callee
from swarmd.protocols.caller import Caller
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.job_results import JobResults
from swarmd.protocols.messages import pipeline as wire
from swarmd.protocols.passage import Phase
from swarmd.protocols.passage_table import PassageTable
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape
from swarmd.protocols.pipeline_statistics import (
    FaultLog,
    PipelineStatistics,
    WaitBook,
    Waiting,
)
from swarmd.protocols.routing import Candidate, Router

WAKE = "pipeline/wake"
"""The only timer: whatever is due next."""
TIMER_S_MIN = 0.001
"""A timer that rounds to no time at all would fire for ever at the same instant."""
NO_STAGE_TEXT = {
    "no_peer": "stage {stage} has no peer",
    "not_linked": "stage {stage} has no peer that we are linked to",
    "banned": "no peer of stage {stage} could be reached; trying again",
}


class Pipeline:
    """`next_job_id` gives numbers that no other machine of this peer uses."""

    def __init__(
        self,
        shape: PipelineShape,
        *,
        router: Router,
        bounds: PipelineLimits,
        next_job_id: Callable[[], int],
        round_number: int = 0,
        faults: FaultLog | None = None,
    ) -> None:
        """faults: of this stage's former pipelines, to be gone on with."""
        self.shape = shape
        self.bounds = bounds
        self._table = PassageTable(
            shape, bounds, router, next_job_id, round_number, faults or FaultLog()
        )
        self._callee = Callee(self._table, round_number)
        self._caller = Caller(self._table)
        self._results = JobResults(self._table)
        self._waits = WaitBook()
        self._armed_s: float | None = None

    # ------------------------------------------------------------------------------ the composite

    def start(
        self, micro_batch: MicroBatchId, now_s: float, deadline_s: float | None = None
    ) -> list[fx.Effect]:
        """Lead a micro-batch. `deadline_s` counts from now; None: as the bounds say.

        Raises LocalProtocolError: wrong_stage, wrong_round, draining, duplicate.
        """
        if not self.shape.is_first:
            raise LocalProtocolError("wrong_stage", "only the first stage leads micro-batches")
        if not self.shape.is_in_run(micro_batch) or micro_batch.round > self._callee.round_gate:
            raise LocalProtocolError("wrong_round", f"{micro_batch} is not open")
        if self._callee.is_draining:
            raise LocalProtocolError("draining", f"{micro_batch} must not begin")
        if self.leads(micro_batch):
            raise LocalProtocolError("duplicate", f"{micro_batch} is under way")
        if self._table.is_too_late(micro_batch):
            fields = {"micro_batch": micro_batch, "reason": "late", "text": "its round is over"}
            return [*self._settle(now_s), fx.Emit("pipeline/expired", fields)]
        run = self.shape.run
        held_out = micro_batch.held_out
        self._table.counters.started += not held_out
        self._table.begin(
            micro_batch,
            caller=None,
            attempt=0,
            first_attempt=0,
            samples=run.micro_batch_samples if held_out else run.samples_of(micro_batch),
            deadline_s=now_s + (self.bounds.micro_batch_s if deadline_s is None else deadline_s),
            payload=None,
        )
        return self._settle(now_s)

    def leads(self, micro_batch: MicroBatchId) -> bool:
        """It was started here and has not ended."""
        return self._table.get(None, micro_batch) is not None

    def capacity(self, now_s: float) -> int:
        """How many more micro-batches a head may start now."""
        lane = self._table.lane
        if not self.shape.is_first or self._callee.is_draining or not lane.is_ready:
            return 0
        if not self.shape.is_last and not self._table.hop.router.usable(now_s)[0]:
            return 0
        free = self.bounds.in_flight_max - len(self._table)
        room = self.bounds.forward_queue_max - lane.forward_queue_length
        return max(0, min(free, room))

    def set_next_stage(self, candidates: tuple[Candidate, ...], now_s: float) -> list[fx.Effect]:
        """The replicas of the next stage, as the roster tells. Only those with LinkUp are asked."""
        self._table.hop.set_candidates(candidates, now_s)
        self._table.hop.place_waiting(self._table.all(), now_s)
        return self._settle(now_s)

    def set_linked(self, peers: frozenset[PeerId], now_s: float) -> list[fx.Effect]:
        """These can be asked: as LinkUp for each, in one go."""
        if not any([self._table.hop.link_up(peer) for peer in sorted(peers)]):
            return []
        self._table.hop.place_waiting(self._table.all(), now_s)
        return self._settle(now_s)

    def set_link(self, peer: PeerId, rtt_s: float, bytes_per_s: float) -> None:
        """What the link to `peer` measures; 0: not known. Forgotten when the link ends."""
        self._table.hop.router.set_link(peer, rtt_s, bytes_per_s)

    def set_round_gate(self, round_number: int) -> None:
        """Micro-batches of this round and of those before are taken. Never goes back."""
        self._callee.round_gate = max(self._callee.round_gate, round_number)

    def finish_round(self, round_number: int, now_s: float) -> list[fx.Effect]:
        """That round's inner phase ends: its last step, then hold. Nothing if it has ended."""
        table = self._table
        if round_number >= table.round:
            table.lane.end_round(round_number)
            table.lane.is_held = True
            table.round = round_number + 1
        return self._settle(now_s)

    def hold(self, on: bool, now_s: float) -> list[fx.Effect]:
        """While held, no forward begins and no step is taken.

        Raises LocalProtocolError if a round was announced and the one before is not finished.
        """
        if not on and self._table.announced_round > self._table.round:
            raise LocalProtocolError("wrong_round", "the round before is not finished")
        self._table.lane.is_held = on
        return self._settle(now_s)

    def drain(self, on: bool, now_s: float) -> list[fx.Effect]:
        """Take nothing new, finish what is held. For leaving and for pausing."""
        self._callee.is_draining = on
        return self._settle(now_s)

    def abandon(self, reason: str, now_s: float) -> list[fx.Effect]:
        """Give up everything under way: callers are refused, what we lead has expired."""
        for passage in self._table.all():
            self._table.fail(passage, reason)
        return self._settle(now_s)

    @property
    def is_computing(self) -> bool:
        return self._table.lane.is_busy

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not len(self._table)

    @property
    def round(self) -> int:
        """Whose inner phase is on, or comes next while held."""
        return self._table.round

    # ------------------------------------------------------------------------------------- events

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Never raises for what a peer sent: rule breakers are refused, and counted."""
        hop = self._table.hop
        match event:
            case fx.Arrived():
                self._arrived(event, now_s)
            case fx.SendFailed():
                self._not_sent(event, now_s)
            case fx.ComputeDone(job_id, result):
                self._results.done(job_id, result, now_s)
            case fx.ComputeFailed(job_id, failure):
                self._results.failed(job_id, failure, now_s)
            case fx.ComputeLost(text, code):
                self._results.lost(code, text, now_s)
            case fx.ComputeReady():
                self._table.lane.is_ready = True
            case fx.LinkUp(peer):
                hop.link_up(peer)
                hop.place_waiting(self._table.all(), now_s)
            case fx.LinkDown(peer, cause):
                self._callee.caller_lost(peer)
                hop.link_down(peer, cause, now_s)
            case fx.DialFailed(peer):
                hop.router.unreachable(peer, now_s)
            case fx.LoopLag():
                hop.was_deaf(now_s)
            case fx.TimerFired(name) if name == WAKE:
                self._wake(now_s)
            case _:
                return []
        return self._settle(now_s)

    def _arrived(self, event: fx.Arrived, now_s: float) -> None:
        match event.message:
            case wire.Forward() as message:
                self._callee.forward(event, message, self._results.work_s, now_s)
            case wire.Cancel() as message:
                self._callee.cancel(event.peer, message)
            case wire.Gradient() | wire.Busy() | wire.Refused() as message:
                self._caller.answered(event, message, now_s)

    def _not_sent(self, event: fx.SendFailed, now_s: float) -> None:
        match event.message:
            case wire.Forward(ref=ref):
                found = self._table.hop.find(event.peer, ref)
                if found is not None:
                    self._table.hop.not_sent(*found, now_s)
            case wire.Gradient() | wire.Busy() | wire.Refused():
                self._table.counters.answers_lost += 1

    def _wake(self, now_s: float) -> None:
        self._armed_s = None
        for passage in self._table.all():
            if passage.deadline_s <= now_s:
                self._table.fail(passage, "expired")
            else:
                self._table.hop.wake(passage, now_s)

    def _settle(self, now_s: float) -> list[fx.Effect]:
        """After whatever happened: fill the lane, set the timer, book the time."""
        self._table.lane.fill()
        self._set_timer(now_s)
        self._waits.change(self._occupation(now_s), now_s)
        if self._table.is_round_news:
            # Last: what the composite does about it must follow the jobs that are given before.
            self._table.is_round_news = False
            fields = {"round": self._table.announced_round}
            self._table.effects.append(fx.Emit("pipeline/first_of_round", fields))
        effects = self._table.effects[:]
        self._table.effects.clear()
        return effects

    def _set_timer(self, now_s: float) -> None:
        due_s = min(
            (min(p.deadline_s, self._table.hop.due_s(p)) for p in self._table.all()), default=None
        )
        if due_s == self._armed_s:
            return
        self._armed_s = due_s
        if due_s is None:
            self._table.effects.append(fx.ClearTimer(WAKE))
        else:
            self._table.effects.append(fx.SetTimer(WAKE, max(TIMER_S_MIN, due_s - now_s)))

    # -------------------------------------------------------------------------------------- views

    def _occupation(self, now_s: float) -> str:
        """What the present second is booked on."""
        lane = self._table.lane
        if lane.is_busy:
            return "computing"
        if not lane.is_ready:
            return "no_worker"
        return "mixing" if lane.is_held else self._why_idle(now_s).code

    def waiting(self, now_s: float) -> Waiting | None:
        """Why the worker has nothing to do; None while it has, or while that is not for us to say
        (no worker, or the weights are being mixed)."""
        lane = self._table.lane
        if lane.is_busy or lane.is_held or not lane.is_ready:
            return None
        return self._why_idle(now_s)

    def _why_idle(self, now_s: float) -> Waiting:
        """Nearest to the cause first: nobody to send to, then nothing back, then nothing in."""
        next_stage = self.shape.stage + 1
        if not self.shape.is_last:
            is_usable, obstacle = self._table.hop.router.usable(now_s)
            if not is_usable:
                text = NO_STAGE_TEXT[obstacle].format(stage=next_stage)
                return self._waiting("waiting_for_stage", next_stage, None, text, now_s)
        asked = [
            attempt
            for passage in self._table.all()
            if passage.outbound is not None
            for attempt in passage.outbound.attempts.values()
        ]
        if asked:
            first = min(asked, key=lambda attempt: attempt.sent_s)
            text = f"nothing back from stage {next_stage}"
            reason = self._waiting("waiting_for_gradient", next_stage, first.peer, text, now_s)
            reason.subject["until_s"] = first.due_s
            return reason
        if any(passage.phase is Phase.ROUTING for passage in self._table.all()):
            text = f"stage {next_stage} is busy"
            return self._waiting("waiting_for_gradient", next_stage, None, text, now_s)
        if self.shape.is_first:
            text = "no micro-batch is leased"
            return self._waiting("waiting_for_micro_batch", 0, None, text, now_s)
        stage = self.shape.stage - 1
        text = f"nothing from stage {stage}"
        return self._waiting("waiting_for_micro_batch", stage, None, text, now_s)

    def _waiting(
        self, code: str, stage: int, peer: PeerId | None, text: str, now_s: float
    ) -> Waiting:
        since_s = self._waits.since_s if self._waits.code == code else now_s
        subject = {"stage": stage, "peer": peer, "since_s": since_s, "until_s": None}
        return Waiting(code, subject, text)

    def statistics(self, now_s: float) -> PipelineStatistics:
        """Everything there is to tell, frozen."""
        table = self._table
        phases = [passage.phase for passage in table.all()]
        return PipelineStatistics(
            in_flight={phase.value: phases.count(phase) for phase in Phase if phase in phases},
            slots_held=sum(len(passage.slots) for passage in table.all()),
            round=table.round,
            last_step=table.lane.clock.last_step,
            pending=table.lane.clock.pending,
            counters=table.counters.copy(),
            wait_s=self._waits.seconds(now_s),
            peers=table.hop.router.statistics(now_s),
            loss_first=table.loss.first,
            loss_last=table.loss.last,
            loss_ema=table.loss.ema,
            faults=table.faults.count,
            fault_last=table.faults.last,
            recovery_s_last=table.faults.recovery_s_last,
            recovery_s_max=table.faults.recovery_s_max,
        )
