"""Every passage under way at this peer, and the only ways in and out.

In: `begin`. Out, each exactly once: `answer` (the gradient, or a held-out loss, goes to whoever
asked), `fail` (whoever asked is told why not), `drop` (nobody asks any more). No way out leaves a
slot, a graph or an open question behind. At the head whoever asked is the composite.

The parts that decide (callee.py, hop.py, lane.py, job_results.py) share this table's list of
effects, so that effects come out in the order in which things were decided.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmd.protocols import limits
from swarmd.protocols.effects import Effect, Emit, Priority, Release, Send
from swarmd.protocols.hop import Hop
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import BufferRef
from swarmd.protocols.lane import Lane
from swarmd.protocols.limits import ROUNDS_OPEN_MAX
from swarmd.protocols.messages.pipeline import Gradient, MicroBatchRef, Refused
from swarmd.protocols.passage import Passage
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape, micro_batch_ref
from swarmd.protocols.pipeline_statistics import Counters, FaultLog, LossMeter
from swarmd.protocols.receipts import CALLED, CALLER
from swarmd.protocols.routing import Router

Key = tuple[PeerId | None, MicroBatchId]
"""Caller and micro-batch: a caller has at most one passage of a micro-batch here."""


class PassageTable:
    """What is under way, in the order of its beginning, and what it is made with."""

    def __init__(
        self,
        shape: PipelineShape,
        bounds: PipelineLimits,
        router: Router,
        next_job_id: Callable[[], int],
        round_number: int,
        faults: FaultLog,
    ) -> None:
        self.shape = shape
        self.bounds = bounds
        self.effects: list[Effect] = []
        self.counters = Counters()
        self.faults = faults
        self.loss = LossMeter()
        self.lane = Lane(shape, bounds.lane_depth, next_job_id, self.effects, self.counters)
        self.hop = Hop(shape, bounds, router, self.effects, self.counters, self.faults)
        self.round = round_number
        """Whose inner phase is on, or comes next while the lane is held."""
        self.announced_round = round_number
        """The latest that a micro-batch announced."""
        self.is_round_news = False
        """Whether the composite has to be told of it."""
        self._passages: dict[Key, Passage] = {}
        self._next_serial = 0

    def __len__(self) -> int:
        return len(self._passages)

    def all(self) -> list[Passage]:
        """In the order of their beginning; safe to end some while looking at them."""
        return list(self._passages.values())

    def get(self, caller: PeerId | None, micro_batch: MicroBatchId) -> Passage | None:
        return self._passages.get((caller, micro_batch))

    # ----------------------------------------------------------------------------------------- in

    def begin(
        self,
        micro_batch: MicroBatchId,
        *,
        caller: PeerId | None,
        attempt: int,
        first_attempt: int,
        samples: int,
        deadline_s: float,
        payload: BufferRef | None,
    ) -> None:
        """A micro-batch reaches this peer. The first of a later round ends the inner phase."""
        key = (caller, micro_batch)
        assert key not in self._passages, f"{micro_batch} from {caller} is under way already"
        passage = Passage(
            serial=self._next_serial,
            micro_batch=micro_batch,
            tag=self.shape.run.step_of(micro_batch),
            caller=caller,
            attempt=attempt,
            first_attempt=first_attempt,
            samples=samples,
            tokens=samples * self.shape.run.sequence_tokens,
            deadline_s=deadline_s,
            born_round=max(self.round, micro_batch.round),
            input=payload,
        )
        self._next_serial += 1
        self._passages[key] = passage
        self.lane.queue_forward(passage)
        # A held-out one is sent when its round has ended, and is to see the round's last step.
        announced = micro_batch.round if passage.is_trained else micro_batch.round + 1
        if announced > max(self.round, self.announced_round):
            self.announced_round = announced
            self.is_round_news = True
            self.lane.is_held = True

    def is_too_late(self, micro_batch: MicroBatchId) -> bool:
        """Its round is so long over that nobody remembers what was counted of it."""
        return micro_batch.round < self.round - ROUNDS_OPEN_MAX

    # ---------------------------------------------------------------------------------------- out

    def answer(self, passage: Passage, payload: BufferRef | None) -> None:
        """It is done here. `payload`: the gradient of its input, for the caller."""
        if passage.is_trained:
            self.loss.saw(passage.loss_sum, passage.samples)
        if passage.caller is None:
            self._tell_done(passage)
        else:
            gradient = Gradient(
                ref=micro_batch_ref(passage.micro_batch, passage.attempt),
                basis_version=self.shape.run.basis_version,
                samples=passage.samples,
                loss_sum=passage.loss_sum,
                busy_s=passage.busy_s,
            )
            self.counters.answered += passage.is_trained
            self.effects.append(Send(passage.caller, gradient, payload, Priority.PIPELINE))
            self.saw(passage, passage.caller, CALLER)
        self.release(payload)
        self._end(passage)

    def saw(self, passage: Passage, peer: PeerId, role: int, *, is_good: bool = True) -> None:
        """A neighbour did its part, which we can witness; not is_good: it proved useless."""
        if passage.is_trained:
            stage = self.shape.stage + (1 if role == CALLED else -1)
            fields = {"micro_batch": passage.micro_batch, "peer": peer, "stage": stage}
            self.effects.append(Emit("pipeline/saw", {**fields, "role": role, "is_good": is_good}))

    def _tell_done(self, passage: Passage) -> None:
        self.counters.done += passage.is_trained
        fields = {
            "micro_batch": passage.micro_batch,
            "loss_sum": passage.loss_sum,
            "samples": passage.samples,
            "tokens": passage.tokens,
            "redone": passage.redone,
        }
        self.effects.append(Emit("pipeline/done", fields))

    def fail(self, passage: Passage, code: str, text: str = "") -> None:
        """It will not be done here. The caller is refused; at the head it has expired."""
        if passage.caller is None:
            self.counters.expired += passage.is_trained
            fields = {"micro_batch": passage.micro_batch, "reason": code, "text": text}
            self.effects.append(Emit("pipeline/expired", fields))
        else:
            self.refuse(
                passage.caller, micro_batch_ref(passage.micro_batch, passage.attempt), code, text
            )
        self.drop(passage, code)

    def drop(self, passage: Passage, code: str) -> None:
        """Nobody waits for it any more: those below are told to stop."""
        self.hop.abandon(passage, code)
        self._end(passage)

    def _end(self, passage: Passage) -> None:
        self.lane.leave(passage)
        for slot in passage.slots:
            self.release(slot)
        del self._passages[(passage.caller, passage.micro_batch)]

    # ------------------------------------------------------------------------------------- helpers

    def release(self, slot: BufferRef | None) -> None:
        if slot is not None:
            self.effects.append(Release(slot))

    def refuse(self, peer: PeerId, ref: MicroBatchRef, code: str, text: str = "") -> None:
        """Tell a caller that it will not be done here."""
        basis_version = self.shape.run.basis_version if code == "wrong_basis" else None
        text = text[: limits.TEXT_CHARS_MAX]
        refused = Refused(ref=ref, code=code, text=text, basis_version=basis_version)
        self.effects.append(Send(peer, refused))

    def reject(self, peer: PeerId, code: str, micro_batch: MicroBatchId) -> None:
        """Count what a peer should not have sent, and say so."""
        self.counters.reject(peer, code)
        fields = {"peer": peer, "code": code, "micro_batch": micro_batch}
        self.effects.append(Emit("pipeline/rejected", fields))
