"""The stage that this peer holds, and all that is done with it.

    states     which stage, and its state: from where, to whom   pipeline   micro-batches passing
    rounds     what happens between two rounds                   leases     what a head may start

They do not know each other; this file tells each what it needs of the others. What they emit with
a name that begins with `pipeline/`, `state/`, `rounds/` or `mixing/` stays in here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.coverage import Coverage, SwarmView
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.limits import ROUNDS_OPEN_MAX
from swarmd.protocols.loss_book import LossBook
from swarmd.protocols.messages import is_of, mixing, state
from swarmd.protocols.messages import pipeline as pipeline_messages
from swarmd.protocols.pace import Pace
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.pipeline import Pipeline
from swarmd.protocols.pipeline_shape import PipelineShape
from swarmd.protocols.reasons import Reason, worker_lost
from swarmd.protocols.round_work import RoundWork
from swarmd.protocols.routing import Candidate, Router
from swarmd.protocols.set_aside import SetAside
from swarmd.protocols.stage_past import StagePast
from swarmd.protocols.stage_states import StageStates, release

INNER = ("pipeline/", "state/", "rounds/", "mixing/")


class StageWork:
    """For the composite. `take_fields` gives what the own record should say from now on."""

    def __init__(
        self, setup: PeerSetup, own: PeerId, leases: LeaseBook, rng: random.Random
    ) -> None:
        self.setup = setup
        self.shape = setup.shape
        self.leases = leases
        self.states = StageStates(setup, own, leases, self._next_number)
        self.seat, self.donor = self.states.seat, self.states.donor
        self.checkpoints = self.states.checkpoints
        self.pipeline: Pipeline | None = None
        self.rounds: RoundWork | None = None
        self._own = own
        self.losses = LossBook(setup.shape.total_steps)
        self.rejected: Counter[tuple[PeerId, str]] = Counter()
        self.worker_info: dict[str, Any] = {}
        self.worker_losses = 0
        self.resources: Reason | None = None
        self.round = 0
        """Whose inner phase is on here."""
        self.first_done_s: float | None = None
        self.pace = Pace()
        """Of inner steps."""
        self._rng = rng
        self._number = 0
        self._is_draining = False
        self._fields: dict[str, Any] = {}
        self._set_aside = SetAside(self._next_number)
        self.past = StagePast()

    @property
    def stage(self) -> int | None:
        return self.seat.stage

    @property
    def is_computing(self) -> bool:
        """The worker has something to do."""
        return self.pipeline is not None and self.pipeline.is_computing

    @property
    def is_held(self) -> bool:
        return self.seat.phase == "held" and self.pipeline is not None

    def take_fields(self) -> dict[str, Any]:
        fields = self._fields | self.states.take_fields()
        self._fields = {}
        return fields

    # ------------------------------------------------------------------------------------- events

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Jobs, files, timers, links and the worker's life."""
        effects: list[fx.Effect] = []
        match event:
            case fx.ComputeReady(info):
                return self._worker_ready(event, info, now_s)
            case fx.ComputeLost(text, code):
                return self._worker_lost(event, text, code, now_s)
        if self._set_aside.owns(event):
            return self._put_away(event, now_s)
        effects += self.states.handle(event, now_s)
        if self.rounds is not None:
            effects += self.rounds.handle(event, now_s)
        if self.pipeline is not None:
            effects += self.pipeline.handle(event, now_s)
        return self._wire(effects, now_s)

    def arrived(self, event: fx.Arrived, now_s: float) -> list[fx.Effect]:
        """A message of messages/pipeline.py, mixing.py or state.py. Its payload is ours now."""
        if is_of(event.message, state):
            return self._wire(self.states.arrived(event, now_s), now_s)
        if is_of(event.message, mixing):
            if self.rounds is None:
                return release(event)
            return self._wire(self.rounds.handle(event, now_s), now_s)
        if self.pipeline is not None:
            return self._wire(self.pipeline.handle(event, now_s), now_s)
        if isinstance(event.message, pipeline_messages.Forward):
            refusal = pipeline_messages.Refused(ref=event.message.ref, code="wrong_stage")
            return [fx.Send(event.peer, refusal), *release(event)]
        return release(event)

    # ------------------------------------------------------------------------------------- worker

    def _worker_ready(self, event: fx.Event, info: dict[str, Any], now_s: float) -> list[fx.Effect]:
        if not self.seat.is_expected(info.get("state")):
            return []  # restarted with what it was first loaded with; the right state is on its way
        self.worker_info, self.resources = info, None
        self.seat.loaded(now_s)
        assert self.stage is not None, "a worker without a stage"
        self.round = max(self.round, self.seat.round, self.leases.ledger.settled)
        self.pipeline = Pipeline(
            PipelineShape(self.shape, self.stage),
            router=Router(self._rng),
            bounds=self.setup.pipeline_limits,
            next_job_id=self._next_number,
            round_number=min(self.round, self.shape.rounds - 1),
            faults=self.past.faults,
        )
        self.donor.stage, self.donor.round = self.stage, self.round
        self._fields["round"] = self.round
        effects = [*self._resumed(self.stage), *self.pipeline.handle(event, now_s)]
        return self._wire([*effects, *self._begin_rounds(self.stage, now_s)], now_s)

    def _begin_rounds(self, stage: int, now_s: float) -> list[fx.Effect]:
        """Outer rounds go on from the state that the worker has just loaded."""
        if self.rounds is None or self.rounds.stage != stage:
            setup = self.setup
            self.rounds = RoundWork(
                self._own, stage, self.shape, setup.outer, setup.round_limits, self._next_number
            )
        joins = self.seat.fetch is not None and not self.seat.is_from_disk
        self._fields["mixes_from"] = self.round + 1 if joins else 0
        return self.rounds.begin(self.round, now_s, joins=joins)

    def _resumed(self, stage: int) -> list[fx.Effect]:
        """Tell with what a peer goes on that had state on disk."""
        if not self.seat.is_from_disk:
            return []
        lost = self.round - self.seat.round
        inner_steps = self.shape.inner_steps
        self.past.went_on(self.round * inner_steps, self.seat.round * inner_steps)
        fields = {"stage": stage, "round": self.round, "saved_round": self.seat.round}
        return [fx.Emit("state_restored", {**fields, "rounds_lost": lost})]

    def _worker_lost(self, event: fx.Event, text: str, code: str, now_s: float) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        if self.pipeline is not None:
            self.past.worker_died(self.step_of(self.pipeline.statistics(now_s).last_step))
            effects = self.pipeline.handle(event, now_s)
        if self.rounds is not None:
            effects += self.rounds.handle(event, now_s)
        effects = self._wire(effects, now_s)  # what it held expires, and its leases go back
        self._drop_pipeline(now_s)
        self.checkpoints.forget()
        self._set_aside.cancel()
        self.donor.forget()
        effects += self._wire(self.seat.lost(code, now_s), now_s)
        if self.seat.phase == "fetching":
            return effects  # the state was of no use; the worker itself is well
        self.worker_losses += 1
        self.resources = worker_lost(code, text, self.stage)
        return [*effects, fx.Emit("worker_died", {"code": code, "text": text})]

    def _drop_pipeline(self, now_s: float) -> None:
        if self.pipeline is not None:
            self.past.ended(self.pipeline.statistics(now_s))
        self.pipeline = None

    def _next_number(self) -> int:
        """Job ids and file tokens: one count for all."""
        self._number += 1
        return self._number

    # ----------------------------------------------------------------------- between the machines

    def _wire(self, effects: Iterable[fx.Effect], now_s: float) -> list[fx.Effect]:
        """Carry out what one machine tells another; pass the rest on."""
        passed: list[fx.Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, fx.Emit) and effect.name.startswith(INNER):
                waiting = [*self._told(effect, now_s), *waiting]
            else:
                passed.append(effect)
        return passed

    def _told(self, told: fx.Emit, now_s: float) -> list[fx.Effect]:
        fields = told.fields
        match told.name:
            case "pipeline/done":
                return self._micro_batch_done(fields, now_s)
            case "pipeline/expired":
                micro_batch: MicroBatchId = fields["micro_batch"]
                try:
                    self.leases.expired(micro_batch, fields["reason"], now_s)
                except LocalProtocolError as error:
                    return _without_lease(micro_batch, error)
                plain = {"round": micro_batch.round, "micro_batch": str(micro_batch)}
                return [fx.Emit("lease_expired", {**plain, "reason": fields["reason"]})]
            case "pipeline/first_of_round":
                return self._end_round(fields["round"] - 1, now_s)
            case "pipeline/saw":
                self.leases.saw(**fields)
            case "rounds/ended":
                return self._round_ended(fields["round"], now_s)
            case "pipeline/rejected" | "mixing/rejected" | "state/rejected":
                self.rejected[fields["peer"], fields["code"]] += 1
                plain = {"peer": fields["peer"], "code": fields["code"]}
                return [fx.Emit("message_rejected", plain)]
        return []

    def _micro_batch_done(self, fields: dict[str, Any], now_s: float) -> list[fx.Effect]:
        micro_batch: MicroBatchId = fields["micro_batch"]
        if not micro_batch.held_out:
            step = self.shape.step_of(micro_batch)
            self.losses.add(step, fields["loss_sum"], fields["samples"])
            if self.first_done_s is None:
                self.first_done_s = now_s
        try:
            self.leases.done(micro_batch, fields["loss_sum"], fields["samples"], now_s)
        except LocalProtocolError as error:
            return _without_lease(micro_batch, error)
        return []

    # ------------------------------------------------------------------------------------- rounds

    def _end_round(self, round_number: int, now_s: float) -> list[fx.Effect]:
        """The inner phase of `round_number` is over here: mix, and take the outer step."""
        if self.pipeline is None or self.rounds is None or round_number < self.round:
            return []
        caps = self.leases.ledger.weight_caps(round_number, self.rounds.replicas)
        self.rounds.keeper.set_witnessed(round_number, caps)
        return self.rounds.end(round_number, self.pipeline, now_s)

    def _round_ended(self, round_number: int, now_s: float) -> list[fx.Effect]:
        """Its outer step is in the weights."""
        if self.pipeline is None or self.rounds is None:
            return []
        self.round = max(self.round, round_number + 1)
        self.donor.round = self.round
        self._fields["round"] = self.round
        effects = self.checkpoints.begin(self.rounds.stage, self.round)
        return [*effects, *self.rounds.ended(round_number, self.pipeline, now_s)]

    def open_rounds(self, now_s: float) -> list[fx.Effect]:
        """End the rounds that the ledger says have ended, and open those that may begin."""
        if self.pipeline is None:
            return []
        effects: list[fx.Effect] = []
        ended = self.round - 1
        while ended + 1 < self.shape.rounds and self.leases.is_ended(ended + 1):
            ended += 1
        if ended >= self.round:
            effects += self._end_round(ended, now_s)
        gate = min(self.leases.round_open(now_s), self.shape.rounds - 1)
        self.pipeline.set_round_gate(gate)
        return self._wire(effects, now_s)

    def lead(self, now_s: float) -> list[fx.Effect]:
        """As a head: start what may be started."""
        if self.pipeline is None or self.stage != 0 or self._is_ledger_behind:
            return []
        effects: list[fx.Effect] = []
        for _ in range(self.pipeline.capacity(now_s)):
            micro_batch = self._next_micro_batch(now_s)
            if micro_batch is None:
                break
            if self.pipeline.leads(micro_batch):
                continue  # it was given back as we stood still, and goes on as ours again
            self.pipeline.set_round_gate(micro_batch.round)  # a lease may be what opened it
            effects += self.pipeline.start(micro_batch, now_s)
        return self._wire(effects, now_s)

    @property
    def _is_ledger_behind(self) -> bool:
        """What it would give us to do was done long ago: the news of it is on its way."""
        ledger = self.leases.ledger
        return ledger.settled < self.round - ROUNDS_OPEN_MAX or (ledger.is_blank and self.round > 0)

    def _next_micro_batch(self, now_s: float) -> MicroBatchId | None:
        held_out = self.leases.next_held_out(now_s)
        if held_out is not None:
            return held_out
        micro_batch, _ = self.leases.next_lease(now_s)
        return micro_batch

    # ------------------------------------------------------------------------------------- roster

    def review(self, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        """The roster or the links have changed, or time has passed."""
        before = self.stage
        effects = self.states.review(swarm, now_s)
        if self.stage != before:
            self.past.stage_changed()
        if self.stage != before and self.pipeline is not None:
            effects += self.pipeline.drain(True, now_s)
            self._drop_pipeline(now_s)
            self.donor.forget()
            if self.rounds is not None:
                effects += self.rounds.keeper.stop(now_s)
                self.rounds = None
        effects += self._set_candidates(swarm.coverage, swarm.linked, now_s)
        if self.rounds is not None and self.stage is not None:
            effects += self.rounds.set_replicas(swarm.coverage.active[self.stage], now_s)
        return self._wire(effects, now_s)

    def _set_candidates(
        self, coverage: Coverage, linked: frozenset[PeerId], now_s: float
    ) -> list[fx.Effect]:
        if self.pipeline is None or self.stage is None or self.stage + 1 >= self.shape.stages:
            return []
        candidates = tuple(
            Candidate(view.peer, view.record.incarnation, view.record.tokens_per_s)
            for view in coverage.active[self.stage + 1]
        )
        effects = self.pipeline.set_next_stage(candidates, now_s)
        if self._is_draining and not candidates:
            effects += self.pipeline.abandon("draining", now_s)  # nobody is left to finish it
        return effects + self.pipeline.set_linked(linked, now_s)

    def set_draining(self, on: bool, now_s: float) -> list[fx.Effect]:
        """Take nothing new, or take again. Every lease held is under way and will end."""
        self._is_draining = on
        if not on:
            self._set_aside.cancel()
            self.seat.come_back()
        if self.pipeline is None:
            return []
        return self._wire(self.pipeline.drain(on, now_s), now_s)

    def rest(self) -> list[fx.Effect]:
        """While paused: give the device back once nothing is under way; take no stage."""
        if self.seat.phase in ("none", "choosing"):
            self.seat.is_away = True
        return self._set_aside.begin() if self.is_held and self.is_empty else []

    def _put_away(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        is_written, effects = self._set_aside.handle(event)
        if not is_written:
            return effects
        if self.rounds is not None:
            effects = [*self.rounds.keeper.stop(now_s), *effects]
        self._drop_pipeline(now_s)
        self.rounds = None
        self.checkpoints.forget()
        self.donor.forget()
        self.seat.put_away(self.round)
        return self._wire(effects, now_s)

    @property
    def round_median_s(self) -> float | None:
        """What an outer round usually takes here; None: not known yet."""
        return None if self.rounds is None else self.rounds.keeper.round_median_s

    @property
    def is_empty(self) -> bool:
        is_mixing = self.rounds is not None and self.rounds.ending is not None
        if self.checkpoints.is_writing or is_mixing:
            return False
        return self.pipeline is None or self.pipeline.is_empty

    # ------------------------------------------------------------------------------------- figures

    def progress(self, now_s: float) -> dict[str, Any]:
        """What the own record tells of our work."""
        if self.pipeline is None:
            return {}
        told = self.pipeline.statistics(now_s)
        if told.counters.counted and self.first_done_s is None:
            self.first_done_s = now_s
        step = self.step_of(told.last_step)
        self.pace.note(step, now_s)
        return {
            "step": step,
            "micro_batches": told.counters.counted,
            "tokens_per_s": self.tokens_per_s(now_s),
        }

    def step_of(self, last_step: int | None) -> int:
        """Inner steps behind us. The last round of a run may be short."""
        steps = self.round * self.shape.inner_steps if last_step is None else last_step + 1
        return min(steps, self.shape.total_steps)

    def tokens_per_s(self, now_s: float) -> float:
        """What the stage could do here if nothing held it up: tokens over computing seconds."""
        if self.pipeline is None:
            return 0.0
        return self.pipeline.statistics(now_s).micro_batches_per_s * self.shape.micro_batch_tokens


def _without_lease(micro_batch: MicroBatchId, error: LocalProtocolError) -> list[fx.Effect]:
    """A micro-batch ended whose lease had gone back (a drain, a lost worker): others count it."""
    if error.code != "unknown_lease":
        raise error
    fields = {"round": micro_batch.round, "micro_batch": str(micro_batch), "code": error.code}
    return [fx.Emit("lease_returned", fields)]
