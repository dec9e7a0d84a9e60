"""How fast each head works, as seen from here: how long its leases last, how often it starts one.

Fed with its entries as they arrive, so everything is later and coarser than in truth by what an
announcement takes. Medians, because a pause between rounds says nothing about the pace.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from swarmd.protocols.intervals import IndexSet
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.ledger_entries import Entry

WINDOW = 32
OBSERVATIONS_MIN = 3
QUIET_STRIDES = 3.0


class HeadPace:
    """One head."""

    def __init__(self, now_s: float) -> None:
        self.heard_s = now_s
        """When it last told of progress."""
        self.taken_s = now_s
        """When it last told that it had taken a micro-batch."""
        self._since_s: dict[tuple[int, int], float] = {}
        """(round, index) of its open leases to when they were first seen."""
        self._durations_s: deque[float] = deque(maxlen=WINDOW)
        self._strides_s: deque[float] = deque(maxlen=WINDOW)

    def see_leases(self, entry: Entry, now_s: float) -> None:
        """What it holds in a round, as of now."""
        number = entry.key.round
        for key in [key for key in self._since_s if key[0] == number]:
            if key[1] in entry.leased:
                continue
            since_s = self._since_s.pop(key)
            if key[1] in entry.done:
                self._durations_s.append(now_s - since_s)
        for index in entry.leased:
            self._since_s.setdefault((number, index), now_s)

    def see_progress(self, before: Entry | None, entry: Entry, now_s: float) -> None:
        """Its entry of a round was replaced by a newer one."""
        self.see_leases(entry, now_s)
        taken = len(entry.taken - before.taken) if before else len(entry.taken)
        if taken:
            self._strides_s.append((now_s - self.taken_s) / taken)
            self.taken_s = now_s
        if taken or before is None or entry.done != before.done:
            self.heard_s = now_s

    def forget_leases(self) -> None:
        """It is no head any more, or has started again."""
        self._since_s.clear()

    def forget_before(self, round_number: int) -> None:
        for key in [key for key in self._since_s if key[0] < round_number]:
            del self._since_s[key]

    def overdue(self, round_number: int, since_s: float) -> IndexSet:
        """Of a round, the leases first seen before `since_s`."""
        return IndexSet.of(
            index
            for (number, index), seen_s in self._since_s.items()
            if number == round_number and seen_s < since_s
        )

    def lease_s(self, limits: LeaseLimits) -> float:
        """After how long a lease of this head is free again."""
        if len(self._durations_s) < OBSERVATIONS_MIN:
            return limits.lease_s_first
        usual_s = limits.lease_medians * median(self._durations_s)
        return min(limits.lease_s_max, max(limits.lease_s_min, usual_s))

    @property
    def stride_s(self) -> float | None:
        """From one micro-batch it takes to the next; None while that is not known."""
        return median(self._strides_s) if len(self._strides_s) >= OBSERVATIONS_MIN else None

    def is_quiet(self, limits: LeaseLimits, since_s: float, now_s: float) -> bool:
        """Nothing was heard for much longer than usual, though there was work since `since_s`."""
        usual_s = QUIET_STRIDES * (self.stride_s or 0.0)
        return now_s - max(self.heard_s, since_s) > max(limits.quiet_s, usual_s)

    def takes_in_s(self, ahead: int, now_s: float) -> float | None:
        """In how long, at the earliest, it should take a micro-batch that has `ahead` others of its
        own before it; negative when overdue, None while its pace is not known."""
        if self.stride_s is None:
            return None
        return self.taken_s + ahead * self.stride_s - now_s
