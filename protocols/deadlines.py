"""How long to wait for an answer: as long as such answers took, and a margin for their spread.

    deadline = clamp(median + k MAD of the last 32 exchanges, scaled by bytes, lo, hi)

(algorithms.md 4.3). Median and median absolute deviation, because one answer of 60 s must not teach
us to wait for 60 s. Until five exchanges are known the deadline is `hi`.

A deadline that passes cuts off the very observation that would have shown that it was too short,
so a peer that became slower would be given up for ever. Therefore a miss doubles the deadline, up
to `hi`, until an answer has come within the plain one again (what was sent before the last miss
says nothing new). Late answers that still arrive are observations like all others, and when they
are half of the window they are the median.
"""

from __future__ import annotations

from collections import deque
from statistics import median

WINDOW = 32
OBSERVATIONS_MIN = 5
DEVIATIONS = 6.0
"""k. Six median deviations are about four standard deviations of a normal spread."""


class AdaptiveDeadline:
    """Deadlines of one kind of exchange with one peer."""

    def __init__(
        self,
        lo_s: float,
        hi_s: float,
        *,
        deviations: float = DEVIATIONS,
        window: int = WINDOW,
        observations_min: int = OBSERVATIONS_MIN,
    ) -> None:
        assert 0 <= lo_s <= hi_s
        assert 1 <= observations_min <= window
        self.lo_s = lo_s
        self.hi_s = hi_s
        self._deviations = deviations
        self._observations_min = observations_min
        self._s_per_byte: deque[float] = deque(maxlen=window)
        self._patience = 1.0
        self._missed_at_s = float("-inf")

    def observe(self, elapsed_s: float, size_bytes: int = 1) -> None:
        """An exchange of `size_bytes` ended after `elapsed_s`, in time or not."""
        if elapsed_s <= self._plain_s(size_bytes):
            self._patience = 1.0
        self._s_per_byte.append(elapsed_s / max(1, size_bytes))

    def missed(self, sent_s: float, now_s: float) -> None:
        """The deadline of what was sent at `sent_s` passed without an answer."""
        if sent_s >= self._missed_at_s:
            self._patience = min(2.0 * self._patience, self.hi_s / max(self.lo_s, 1e-3))
            self._missed_at_s = now_s

    def typical_s(self, size_bytes: int = 1) -> float | None:
        """The median, or None while too few exchanges are known."""
        if len(self._s_per_byte) < self._observations_min:
            return None
        return median(self._s_per_byte) * max(1, size_bytes)

    def seconds(self, size_bytes: int = 1) -> float:
        """How long to wait for the answer to `size_bytes` sent now."""
        return min(self.hi_s, self._patience * self._plain_s(size_bytes))

    def _plain_s(self, size_bytes: int) -> float:
        middle_s = self.typical_s(size_bytes)
        if middle_s is None:
            return self.hi_s
        size = max(1, size_bytes)
        spread_s = median(abs(value * size - middle_s) for value in self._s_per_byte)
        return min(self.hi_s, max(self.lo_s, middle_s + self._deviations * spread_s))
