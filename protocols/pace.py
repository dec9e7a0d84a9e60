"""How fast a count rises, and when it will have risen by so much: what an ETA is made of.

Counts rise in jumps (micro-batches of many heads, a round's end, a pause for a mix), and a peer
that comes late or comes back did not make those that were there before it. So nothing is divided by
an absolute count: only what rose before this peer's eyes, over the last minutes, says how fast.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 600.0
MARKS = 60
SPAN_S_MIN = 2.0
"""Before that much was seen, nothing is said."""


class Pace:
    """`note` the count at every look, on the machine's own clock."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)
        """(when, count) of the first look and of rises since, at most one in WINDOW_S / MARKS."""
        self._count = 0

    def note(self, count: int, now_s: float) -> None:
        if not self._marks or count < self._count:
            self._marks.clear()
            self._marks.append((now_s, count))
        elif count > self._count and now_s - self._marks[-1][0] >= WINDOW_S / MARKS:
            self._marks.append((now_s, count))
        self._count = count
        while len(self._marks) > 1 and self._marks[1][0] < now_s - WINDOW_S:
            self._marks.popleft()

    def takes_s(self, more: int, now_s: float) -> float | None:
        """For the count to rise by `more` from here; None while the pace is not known."""
        if more <= 0:
            return 0.0
        since_s, first = self._marks[0] if self._marks else (math.inf, 0)
        risen, seen_s = self._count - first, now_s - since_s
        if risen < 1 or seen_s < SPAN_S_MIN:
            return None
        return more * seen_s / risen
