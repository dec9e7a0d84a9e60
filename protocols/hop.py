"""The caller's side of one hop: give a micro-batch to the next stage and get its gradient back.

What was sent is kept until its gradient has proved good, so a callee that dies, freezes, refuses or
talks nonsense costs this one hop, not the micro-batch: it is sent again, to another replica
(algorithms.md 4.2). BUSY is an answer, not a fault: the next replica is asked at once. An overdue
replica may still answer while another is asked; the first gradient wins and the others are told to
stop. If only overdue ones are left, they are asked again in turn, with the same bytes, which they
recognise; an answer to the earlier question is as good.

Attempts are numbered over everything this peer ever sends (cyclic), so no answer can be taken for
that of another question.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarmd.protocols import limits
from swarmd.protocols.deadlines import AdaptiveDeadline
from swarmd.protocols.effects import Effect, Emit, Priority, Send
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.pipeline import (
    Busy,
    Cancel,
    Forward,
    Gradient,
    MicroBatchRef,
    Refused,
)
from swarmd.protocols.passage import Attempt, Outbound, Passage, Phase
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape, micro_batch_ref
from swarmd.protocols.pipeline_statistics import Counters, FaultLog
from swarmd.protocols.routing import Candidate, Router

DRAINING_PAUSE_S = 5.0
"""A peer that leaves politely is left alone; the roster will say soon that it is gone."""
DEAF_GRACE_S = 0.25
"""Time to read the inbox after a pause of our own. A guess: a few hundred messages."""
FORWARD_SHARE = 3
"""A forward alone is about a third of a micro-batch's work."""
LATE_CODES = ("late", "expired")
"""The micro-batch's own lateness, nobody's fault."""


class Hop:
    """All passages that wait for the next stage. Effects go to the list shared with its owner."""

    def __init__(
        self,
        shape: PipelineShape,
        bounds: PipelineLimits,
        router: Router,
        effects: list[Effect],
        counters: Counters,
        faults: FaultLog,
    ) -> None:
        self.router = router
        self._shape = shape
        self._bounds = bounds
        self._effects = effects
        self._counters = counters
        self._faults = faults
        self._next_attempt = 0
        self._open: dict[int, tuple[Passage, Attempt]] = {}
        self._deadlines: dict[PeerId, AdaptiveDeadline] = {}

    # ------------------------------------------------------------------------------------ asking

    def send(self, passage: Passage, now_s: float) -> None:
        """Have it done by the next stage: now if somebody can be asked, else as soon as one can."""
        passage.phase = Phase.ROUTING
        self._place(passage, now_s)

    def place_waiting(self, passages: Iterable[Passage], now_s: float) -> None:
        """Something changed for the better: try again those that nobody is at work on."""
        for passage in passages:
            outbound = passage.outbound
            if outbound is None or not self._is_ours(passage) or outbound.is_answer_due:
                continue
            if not self._place(passage, now_s) and not outbound.refused_by:
                return  # what stops this one stops the others as well

    def wake(self, passage: Passage, now_s: float) -> None:
        """Time passed: notice overdue answers, end back-offs."""
        outbound = passage.outbound
        if outbound is None or not self._is_ours(passage):
            return
        overdue = [a for a in outbound.attempts.values() if not a.is_overdue and a.due_s <= now_s]
        for attempt in overdue:
            attempt.is_overdue = True
            outbound.fault = (attempt.peer, "silent")
            self.router.overdue(attempt.peer, attempt.number, now_s)
            self._deadline(attempt.peer).missed(attempt.sent_s, now_s)
            self._faults.fault("silent", attempt.peer, now_s)
        is_backoff_over = outbound.retry_s is not None and outbound.retry_s <= now_s
        if is_backoff_over:
            outbound.refused_by.clear()
        if (overdue or is_backoff_over) and not outbound.is_answer_due:
            self._place(passage, now_s)

    def was_deaf(self, now_s: float) -> None:
        """This process was not running: what is in its inbox comes before anybody is blamed."""
        for _, attempt in self._open.values():
            if not attempt.is_overdue:
                attempt.due_s = max(attempt.due_s, now_s + DEAF_GRACE_S)

    def due_s(self, passage: Passage) -> float:
        """When `wake` has something to do."""
        outbound = passage.outbound
        if outbound is None or not self._is_ours(passage):
            return float("inf")
        due_s = [a.due_s for a in outbound.attempts.values() if not a.is_overdue]
        if outbound.retry_s is not None:
            due_s.append(outbound.retry_s)
        return min(due_s, default=float("inf"))

    def _is_ours(self, passage: Passage) -> bool:
        return passage.phase in (Phase.ROUTING, Phase.AWAY)

    def _place(self, passage: Passage, now_s: float) -> bool:
        """Ask somebody if anybody can be asked, else come back later."""
        outbound = passage.outbound
        assert outbound is not None
        number = self._next_attempt
        peer = self._choose(passage, outbound, number, now_s)
        if peer is None:
            passage.phase = outbound.phase
            if outbound.retry_s is None or outbound.retry_s <= now_s:
                outbound.retry_s = now_s + outbound.backoff_s
                outbound.backoff_s = min(self._bounds.retry_s_max, 2.0 * outbound.backoff_s)
            return False
        self._next_attempt = (number + 1) % limits.ATTEMPTS_MAX
        if outbound.first_attempt is None:
            outbound.first_attempt = number
        outbound.retry_s = outbound.pinned = None
        outbound.backoff_s = self._bounds.retry_s_first
        due_s = now_s + self._deadline(peer).seconds(outbound.payload.size_bytes)
        attempt = Attempt(number, peer, now_s, due_s)
        outbound.attempts[number] = attempt
        self._open[number] = (passage, attempt)
        passage.phase = outbound.phase
        self._tell_redone(passage, outbound)
        self._effects.append(
            Send(
                peer,
                Forward(
                    ref=micro_batch_ref(passage.micro_batch, number),
                    first_attempt=outbound.first_attempt,
                    to_stage=self._shape.stage + 1,
                    basis_version=self._shape.run.basis_version,
                    weight_version=passage.weight_version,
                    samples=passage.samples,
                    tokens=passage.tokens,
                    deadline_s=min(limits.SECONDS_MAX, max(0.0, passage.deadline_s - now_s)),
                ),
                outbound.payload,
                Priority.PIPELINE,
            )
        )
        return True

    def _choose(
        self, passage: Passage, outbound: Outbound, number: int, now_s: float
    ) -> PeerId | None:
        """Another replica if there is one, else the one that was not asked for longest."""
        asked = outbound.last_asked
        exclude = set(asked).union(outbound.refused_by)
        if outbound.pinned is not None:
            exclude = set(self.router.peers) - {outbound.pinned}
            outbound.pinned = None
        peer, reason = self._ask_router(passage, number, now_s, exclude)
        if peer is None and reason == "excluded" and asked and not outbound.is_answer_due:
            again = min(asked.values(), key=lambda attempt: (attempt.sent_s, attempt.peer))
            others = set(self.router.peers) - {again.peer}
            peer, _ = self._ask_router(passage, number, now_s, others)
            if peer is not None:
                self._keep_only(outbound, again)
        return peer

    def _keep_only(self, outbound: Outbound, latest: Attempt) -> None:
        """Its peer is asked again; of the questions before, only the latest stays open."""
        for attempt in list(outbound.attempts.values()):
            if attempt.peer == latest.peer and attempt is not latest:
                self._close(outbound, attempt)
                self.router.withdrawn(attempt.peer, attempt.number)

    def _ask_router(
        self, passage: Passage, number: int, now_s: float, exclude: set[PeerId]
    ) -> tuple[PeerId | None, str]:
        assert passage.outbound is not None
        return self.router.choose(
            passage.tokens if passage.is_trained else passage.tokens // FORWARD_SHARE,
            now_s,
            attempt=number,
            size_bytes=passage.outbound.payload.size_bytes,
            exclude=exclude,
        )

    def _tell_redone(self, passage: Passage, outbound: Outbound) -> None:
        if outbound.fault is None:
            return
        peer, code = outbound.fault
        outbound.fault = None
        passage.redone += 1
        self._counters.redone += 1
        fields = {"micro_batch": passage.micro_batch, "peer": peer, "code": code}
        self._effects.append(Emit("micro_batch_redone", fields))

    # ----------------------------------------------------------------------------------- answers

    def find(self, peer: PeerId, ref: MicroBatchRef) -> tuple[Passage, Attempt] | None:
        """The open question that `ref` from `peer` answers, or None if there is none any more."""
        passage, attempt = self._open.get(ref.attempt, (None, None))
        if passage is None or attempt is None:
            return None
        if attempt.peer != peer or passage.micro_batch != ref.id:
            return None
        return passage, attempt

    def won(self, passage: Passage, attempt: Attempt, answer: Gradient, now_s: float) -> None:
        """A good gradient: nobody else needs to answer. The payload stays with the passage."""
        outbound = passage.outbound
        assert outbound is not None
        self._close(outbound, attempt)
        self.router.delivered(attempt.peer, attempt.number, now_s, answer.busy_s)
        if passage.is_trained:
            elapsed_s = now_s - attempt.sent_s
            self._deadline(attempt.peer).observe(elapsed_s, outbound.payload.size_bytes)
        outbound.won_by = attempt.peer
        outbound.retry_s = None
        self._cancel_all(passage, outbound, "done_elsewhere")

    def busy(self, passage: Passage, attempt: Attempt, answer: Busy, now_s: float) -> None:
        """No room there: the next one, at once."""
        assert passage.outbound is not None
        self._close(passage.outbound, attempt)
        self.router.busy(attempt.peer, attempt.number, now_s, answer.retry_in_s)
        if not passage.outbound.is_answer_due:
            self._place(passage, now_s)

    def refused(
        self, passage: Passage, attempt: Attempt, answer: Refused, now_s: float
    ) -> str | None:
        """It will not be done there. Returns the code if that was once too often."""
        if answer.code == "draining":
            busy = Busy(ref=answer.ref, retry_in_s=DRAINING_PAUSE_S)
            self.busy(passage, attempt, busy, now_s)
            return None
        return self.failed(passage, attempt, answer.code, now_s)

    def failed(self, passage: Passage, attempt: Attempt, code: str, now_s: float) -> str | None:
        """It was refused, or answered with nonsense. Returns the code if once too often."""
        outbound = passage.outbound
        assert outbound is not None
        is_fault = code not in LATE_CODES
        self._close(outbound, attempt)
        self.router.refused(attempt.peer, attempt.number, now_s, is_fault=is_fault)
        return self._refusal(passage, outbound, attempt.peer, code, now_s)

    def was_bad(self, passage: Passage, code: str, now_s: float) -> str | None:
        """The gradient that won could not be used: as if that peer had refused."""
        outbound = passage.outbound
        assert outbound is not None
        assert outbound.won_by is not None
        peer, outbound.won_by = outbound.won_by, None
        self.router.misled(peer, now_s)
        passage.phase = Phase.ROUTING
        return self._refusal(passage, outbound, peer, code, now_s)

    def _refusal(
        self, passage: Passage, outbound: Outbound, peer: PeerId, code: str, now_s: float
    ) -> str | None:
        outbound.refusals += 1
        outbound.refused_by.append(peer)
        if code not in LATE_CODES:
            outbound.fault = (peer, code)
            self._faults.fault(code, peer, now_s)
        if outbound.is_answer_due:
            return None
        if outbound.refusals >= self._bounds.refusals_max:
            return code
        self._place(passage, now_s)
        return None

    def payload_lost(self, passage: Passage, attempt: Attempt, now_s: float) -> None:
        """We had no slot for the gradient: soon the same peer again, which has counted it."""
        outbound = passage.outbound
        assert outbound is not None
        self._close(outbound, attempt)
        self.router.withdrawn(attempt.peer, attempt.number)
        outbound.pinned = attempt.peer
        outbound.retry_s = now_s + outbound.backoff_s
        passage.phase = outbound.phase

    def not_sent(self, passage: Passage, attempt: Attempt, now_s: float) -> None:
        """The question did not leave: that link is given a moment, others are asked at once."""
        ref = micro_batch_ref(passage.micro_batch, attempt.number)
        busy = Busy(ref=ref, retry_in_s=self._bounds.retry_s_max)
        self.busy(passage, attempt, busy, now_s)

    def abandon(self, passage: Passage, code: str) -> None:
        """Nobody needs to answer. The owner releases the slots."""
        if passage.outbound is not None:
            self._cancel_all(passage, passage.outbound, code)

    def _cancel_all(self, passage: Passage, outbound: Outbound, code: str) -> None:
        asked = outbound.last_asked
        for attempt in list(outbound.attempts.values()):
            self._close(outbound, attempt)
            self.router.withdrawn(attempt.peer, attempt.number)
        for peer, attempt in asked.items():
            ref = micro_batch_ref(passage.micro_batch, attempt.number)
            why = "done_already" if peer == outbound.won_by else code
            self._effects.append(Send(peer, Cancel(ref=ref, code=why)))

    def _close(self, outbound: Outbound, attempt: Attempt) -> None:
        del outbound.attempts[attempt.number]
        del self._open[attempt.number]

    # ------------------------------------------------------------------------------- next stage

    def set_candidates(self, candidates: tuple[Candidate, ...], now_s: float) -> None:
        """Replace the replicas of the next stage. What a restarted one held is sent again."""
        for peer in self.router.set_candidates(candidates):
            self._deadlines.pop(peer, None)
            self._peer_lost(peer, now_s)
        known = self.router.peers
        self._deadlines = {peer: self._deadlines[peer] for peer in known if peer in self._deadlines}

    def link_up(self, peer: PeerId) -> bool:
        """True if that is new."""
        return self.router.set_linked(peer, True)

    def link_down(self, peer: PeerId, cause: str, now_s: float) -> None:
        """Nothing that it was asked will be answered: ask others, at once."""
        self.router.set_linked(peer, False)
        self.router.unreachable(peer, now_s, is_fault=cause != "closed")
        self._peer_lost(peer, now_s)

    def _peer_lost(self, peer: PeerId, now_s: float) -> None:
        lost = [entry for entry in self._open.values() if entry[1].peer == peer]
        for passage, attempt in lost:
            outbound = passage.outbound
            assert outbound is not None
            self._close(outbound, attempt)
            outbound.fault = (peer, "unreachable")
            self._faults.fault("unreachable", peer, now_s)
            if not outbound.is_answer_due:
                self._place(passage, now_s)

    def _deadline(self, peer: PeerId) -> AdaptiveDeadline:
        deadline = self._deadlines.get(peer)
        if deadline is None:
            lo_s = min(self._bounds.hop_s_max, self._bounds.hop_s_min * self._shape.hops_below)
            deadline = AdaptiveDeadline(lo_s, self._bounds.hop_s_max)
            self._deadlines[peer] = deadline
        return deadline
