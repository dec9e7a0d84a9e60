"""The caller's side of a hop: what an answer from the next stage means for its passage.

hop.py knows who was asked and asks the next one; here it is decided whether an answer is one. Only
an answer to an open question counts, so a second gradient, or one that comes after its micro-batch
has ended, changes nothing.
"""

from __future__ import annotations

from swarmd.protocols.effects import Arrived
from swarmd.protocols.jobs import BufferRef
from swarmd.protocols.messages.pipeline import Busy, Gradient, Refused
from swarmd.protocols.passage import Attempt, Passage
from swarmd.protocols.passage_table import PassageTable
from swarmd.protocols.receipts import CALLED


class Caller:
    """Decides about what callees answer."""

    def __init__(self, table: PassageTable) -> None:
        self._table = table

    def answered(self, event: Arrived, message: Gradient | Busy | Refused, now_s: float) -> None:
        """A passage may go on, be asked for elsewhere, or fail; others may profit from the news."""
        table = self._table
        found = table.hop.find(event.peer, message.ref)
        if found is None:
            table.counters.stale_answers += 1
            table.release(event.payload)
            return
        passage, attempt = found
        if isinstance(message, Gradient):
            self._gradient(passage, attempt, event, message, now_s)
        elif isinstance(message, Busy):
            table.release(event.payload)
            table.counters.busy_received += 1
            table.hop.busy(passage, attempt, message, now_s)
            return
        else:
            table.release(event.payload)
            table.counters.refused_received += 1
            self._fail_if(passage, table.hop.refused(passage, attempt, message, now_s))
        table.hop.place_waiting(table.all(), now_s)

    def _gradient(
        self, passage: Passage, attempt: Attempt, event: Arrived, message: Gradient, now_s: float
    ) -> None:
        table = self._table
        if event.payload_refused:
            table.hop.payload_lost(passage, attempt, now_s)
            return
        has_payload = event.payload is not None
        code = table.shape.why_not_gradient(message, passage.samples, has_payload)
        if code is not None:
            table.release(event.payload)
            table.reject(event.peer, code, passage.micro_batch)
            self._fail_if(passage, table.hop.failed(passage, attempt, code, now_s))
            return
        table.hop.won(passage, attempt, message, now_s)
        table.saw(passage, attempt.peer, CALLED)
        passage.loss_sum = message.loss_sum
        self._carry_on(passage, event.payload)

    def _carry_on(self, passage: Passage, gradient: BufferRef | None) -> None:
        if gradient is None:
            self._table.answer(passage, None)
        else:
            passage.gradient = gradient
            self._table.lane.queue_backward(passage)

    def _fail_if(self, passage: Passage, code: str | None) -> None:
        if code is not None:
            self._table.fail(passage, code)
