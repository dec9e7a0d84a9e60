"""Puts together what the rule of lease_choice.py must know; remembers how long we have waited."""

from __future__ import annotations

from swarmd.protocols.head_watch import HeadWatch
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import IndexSet
from swarmd.protocols.lease_choice import Choice, RoundView, choose
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.news_pace import NewsPace
from swarmd.protocols.own_work import OwnWork

WINDOW_STEPS = 2
"""How far a head runs ahead of the others before it helps them, in inner steps, where all of them
feed the same replicas of later stages."""


class LeaseTaker:
    """What is free in a round, and which of it is for us."""

    def __init__(
        self,
        own: PeerId,
        ledger: Ledger,
        work: OwnWork,
        watch: HeadWatch,
        pace: NewsPace,
        limits: LeaseLimits,
    ) -> None:
        self._own = own
        self._ledger = ledger
        self._work = work
        self._watch = watch
        self._pace = pace
        self._limits = limits
        self._could_help_s: dict[tuple[int, int], float] = {}
        """(round, index) that we might have taken from its head, since when."""

    def turn_s(self, now_s: float) -> float:
        """Until others act on what we decide now."""
        return self._pace.interval_s(len(self._watch.heads), now_s) + self._limits.news_s

    def free(self, round_number: int, now_s: float) -> tuple[IndexSet, IndexSet]:
        """(neither ended nor under a lease that counts, of these those whose lease ran out)."""
        held, stale = self._watch.held_by_others(round_number, now_s)
        free = self._ledger.all_of(round_number) - self._ledger.ended(round_number)
        free = free - held - self._work.leased(round_number)
        return free, free & stale

    def choose(self, round_number: int, began_s: float | None, now_s: float) -> Choice:
        """began_s: when we saw the first micro-batch of the round taken."""
        free, stale = self.free(round_number, now_s)
        for number, index in list(self._could_help_s):
            if number == round_number and index not in free:
                del self._could_help_s[number, index]
        shape, heads = self._ledger.shape, self._watch.heads
        view = RoundView(
            end=shape.micro_batches_of_round(round_number),
            heads=heads,
            own=self._own,
            free=free,
            returned=self._work.returned(round_number),
            stale=stale,
            window=self._window(round_number, now_s),
            turn_s=self.turn_s(now_s),
        )
        return choose(
            view,
            lambda head, ahead: self._watch.takes_in_s(head, ahead, began_s, now_s),
            lambda index: now_s - self._could_help_s.setdefault((round_number, index), now_s),
        )

    def _window(self, round_number: int, now_s: float) -> int:
        """How far our own next micro-batch may be ahead of what others have left. A head that is
        the whole pipeline steps on nobody's micro-batches but its own: it is through with these
        before it helps. What it helps with in between would all go into one of its steps."""
        shape = self._ledger.shape
        if shape.stages == 1:
            return shape.micro_batches_of_round(round_number)
        together = max(len(self._watch.heads), WINDOW_STEPS * shape.micro_batches_per_step)
        return together + self._watch.taken_unheard(now_s)

    def forget_before(self, round_number: int) -> None:
        for key in [key for key in self._could_help_s if key[0] < round_number]:
            del self._could_help_s[key]
