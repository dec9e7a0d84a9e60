"""When a round opens: with the last lease of the one before, or when that one takes too long.

A deadline that follows from how long rounds have taken keeps one micro-batch that nobody can finish
from stopping the run; how far rounds may run ahead of it is bounded all the same.

Only rounds that were seen from their beginning say how long one takes. Who comes late, or was cut
off, hears of several rounds within a moment; taken for short ones, they would open the next round
long before its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.limits import ROUNDS_OPEN_MAX

ROUNDS_REMEMBERED = 10


class RoundGate:
    """A round that is open stays open. Rounds open one after the other."""

    def __init__(self, limits: LeaseLimits, rounds: int) -> None:
        self._limits = limits
        self._rounds = rounds
        self._opened_s: dict[int, float] = {}
        self._began_s: dict[int, float] = {}
        self._ended_s: dict[int, float] = {}
        self._came_late: set[int] = set()
        """Rounds that we opened when others were in later ones, or before we had heard of any."""
        self._durations_s: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)
        self.newest = -1
        """The newest open round; -1 before the first look."""

    def look(
        self, settled: int, newest_told: int, is_all_leased: Callable[[int], bool], now_s: float
    ) -> list[int]:
        """Open what may be opened. Returns the rounds that just did.

        settled: the first round that has not ended; it and those before are open anyhow.
        newest_told: the last round that others are known to have begun.
        """
        before = self.newest
        if settled > self.newest:
            self._open(min(settled, self._rounds - 1), now_s)
        while self._may_open_next(settled, is_all_leased, now_s):
            self._open(self.newest + 1, now_s)
        opened = range(before + 1, self.newest + 1)
        heard_of = newest_told if before >= 0 else self._rounds
        self._came_late.update(number for number in opened if number < heard_of)
        return list(opened)

    def _may_open_next(
        self, settled: int, is_all_leased: Callable[[int], bool], now_s: float
    ) -> bool:
        following = self.newest + 1
        if following >= self._rounds or following - settled >= ROUNDS_OPEN_MAX:
            return False
        if now_s - self._opened_s[self.newest] > self.deadline_s:
            return True
        return following - settled <= 1 and is_all_leased(self.newest)

    def _open(self, round_number: int, now_s: float) -> None:
        self.newest = round_number
        self._opened_s[round_number] = now_s

    @property
    def deadline_s(self) -> float:
        """How long after its opening a round keeps the next one shut."""
        if not self._durations_s:
            return self._limits.round_s_first
        usual_s = self._limits.round_medians * median(self._durations_s)
        return max(self._limits.round_s_min, usual_s)

    def began(self, round_number: int, now_s: float) -> None:
        """Somebody has taken a micro-batch of it."""
        self._began_s.setdefault(round_number, now_s)

    def began_s(self, round_number: int) -> float | None:
        return self._began_s.get(round_number)

    def seen_since_s(self, round_number: int) -> float | None:
        """As `began_s`; None, too, for a round that we came late to."""
        return None if round_number in self._came_late else self.began_s(round_number)

    def ended(self, round_number: int, now_s: float) -> None:
        """Its last micro-batch has ended."""
        self._ended_s[round_number] = now_s
        opened_s = self._opened_s.get(round_number)
        if opened_s is not None and round_number not in self._came_late:
            self._durations_s.append(now_s - opened_s)

    def ended_s(self, round_number: int) -> float | None:
        return self._ended_s.get(round_number)

    def forget_before(self, round_number: int) -> None:
        for times in (self._opened_s, self._began_s, self._ended_s):
            for number in [number for number in times if number < round_number]:
                del times[number]
        self._came_late = {number for number in self._came_late if number >= round_number}
