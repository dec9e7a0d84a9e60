"""What this peer did in the last ten rounds: what is shown as its speed and its utilisation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from swarmd.protocols.stage_past import Spent

LOOK_S = 2.0
ROUNDS = 10


class RecentRounds:
    """now: the round that is on, and what was spent since the start."""

    def __init__(self, now: Callable[[], tuple[int, Spent]]) -> None:
        self._now = now
        self._marks: deque[tuple[int, Spent]] = deque(maxlen=ROUNDS + 1)
        """(round, what was spent when it began here)."""

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            self.note()
            await trio.sleep(LOOK_S)

    def note(self) -> None:
        number, spent = self._now()
        if not self._marks or number != self._marks[-1][0]:
            self._marks.append((number, spent))

    def of(self, spent: Spent) -> Spent:
        """Of `spent`, what belongs to the last ten rounds and the present one."""
        return spent if len(self._marks) <= 1 else spent.minus(self._marks[0][1])
