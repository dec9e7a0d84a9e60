"""When a head tells what it holds and has done: rarely where nobody needs it, soon where they do.

In the middle of a round every head goes on with its own share, and all know how fast (HeadPace):
news changes nobody's mind. Towards the end others may take over what is left, and every moment in
which they do not know costs micro-batches done twice. So the wait between two announcements is a
part of what remains of the round, within bounds that follow from how many heads there are
(lease_limits.py).
"""

from __future__ import annotations

import math

from swarmd.protocols.effects import SetTimer
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.round_gate import RoundGate

FLUSH = "leases/flush"
COALESCE_S = 0.02
"""A burst of grants goes into one announcement. No timer is shorter."""


class NewsPace:
    """Of one peer's announcements, whatever they say."""

    def __init__(self, limits: LeaseLimits, ledger: Ledger, gate: RoundGate) -> None:
        self._limits = limits
        self._ledger = ledger
        self._gate = gate
        self._flushed_s = -math.inf
        self._due_s = math.inf
        """When the timer that runs fires; infinity without one."""

    def interval_s(self, heads: int, now_s: float) -> float:
        """Between two announcements of heads, as things stand."""
        return self._limits.news_after_s(heads, self._remaining_s(now_s))

    def plan(self, heads: int, now_s: float, is_urgent: bool) -> list[SetTimer]:
        """Something is to be told. Urgent: others wait for it."""
        limits = self._limits
        interval_s = limits.flush_after_s(heads) if is_urgent else self.interval_s(heads, now_s)
        due_s = max(now_s + COALESCE_S, self._flushed_s + interval_s)
        if due_s >= self._due_s:
            return []
        self._due_s = due_s
        return [SetTimer(FLUSH, due_s - now_s)]

    def flushed(self, now_s: float) -> None:
        self._flushed_s, self._due_s = now_s, math.inf

    def _remaining_s(self, now_s: float) -> float | None:
        """Of the oldest round that has not ended; None while nothing tells."""
        number = self._ledger.settled
        began_s = self._gate.began_s(number)
        ended = len(self._ledger.ended(number))
        if began_s is None or not ended:
            return None
        left = len(self._ledger.all_of(number)) - ended
        return (now_s - began_s) * left / ended
