"""The callee's side of a hop: take a micro-batch from the stage before, or say why not.

Three answers that must not be confused: Refused with a rejection code (the caller broke a rule, and
it is counted), Refused without blame (late, expired, draining), and Busy (no room now). Nothing is
held before all of it has been checked.

Asked again by the same caller for the same bytes while still at it, this peer goes on and answers
the newest question. Asked again with other bytes, it begins anew. Asked again after its answer, it
computes again; the lane sees to it that nothing is counted twice.
"""

from __future__ import annotations

from swarmd.protocols.effects import Arrived, Send
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.pipeline import Busy, Cancel, Forward
from swarmd.protocols.passage_table import PassageTable

NO_WORKER_RETRY_S = 1.0
BUSY_RETRY_S_MIN = 0.02


class Callee:
    """Decides about what callers bring."""

    def __init__(self, table: PassageTable, round_gate: int) -> None:
        self.round_gate = round_gate
        """The latest round of which micro-batches are taken."""
        self.is_draining = False
        self._table = table

    def forward(self, event: Arrived, message: Forward, work_s: float, now_s: float) -> None:
        """`work_s`: what a micro-batch costs this peer, as of late; told to those turned away."""
        table = self._table
        code = table.shape.why_not_forward(message)
        if code is None and event.payload is None and not event.payload_refused:
            code = "malformed"
        if code is not None:
            table.reject(event.peer, code, message.ref.id)
            table.refuse(event.peer, message.ref, code)
            table.release(event.payload)
            return
        deadline_s = now_s + min(message.deadline_s, table.bounds.micro_batch_s)
        held = table.get(event.peer, message.ref.id)
        if held is not None and held.first_attempt == message.first_attempt:
            held.attempt = message.ref.attempt
            held.deadline_s = deadline_s
            table.release(event.payload)
            return
        if held is not None:
            table.drop(held, "expired")
        if self._turn_away(event, message, work_s):
            table.release(event.payload)
            return
        table.begin(
            message.ref.id,
            caller=event.peer,
            attempt=message.ref.attempt,
            first_attempt=message.first_attempt,
            samples=message.samples,
            deadline_s=deadline_s,
            payload=event.payload,
        )

    def _turn_away(self, event: Arrived, message: Forward, work_s: float) -> bool:
        """Whether it cannot be taken now, which is nobody's fault; the caller is told."""
        code = self._why_never(message)
        if code is not None:
            self._table.refuse(event.peer, message.ref, code)
            return True
        retry_in_s = self._why_not_now(event, message, work_s)
        if retry_in_s is None:
            return False
        retry_in_s = min(retry_in_s, self._table.bounds.busy_retry_s_max)
        self._table.counters.busy_sent += 1
        busy = Busy(ref=message.ref, retry_in_s=retry_in_s)
        self._table.effects.append(Send(event.peer, busy))
        return True

    def _why_never(self, message: Forward) -> str | None:
        if self._table.is_too_late(message.ref.id):
            return "late"
        if message.deadline_s <= 0:
            return "expired"
        return "draining" if self.is_draining else None

    def _why_not_now(self, event: Arrived, message: Forward, work_s: float) -> float | None:
        """The patience to ask for, or None if there is room."""
        table = self._table
        if not table.lane.is_ready:
            return NO_WORKER_RETRY_S
        has_room = (
            not event.payload_refused
            and message.ref.round <= self.round_gate
            and len(table) < table.bounds.in_flight_max
            and table.lane.forward_queue_length < table.bounds.forward_queue_max
        )
        return None if has_room else max(BUSY_RETRY_S_MIN, work_s)

    def cancel(self, peer: PeerId, message: Cancel) -> None:
        """The caller wants no answer. One that was answered already may have been counted twice."""
        if message.code == "done_elsewhere" and self._table.lane.is_counted(message.ref.id):
            self._table.counters.double_counts += 1
        passage = self._table.get(peer, message.ref.id)
        if passage is not None and passage.attempt == message.ref.attempt:
            self._table.drop(passage, message.code)

    def caller_lost(self, peer: PeerId) -> None:
        """Its link is gone: nobody wants these gradients."""
        for passage in self._table.all():
            if passage.caller == peer:
                self._table.drop(passage, "caller_lost")
