"""How fast each head works, as seen from here: how long its leases last, how often it starts one.

Fed with its entries as they arrive, so everything is later and coarser than in truth by what an
announcement takes. Medians, because a pause between rounds says nothing about the pace.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.ledger_entries import Entry

WINDOW = 32
OBSERVATIONS_MIN = 3
QUIET_STRIDES = 3.0
ANNOUNCEMENTS_MISSED = 2.0
"""A head that was to be heard so many times, and was not, is late."""


class HeadPace:
    """One head."""

    def __init__(self, now_s: float) -> None:
        self.heard_s = now_s
        """When it last told of progress."""
        self.taken_s = now_s
        """When it last told that it had taken a micro-batch."""
        self._since_s: dict[int, dict[int, float]] = {}
        """By round: the indices of its open leases, and when each was first seen."""
        self._durations_s: deque[float] = deque(maxlen=WINDOW)
        self._strides_s: deque[float] = deque(maxlen=WINDOW)
        self._usual_s: float | None = None
        self.stride_s: float | None = None
        """From one micro-batch it takes to the next; None while that is not known."""

    def see_leases(self, entry: Entry, now_s: float) -> None:
        """What it holds in a round, as of now."""
        since_s = self._since_s.setdefault(entry.key.round, {})
        for index in [index for index in since_s if index not in entry.leased]:
            begun_s = since_s.pop(index)
            if index in entry.done:
                self._durations_s.append(now_s - begun_s)
                self._usual_s = _usual(self._durations_s)
        for index in entry.leased:
            since_s.setdefault(index, now_s)

    def see_progress(
        self, before: Entry | None, entry: Entry, now_s: float, *, says_pace: bool = True
    ) -> None:
        """Its entry of a round was replaced by a newer one. says_pace: it comes as it was done, and
        not later, all at once."""
        self.see_leases(entry, now_s)
        taken = len(entry.taken - before.taken) if before else len(entry.taken)
        if taken and says_pace:
            self._strides_s.append((now_s - self.taken_s) / taken)
            self.stride_s = _usual(self._strides_s)
        if taken:
            self.taken_s = now_s
        if taken or before is None or entry.done != before.done:
            self.heard_s = now_s

    def forget_leases(self) -> None:
        """It is no head any more, or has started again."""
        self._since_s.clear()

    def forget_before(self, round_number: int) -> None:
        for number in [number for number in self._since_s if number < round_number]:
            del self._since_s[number]

    def overdue(self, round_number: int, since_s: float) -> IndexSet:
        """Of a round, the leases first seen before `since_s`."""
        seen_s = self._since_s.get(round_number)
        if not seen_s or min(seen_s.values()) >= since_s:
            return EMPTY
        return IndexSet.of(index for index, begun_s in seen_s.items() if begun_s < since_s)

    def lease_s(self, limits: LeaseLimits, calm_s: float) -> float:
        """After how long a lease of this head is free again. calm_s: between its announcements,
        when they are rarest."""
        if self._usual_s is None:
            return limits.lease_s_first
        lease_s = max(limits.lease_s_min, limits.lease_medians * self._usual_s)
        return min(limits.lease_s_max, max(lease_s, ANNOUNCEMENTS_MISSED * calm_s))

    def is_quiet(self, limits: LeaseLimits, calm_s: float, since_s: float, now_s: float) -> bool:
        """Nothing was heard for much longer than usual, though there was work since `since_s`."""
        usual_s = max(QUIET_STRIDES * (self.stride_s or 0.0), ANNOUNCEMENTS_MISSED * calm_s)
        return now_s - max(self.heard_s, since_s) > max(limits.quiet_s, usual_s)

    def takes_in_s(self, ahead: int, now_s: float) -> float | None:
        """In how long, at the earliest, it should take a micro-batch that has `ahead` others of its
        own before it; negative when overdue, None while its pace is not known."""
        if self.stride_s is None:
            return None
        return self.taken_s + ahead * self.stride_s - now_s


def _usual(times_s: deque[float]) -> float | None:
    return median(times_s) if len(times_s) >= OBSERVATIONS_MIN else None
