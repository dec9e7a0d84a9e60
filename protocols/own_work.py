"""What this peer holds, has done and has seen, by round: what its ledger entries are made of."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field

from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.ledger_entries import Entry, EntryKey
from swarmd.protocols.messages.ledger import HeldOutScore
from swarmd.protocols.receipts import Seen, SeenBook
from swarmd.protocols.run_shape import RunShape


@dataclass(slots=True)
class _Round:
    version: int = 0
    leased: IndexSet = EMPTY
    done: IndexSet = EMPTY
    lost: IndexSet = EMPTY
    returned: IndexSet = EMPTY
    """Given back, and not taken again by us since."""
    loss_sum: float = 0.0
    held_out: dict[int, HeldOutScore] = field(default_factory=dict)
    witnessed: tuple[Seen, ...] = ()


def check_result(
    micro_batch: MicroBatchId, loss_sum: float, samples: int, possible: Container[int]
) -> None:
    """Of one micro-batch that has ended. Raises LocalProtocolError(malformed)."""
    if not math.isfinite(loss_sum) or samples not in possible:
        raise LocalProtocolError("malformed", f"{micro_batch}: {samples} samples, {loss_sum}")


class OwnWork:
    """Leases begin with `grant` and end once: with `done`, `give_back` or `lose`."""

    def __init__(self, own: PeerId, incarnation: int, shape: RunShape) -> None:
        self._own = own
        self._incarnation = incarnation
        self.seen = SeenBook(shape)
        self._rounds: dict[int, _Round] = {}

    def key(self, round_number: int) -> EntryKey:
        return EntryKey(round_number, self._own, self._incarnation)

    def entry(self, round_number: int) -> Entry:
        """The round as it stands, to be signed. Every change has raised its version."""
        mine = self._rounds.get(round_number, _Round())
        return Entry(
            self.key(round_number),
            mine.version,
            mine.leased,
            mine.done,
            mine.lost,
            mine.loss_sum,
            tuple(mine.held_out[index] for index in sorted(mine.held_out)),
            mine.witnessed,
        )

    def leased(self, round_number: int) -> IndexSet:
        mine = self._rounds.get(round_number)
        return mine.leased if mine else EMPTY

    def returned(self, round_number: int) -> IndexSet:
        mine = self._rounds.get(round_number)
        return mine.returned if mine else EMPTY

    def held(self) -> list[MicroBatchId]:
        """All open leases, in order."""
        return [
            MicroBatchId(number, index)
            for number in sorted(self._rounds)
            for index in self._rounds[number].leased
        ]

    def held_count(self) -> int:
        return sum(len(mine.leased) for mine in self._rounds.values())

    # ---------------------------------------------------------------------------------- changes

    def grant(self, micro_batch: MicroBatchId) -> None:
        mine = self._rounds.setdefault(micro_batch.round, _Round())
        assert micro_batch.index not in mine.leased
        mine.version += 1
        mine.leased = mine.leased.with_index(micro_batch.index)
        mine.returned = mine.returned.without_index(micro_batch.index)

    def done(self, micro_batch: MicroBatchId, loss_sum: float) -> None:
        """Raises LocalProtocolError(unknown_lease), as do the others, if it is not held."""
        mine = self._end(micro_batch)
        mine.done = mine.done.with_index(micro_batch.index)
        mine.loss_sum += loss_sum

    def give_back(self, micro_batch: MicroBatchId) -> None:
        mine = self._end(micro_batch)
        if micro_batch.index not in mine.done:
            mine.returned = mine.returned.with_index(micro_batch.index)

    def lose(self, micro_batch: MicroBatchId) -> None:
        mine = self._end(micro_batch)
        if micro_batch.index not in mine.done:
            mine.lost = mine.lost.with_index(micro_batch.index)

    def score(self, micro_batch: MicroBatchId, score: HeldOutScore) -> None:
        """A held-out micro-batch; the first score stands."""
        mine = self._rounds.setdefault(micro_batch.round, _Round())
        if score.index not in mine.held_out:
            mine.version += 1
            mine.held_out[score.index] = score

    def tell_seen(self, round_number: int) -> bool:
        """Put what was seen of others so far into the entry. False if it says so already."""
        seen = self.seen.of_round(round_number)
        mine = self._rounds.setdefault(round_number, _Round())
        if seen == mine.witnessed:
            return False
        mine.version += 1
        mine.witnessed = seen
        return True

    def forget_before(self, round_number: int) -> None:
        """Those without a lease: what was done in them is in the ledger's sums."""
        self.seen.forget_before(round_number)
        for number in [number for number in self._rounds if number < round_number]:
            if not self._rounds[number].leased:
                del self._rounds[number]

    def _end(self, micro_batch: MicroBatchId) -> _Round:
        mine = self._rounds.get(micro_batch.round)
        if mine is None or micro_batch.index not in mine.leased:
            raise LocalProtocolError("unknown_lease", str(micro_batch))
        mine.version += 1
        mine.leased = mine.leased.without_index(micro_batch.index)
        return mine
