"""Who looks at which held-out micro-batch: forward-only ones at the end of a round.

They are split over the heads as leases are, but there are few, nothing hangs on them, and doing one
twice costs a forward pass; so nobody announces that it has begun. Whoever a micro-batch is meant
for takes it at once; when no score has come for as long as one of its leases lasts, the others may,
one after the other. Nobody begins one again that it has under way itself, however long that takes.
"""

from __future__ import annotations

from swarmd.protocols.head_watch import HeadWatch
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.intervals import IndexSet
from swarmd.protocols.lease_choice import place_in_line, share_of
from swarmd.protocols.ledger import Ledger


class HeldOutTurns:
    """Remembers what we have begun."""

    def __init__(self, own: PeerId, ledger: Ledger, watch: HeadWatch) -> None:
        self._own = own
        self._ledger = ledger
        self._watch = watch
        self._begun: set[MicroBatchId] = set()

    def next(self, ended_s: float | None, turn_s: float, now_s: float) -> MicroBatchId | None:
        """One of the round that ended last, at `ended_s` as far as we saw it.

        turn_s: from one helper in the line to the next.
        """
        number = self._ledger.settled - 1
        end = self._ledger.shape.held_out_micro_batches
        if number < self._ledger.base or end == 0 or self._own not in self._watch.heads:
            return None
        mine = share_of(self._own, self._watch.heads, end)
        scored = IndexSet.of(self._ledger.held_out_scores(number))
        for index in IndexSet.full(end) - scored:
            micro_batch = MicroBatchId(number, index, held_out=True)
            if micro_batch in self._begun:
                continue
            free_at_s = self._free_at_s(micro_batch, index in mine, ended_s, turn_s)
            if free_at_s is not None and free_at_s <= now_s:
                self._begun.add(micro_batch)
                return micro_batch
        return None

    def _free_at_s(
        self, micro_batch: MicroBatchId, is_mine: bool, ended_s: float | None, turn_s: float
    ) -> float | None:
        if ended_s is None or is_mine:
            return ended_s
        heads = self._watch.heads
        owner = heads[micro_batch.index % len(heads)]
        turns = place_in_line(self._own, heads, micro_batch.index)
        return ended_s + self._watch.lease_s(owner) + turns * turn_s

    def failed(self, micro_batch: MicroBatchId) -> None:
        """What we had begun gave no score: anybody may try again."""
        self._begun.discard(micro_batch)

    def forget_before(self, round_number: int) -> None:
        self._begun = {one for one in self._begun if one.round >= round_number}
