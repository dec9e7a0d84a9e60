"""One peer: the machines of floor 0 composed into a single one, run for real and in the simulator.

    greeting     who may talk to us              membership   who is there
    leases       which micro-batches are whose   pipeline     their passage through our stage
    rounds       what happens between two rounds

This file routes events to their owners, tells each machine what it needs of the others (the
roster's view becomes heads, candidates, coverage; the ledger opens rounds; rounds hold the
pipeline), and keeps the one reason that is shown. It decides nothing that one of them could decide.

Told upwards (Emit): the names of `swarmd.event`, and for the daemon: `reason_changed`,
`run_complete`, `peer_ended {code}` (drained, identity lost ...), `load_failed`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.coverage import Coverage, coverage_of
from swarmd.protocols.ending import GOODBYE_S, Ending
from swarmd.protocols.errors import LocalProtocolError, RemoteProtocolError
from swarmd.protocols.explain import choose_reason
from swarmd.protocols.greeting import Greeting
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.intervals import EMPTY
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.loss_book import LossBook
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages import Message, control, gossip, ledger
from swarmd.protocols.messages import pipeline as pipeline_messages
from swarmd.protocols.pipeline import Pipeline
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape
from swarmd.protocols.reasons import Reason, SecondsByReason
from swarmd.protocols.roster import RosterView
from swarmd.protocols.routing import Candidate, Router
from swarmd.protocols.run_shape import RunShape
from swarmd.protocols.situation import situation_of
from swarmd.protocols.traffic import Traffic

REVIEW = "peer/review"
REVIEW_S = 0.5
"""How often what nobody announces is looked at: progress to tell, deadlines that passed."""


HELD_OUT_S = 20.0
"""After the last micro-batch, the last round's held-out loss is waited for at most so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSetup:
    """What one peer is to be. Times in seconds."""

    shape: RunShape
    run_body: bytes
    entries: dict[PeerId, tuple[str, ...]]
    stage: int | None = None
    """The stage asked for; None: as the swarm decides."""
    is_observer: bool = False
    stays: bool = False
    """Stay after the run's end, until told to go."""
    agent: str = ""
    pipeline_limits: PipelineLimits = field(default_factory=PipelineLimits)


class PeerMachine:
    """See the header. `statistics` of the parts are read by the daemon for status."""

    def __init__(
        self,
        setup: PeerSetup,
        membership: Membership,
        leases: LeaseBook,
        rng: random.Random,
        now_s: float,
    ) -> None:
        self.setup = setup
        self.shape = setup.shape
        self.peer = membership.peer
        self.membership = membership
        self.leases = leases
        self.pipeline: Pipeline | None = None
        incarnation = membership.record.incarnation
        self.greeting = Greeting(setup.shape, setup.run_body, incarnation, setup.agent)
        self.losses = LossBook(setup.shape.total_steps)
        self.traffic = Traffic(setup.shape)
        self.rejected: Counter[tuple[PeerId, str]] = Counter()
        self.reasons = SecondsByReason(Reason(code="starting", text="step 1 of 4: joining"), now_s)
        self.coverage: Coverage = coverage_of(membership.view(now_s), setup.shape.stages)
        self.stage: int | None = None
        self.worker_info: dict[str, object] = {}
        self.worker_losses = 0
        self.first_contribution_s: float | None = None
        self._rng = rng
        self._next_job_id = 0
        self._round = 0
        self.failed: Reason | None = None
        self.paused: Reason | None = None
        self.resources: Reason | None = None
        self.loading: str | None = None
        self.entry_causes: dict[PeerId, dict[str, str]] = {}
        self.was_with_others = False
        self.missing_since_s: float | None = None
        self.ending = Ending()
        self._seen_revision = -1
        self._all_done_s: float | None = None
        self._located: dict[PeerId, tuple[str, ...]] = {}

    # -------------------------------------------------------------------------------- events

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        try:
            effects = self._wire(self._dispatch(event, now_s), now_s)
        except RemoteProtocolError as error:
            assert isinstance(event, fx.Arrived), "only a peer can break the rules for a peer"
            effects = self._reject(event.peer, error.code)
        effects += self._wire(self._react(now_s), now_s)
        effects += self._explain(now_s)
        return effects

    def _dispatch(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Arrived():
                return self._arrived(event, now_s)
            case fx.Malformed(peer, code):
                return self._reject(peer, code)
            case fx.Started():
                return self._started(now_s)
            case fx.LinkUp(peer):
                return self.greeting.hello(peer, self.membership.signed)
            case fx.LinkDown(peer):
                return self._link_down(event, peer, now_s)
            case fx.DialFailed(peer, causes):
                if peer in self.setup.entries:
                    self.entry_causes[peer] = dict(causes)
                return self.membership.handle(event, now_s) + self._to_pipeline(event, now_s)
            case fx.TimerFired(name):
                return self._timer(name, event, now_s)
            case fx.ComputeReady(info):
                return self._worker_ready(event, info, now_s)
            case fx.ComputeLost(text, code):
                return self._worker_lost(event, text, code, now_s)
            case fx.LoopLag():
                return self.membership.handle(event, now_s)
            case fx.Command():
                return self._command(event, now_s)
        return self._to_pipeline(event, now_s)

    def _started(self, now_s: float) -> list[fx.Effect]:
        effects = self.membership.handle(fx.Started(), now_s)
        effects += self.leases.handle(fx.Started(), now_s)
        for peer, addresses in sorted(self.setup.entries.items()):
            effects += self.membership.introduce(peer, addresses)
        effects.append(fx.SetTimer(REVIEW, REVIEW_S))
        if self.setup.stage is not None:
            effects += self._take_stage(self.setup.stage, now_s)
        return effects

    def _timer(self, name: str, event: fx.Event, now_s: float) -> list[fx.Effect]:
        owner = name.split("/", 1)[0]
        if owner == "membership":
            return self.membership.handle(event, now_s)
        if owner == "leases":
            return self.leases.handle(event, now_s)
        if name == REVIEW:
            return [fx.SetTimer(REVIEW, REVIEW_S), *self._review(now_s)]
        return self._to_pipeline(event, now_s)

    def _link_down(self, event: fx.Event, peer: PeerId, now_s: float) -> list[fx.Effect]:
        self.greeting.lost(peer)
        effects = self.membership.handle(event, now_s)
        return effects + self._to_pipeline(event, now_s)

    def _to_pipeline(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        return self.pipeline.handle(event, now_s) if self.pipeline is not None else []

    def _reject(self, peer: PeerId, code: str) -> list[fx.Effect]:
        self.rejected[peer, code] += 1
        return [fx.Emit("message_rejected", {"peer": peer, "code": code})]

    # -------------------------------------------------------------------------------- messages

    def _arrived(self, event: fx.Arrived, now_s: float) -> list[fx.Effect]:
        peer, message = event.peer, event.message
        match message:
            case control.Hello():
                return self._heard_hello(peer, message, now_s)
            case control.Refusal():
                return self.greeting.heard_refusal(peer, message)
            case control.RunRequest():
                return self.greeting.heard_run_request(peer, message)
            case control.RunDescription() | control.Goodbye():
                return []
        if peer not in self.greeting.greeted:
            self.rejected[peer, "not_admitted"] += 1
            return _release(event)
        if _is_of(message, gossip):
            return self.membership.handle(event, now_s)
        heard = self.membership.heard(peer, now_s)
        if _is_of(message, ledger):
            return heard + self.leases.handle(event, now_s)
        if _is_of(message, pipeline_messages):
            self.traffic.arrived(message, event.payload is not None)
            return heard + self._pipeline_arrived(event, now_s)
        return heard + _release(event)

    def _pipeline_arrived(self, event: fx.Arrived, now_s: float) -> list[fx.Effect]:
        if self.pipeline is not None:
            return self.pipeline.handle(event, now_s)
        if isinstance(event.message, pipeline_messages.Forward):
            refusal = pipeline_messages.Refused(ref=event.message.ref, code="wrong_stage")
            return [fx.Send(event.peer, refusal), *_release(event)]
        return _release(event)

    def _heard_hello(self, peer: PeerId, hello: control.Hello, now_s: float) -> list[fx.Effect]:
        accepted, effects = self.greeting.heard_hello(peer, hello)
        if not accepted:
            return effects
        self.entry_causes.pop(peer, None)
        if not hello.is_reply:
            effects += self.greeting.hello(peer, self.membership.signed, is_reply=True)
        effects += self.membership.handle(fx.LinkUp(peer), now_s)
        if hello.record is not None:
            effects += self.membership.learn(hello.record, peer, now_s)
        return effects + self._to_pipeline(fx.LinkUp(peer), now_s)

    # -------------------------------------------------------------------------------- stages

    def _take_stage(self, stage: int, now_s: float) -> list[fx.Effect]:
        self.stage = stage
        self.loading = f"loading stage {stage}"
        effects = self.membership.update_own(now_s, stage=stage, phase="syncing")
        return [*effects, fx.LoadStage(stage)]

    def _worker_ready(
        self, event: fx.Event, info: dict[str, object], now_s: float
    ) -> list[fx.Effect]:
        assert self.stage is not None, "a worker without a stage"
        self.worker_info, self.loading, self.resources = info, None, None
        self.pipeline = Pipeline(
            PipelineShape(self.shape, self.stage),
            router=Router(self._rng),
            bounds=self.setup.pipeline_limits,
            next_job_id=self._allocate_job_id,
            round_number=self._round,
        )
        effects = self.pipeline.handle(event, now_s)
        for peer in sorted(self.greeting.greeted):
            effects += self.pipeline.handle(fx.LinkUp(peer), now_s)
        self._seen_revision = -1
        return effects + self.membership.update_own(now_s, phase="active")

    def _worker_lost(self, event: fx.Event, text: str, code: str, now_s: float) -> list[fx.Effect]:
        effects = self._to_pipeline(event, now_s)
        self.leases.give_back_all(now_s)
        self.worker_losses += 1
        known = code if code in ("device_lost", "out_of_memory", "data_missing") else "worker_died"
        self.resources = Reason(code=known, text=text, stage=self.stage)
        return effects + self.membership.update_own(now_s, phase="syncing")

    def _allocate_job_id(self) -> int:
        self._next_job_id += 1
        return self._next_job_id

    # ------------------------------------------------------------------ between the machines

    def _wire(self, effects: Iterable[fx.Effect], now_s: float) -> list[fx.Effect]:
        """Carry out what one machine tells another; pass the rest on."""
        passed: list[fx.Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, fx.Emit) and effect.name.startswith("pipeline/"):
                waiting = [*self._pipeline_told(effect, now_s), *waiting]
                continue
            if isinstance(effect, fx.Send):
                self.traffic.sent(effect.message, effect.payload is not None)
            passed.append(effect)
        return passed

    def _pipeline_told(self, told: fx.Emit, now_s: float) -> list[fx.Effect]:
        fields = told.fields
        match told.name:
            case "pipeline/done":
                return self._micro_batch_done(fields, now_s)
            case "pipeline/expired":
                micro_batch: MicroBatchId = fields["micro_batch"]
                self.leases.expired(micro_batch, fields["reason"], now_s)
                return [fx.Emit("lease_expired", {"round": micro_batch.round, **_plain(fields)})]
            case "pipeline/first_of_round":
                return self._end_round(fields["round"] - 1, now_s)
            case "pipeline/rejected":
                return self._reject(fields["peer"], fields["code"])
        return []

    def _micro_batch_done(self, fields: dict[str, object], now_s: float) -> list[fx.Effect]:
        micro_batch, samples, loss_sum = (
            fields["micro_batch"],
            fields["samples"],
            fields["loss_sum"],
        )
        assert isinstance(micro_batch, MicroBatchId)
        assert isinstance(samples, int)
        assert isinstance(loss_sum, float)
        if not micro_batch.held_out:
            self.losses.add(self.shape.step_of(micro_batch), loss_sum, samples)
        self.leases.done(micro_batch, loss_sum, samples, now_s)
        return []

    def _end_round(self, round_number: int, now_s: float) -> list[fx.Effect]:
        """The inner phase of `round_number` is over here. Replicas are not mixed yet: go on."""
        if self.pipeline is None or round_number < self._round:
            return []
        effects = self.pipeline.finish_round(round_number, now_s)
        self._round = round_number + 1
        effects += self.pipeline.hold(False, now_s)
        return [*effects, *self.membership.update_own(now_s, round=self._round)]

    # ------------------------------------------------------------------------------- reaction

    def _react(self, now_s: float) -> list[fx.Effect]:
        """What follows from the new state of things, after every event."""
        effects: list[fx.Effect] = []
        view = self.membership.view(now_s)
        if view.revision != self._seen_revision:
            self._seen_revision = view.revision
            effects += self._roster_changed(now_s)
        if self.pipeline is not None:
            effects += self._open_rounds(now_s)
            effects += self._lead(now_s)
        effects += self._end(now_s)
        return effects + self.leases.take_effects()

    def _roster_changed(self, now_s: float) -> list[fx.Effect]:
        view = self.membership.view(now_s)
        self.coverage = coverage_of(view, self.shape.stages)
        others = [peer.peer for peer in view.present() if peer.peer != self.peer]
        self.was_with_others = self.was_with_others or bool(others)
        self._note_missing(now_s)
        linked = tuple(peer for peer in others if peer in self.greeting.greeted)
        self.leases.set_heads(self.coverage.heads, now_s)
        self.leases.set_recipients(linked, everybody=len(linked) == len(others))
        effects = self._locate(view)
        if self.stage is None or self.stage + 1 >= self.shape.stages:
            return effects
        wanted = self.coverage.active[self.stage + 1]
        self.membership.want_links(peer.peer for peer in wanted)
        if self.pipeline is not None:
            candidates = tuple(
                Candidate(peer.peer, peer.record.incarnation, peer.record.tokens_per_s)
                for peer in wanted
            )
            effects += self.pipeline.set_next_stage(candidates, now_s)
        return effects

    def _locate(self, view: RosterView) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for peer in view.present():
            bulk_addresses = peer.record.bulk_addresses
            if peer.peer != self.peer and self._located.get(peer.peer) != bulk_addresses:
                self._located[peer.peer] = bulk_addresses
                effects.append(fx.Locate(peer.peer, bulk_addresses))
        return effects

    def _note_missing(self, now_s: float) -> None:
        if not self.coverage.missing:
            self.missing_since_s = None
        elif self.missing_since_s is None:
            self.missing_since_s = now_s

    def _open_rounds(self, now_s: float) -> list[fx.Effect]:
        assert self.pipeline is not None
        effects: list[fx.Effect] = []
        while self._round < self.shape.rounds and self.leases.is_ended(self._round):
            effects += self._end_round(self._round, now_s)
        gate = self.leases.round_open(now_s)
        self.pipeline.set_round_gate(min(gate, self.shape.rounds - 1))
        return effects

    def _lead(self, now_s: float) -> list[fx.Effect]:
        """As a head: start what may be started."""
        assert self.pipeline is not None
        effects: list[fx.Effect] = []
        if self.stage != 0 or self.ending.takes_no_work or self.paused or not self.may_train:
            return effects
        for _ in range(self.pipeline.capacity(now_s)):
            micro_batch = self._next_micro_batch(now_s)
            if micro_batch is None:
                break
            effects += self.pipeline.start(micro_batch, now_s)
        return effects

    def _next_micro_batch(self, now_s: float) -> MicroBatchId | None:
        held_out = self.leases.next_held_out(now_s)
        if held_out is not None:
            return held_out
        micro_batch, _ = self.leases.next_lease(now_s)
        return micro_batch

    @property
    def may_train(self) -> bool:
        """Every stage is manned, and as many peers are there as the run wants to begin."""
        if self.coverage.missing:
            return False
        return self.has_begun or self.coverage.active_count >= self.shape.peers_min

    @property
    def has_begun(self) -> bool:
        """Whether any micro-batch of the run has been done by anybody."""
        ledger = self.leases.ledger
        return ledger.settled > 0 or ledger.done(0) != EMPTY

    @property
    def round(self) -> int:
        """Whose inner phase is on at this peer."""
        return self._round

    # --------------------------------------------------------------------- now and then

    def _review(self, now_s: float) -> list[fx.Effect]:
        """Tell the others how far we are."""
        if self.pipeline is None:
            return []
        told = self.pipeline.statistics(now_s)
        done = told.counters.counted
        if done and self.first_contribution_s is None:
            self.first_contribution_s = now_s
        step = 0 if told.last_step is None else told.last_step + 1
        return self.membership.update_own(
            now_s, step=step, micro_batches=done, tokens_per_s=self.tokens_per_s(now_s)
        )

    def tokens_per_s(self, now_s: float) -> float:
        """What this peer's stage could do if nothing held it up: tokens over computing seconds."""
        if self.pipeline is None:
            return 0.0
        told = self.pipeline.statistics(now_s)
        busy_s = told.wait_s.get("computing", 0.0)
        return told.counters.counted * self.shape.micro_batch_tokens / busy_s if busy_s else 0.0

    # ------------------------------------------------------------------------ the operator

    def _command(self, command: fx.Command, now_s: float) -> list[fx.Effect]:
        match command.name:
            case "drain" | "leave":
                return self._drain(now_s, leaves=command.name == "leave")
            case "pause":
                self.paused = Reason(code="paused", text=str(command.args.get("text", "paused")))
                self.leases.give_back_all(now_s)
                return self._set_draining(True, now_s)
            case "resume":
                self.paused = None
                self.ending.resume()
                return self._set_draining(False, now_s)
            case "cordon" | "uncordon":
                return self.membership.update_own(now_s, cordoned=command.name == "cordon")
            case "forget":
                self.membership.forget(PeerId(str(command.args["peer"])))
                return []
        raise LocalProtocolError("malformed", f"no command {command.name}")

    def _drain(self, now_s: float, *, leaves: bool) -> list[fx.Effect]:
        if not self.ending.drain(now_s, leaves=leaves):
            return []
        self.leases.give_back_all(now_s)
        return [
            fx.Emit("drain_started", {}),
            *self._set_draining(True, now_s),
            *self.membership.update_own(now_s, phase="draining"),
        ]

    def _set_draining(self, on: bool, now_s: float) -> list[fx.Effect]:
        effects = [] if self.pipeline is None else self.pipeline.drain(on, now_s)
        phase = "draining" if on else "active" if self.pipeline is not None else "joining"
        return [*effects, *self.membership.update_own(now_s, phase=phase)]

    def _end(self, now_s: float) -> list[fx.Effect]:
        """Notice the run's end, and go on with a stop that is under way."""
        effects: list[fx.Effect] = []
        if self._is_complete(now_s) and self.ending.complete(now_s):
            effects += self.membership.update_own(now_s, round=self.shape.rounds)
        begun = self.ending.advance(
            now_s,
            is_empty=self.pipeline is None or self.pipeline.is_empty,
            others_know=self._others_know_the_end(now_s),
            stays=self.setup.stays,
        )
        if begun == "leaving":
            effects += [fx.Emit("drain_ended", {}), *self.membership.leave(now_s)]
            effects.append(fx.SetTimer(REVIEW, GOODBYE_S))
        elif begun == "gone":
            effects.append(fx.Emit("peer_ended", {"code": self.ending.code}))
        return effects

    def _is_complete(self, now_s: float) -> bool:
        """Every micro-batch has ended, and the last held-out loss is known or overdue."""
        if not self.leases.is_complete:
            return False
        if self._all_done_s is None:
            self._all_done_s = now_s
        is_scored = self.leases.held_out_is_scored(self.shape.rounds - 1)
        return is_scored or now_s - self._all_done_s >= HELD_OUT_S

    def _others_know_the_end(self, now_s: float) -> bool:
        present = self.membership.view(now_s).present()
        return all(view.record.round >= self.shape.rounds for view in present)

    # ------------------------------------------------------------------------------ reason

    def _explain(self, now_s: float) -> list[fx.Effect]:
        reason = choose_reason(situation_of(self, now_s))
        if not self.reasons.change(reason, now_s):
            return []
        return [fx.Emit("state_changed", {"state": reason.state, "code": reason.code})]


def _release(event: fx.Arrived) -> list[fx.Effect]:
    return [] if event.payload is None else [fx.Release(event.payload)]


def _is_of(message: Message, module: ModuleType) -> bool:
    """Whether the message is one of those that `module` declares."""
    return type(message).__module__ == module.__name__


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Ids as text, for logs and status."""
    return {
        name: str(value) if isinstance(value, MicroBatchId) else value
        for name, value in fields.items()
    }
