"""What this peer knows of the heads: who they are, in which life, how fast, and what they hold."""

from __future__ import annotations

import math
from collections.abc import Iterable

from swarmd.protocols.head_pace import ANNOUNCEMENTS_MISSED, HeadPace
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import IndexSet
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_entries import Entry


class HeadWatch:
    """A lease counts while its holder is a live head, in the life in which it took the lease, and
    for no longer than that head's leases last."""

    def __init__(self, own: PeerId, incarnation: int, ledger: Ledger, limits: LeaseLimits) -> None:
        self._own = own
        self._ledger = ledger
        self._limits = limits
        self._pace: dict[PeerId, HeadPace] = {}
        self._lives: dict[PeerId, int] = {own: incarnation}
        self.heads: tuple[PeerId, ...] = ()
        """Sorted."""
        self._calm_s = limits.calm_after_s(0)
        """Between two announcements of a head, when they are rarest."""

    def set_heads(self, heads: Iterable[PeerId], now_s: float) -> None:
        self.heads = tuple(sorted(set(heads)))
        self._calm_s = self._limits.calm_after_s(len(self.heads))
        for peer in [peer for peer in self._pace if peer not in self.heads]:
            del self._pace[peer]
        for peer in self.heads:
            if peer not in self._pace:
                self._pace[peer] = HeadPace(now_s)
                self._see_known_leases(peer, now_s)

    def _see_known_leases(self, peer: PeerId, now_s: float) -> None:
        for number in self._ledger.rounds_in_detail():
            for entry in self._ledger.entries(number):
                if entry.key.peer == peer and self._is_of_last_life(entry):
                    self._pace[peer].see_leases(entry, now_s)

    def meet(self, entry: Entry) -> None:
        """A new life of a peer ends the leases of its earlier ones."""
        peer, life = entry.key.peer, entry.key.incarnation
        if peer != self._own and life > self._lives.get(peer, -1):
            self._lives[peer] = life
            if peer in self._pace:
                self._pace[peer].forget_leases()

    def see(self, before: Entry | None, entry: Entry, now_s: float) -> None:
        """An entry became a newer one."""
        self.meet(entry)
        pace = self._pace.get(entry.key.peer)
        if pace is not None and self._is_of_last_life(entry):
            is_past = entry.key.round < self._ledger.settled
            pace.see_progress(before, entry, now_s, says_pace=not is_past)

    def forget_before(self, round_number: int) -> None:
        for pace in self._pace.values():
            pace.forget_before(round_number)

    # -------------------------------------------------------------------------------- questions

    def held_by_others(self, round_number: int, now_s: float) -> tuple[IndexSet, IndexSet]:
        """(under a lease of another head that counts, only under such that have run out)."""
        held = stale = 0
        for entry in self._ledger.entries(round_number):
            pace = self._pace.get(entry.key.peer)
            is_own = entry.key.peer == self._own
            if not entry.leased or pace is None or is_own or not self._is_of_last_life(entry):
                continue
            late = pace.overdue(round_number, now_s - pace.lease_s(self._limits, self._calm_s)).bits
            held |= entry.leased.bits & ~late
            stale |= entry.leased.bits & late
        others = ~self._ledger.ended(round_number).bits
        return IndexSet(held & others), IndexSet(stale & others & ~held)

    def takes_in_s(
        self, head: PeerId, ahead: int, began_s: float | None, now_s: float
    ) -> float | None:
        """HeadPace.takes_in_s, or infinity for a head that is quiet though the round has begun."""
        pace = self._pace[head]
        if began_s is not None and pace.is_quiet(self._limits, self._calm_s, began_s, now_s):
            return math.inf
        return pace.takes_in_s(ahead, now_s)

    def taken_unheard(self, now_s: float) -> int:
        """How many micro-batches the other heads will have taken since they told of any: each as
        fast as usual, and for no longer than it may be silent."""
        longest_s = ANNOUNCEMENTS_MISSED * self._calm_s
        others = [pace for peer, pace in self._pace.items() if peer != self._own]
        return sum(
            int(min(now_s - pace.taken_s, longest_s) / pace.stride_s)
            for pace in others
            if pace.stride_s
        )

    def lease_s(self, head: PeerId) -> float:
        """How long a lease of that head lasts, as far as we can tell."""
        pace = self._pace.get(head)
        if pace is None:
            return self._limits.lease_s_first
        return pace.lease_s(self._limits, self._calm_s)

    def _is_of_last_life(self, entry: Entry) -> bool:
        return entry.key.incarnation == self._lives.get(entry.key.peer)
