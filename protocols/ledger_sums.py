"""The rounds that a ledger no longer holds in detail, in sum: what keeps its size from growing.

Rounds are added when they have been settled for a while. Of two peers' sums the one over more
rounds knows enough for both; over the same rounds they join number by number, since late news may
have reached only one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.ledger import (
    LOST_RANGES_MAX,
    WRITERS_MAX,
    LedgerTotals,
    LostRange,
    WriterTotals,
)
from swarmd.protocols.receipts import Witnessed, pack_proved, unpack_proved
from swarmd.protocols.run_shape import RunShape


class Totals(NamedTuple):
    """Work of one peer, counted in full each time it was done."""

    micro_batches: int = 0
    samples: int = 0
    rounds: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class RoundSums:
    """One round that is to be held in sum only."""

    totals: Mapping[PeerId, Totals]
    witnessed: Mapping[bytes, Witnessed]
    """By tag (receipts.py)."""
    samples_twice: int
    lost: frozenset[LostRange]


class LedgerSums:
    """Rounds below `rounds`."""

    def __init__(self) -> None:
        self.rounds = 0
        self.totals: dict[PeerId, Totals] = {}
        self.witnessed: dict[bytes, Witnessed] = {}
        self.samples_twice = 0
        self.lost: set[LostRange] = set()

    def add(self, of_round: RoundSums) -> None:
        add_totals(self.totals, of_round.totals)
        add_witnessed(self.witnessed, of_round.witnessed)
        self.samples_twice += of_round.samples_twice
        self.lost |= of_round.lost

    def to_message(self) -> LedgerTotals:
        """As much as a message may hold; of too many writers those who did most."""
        largest = sorted(self.totals, key=lambda peer: (-self.totals[peer].samples, peer))
        return LedgerTotals(
            rounds=self.rounds,
            processed_twice=self.samples_twice,
            writers=tuple(
                WriterTotals(peer=peer, **self.totals[peer]._asdict())
                for peer in sorted(largest[:WRITERS_MAX])
            ),
            lost=tuple(sorted(self.lost, key=place_of)[:LOST_RANGES_MAX]),
            witnessed=pack_proved(self.witnessed),
        )

    def join(self, theirs: LedgerTotals) -> bool:
        """Another ledger's sums, over at least as many rounds. Whether anything changed."""
        assert theirs.rounds >= self.rounds
        before = self._all()
        if theirs.rounds > self.rounds:
            self.rounds, self.samples_twice = theirs.rounds, 0
            self.totals, self.witnessed, self.lost = {}, {}, set()
        for item in theirs.writers:
            peer = PeerId(item.peer)
            found = Totals(item.micro_batches, item.samples, item.rounds)
            mine = self.totals.get(peer, Totals())
            self.totals[peer] = Totals(*map(max, zip(mine, found, strict=True)))
        for tag, proved in unpack_proved(theirs.witnessed).items():
            self.witnessed[tag] = self.witnessed.get(tag, Witnessed()).joined(proved)
        self.samples_twice = max(self.samples_twice, theirs.processed_twice)
        self.lost |= set(theirs.lost)
        return before != self._all()

    def _all(self) -> tuple[object, ...]:
        totals, seen, lost = dict(self.totals), dict(self.witnessed), set(self.lost)
        return (self.rounds, totals, seen, self.samples_twice, lost)


def check_totals(totals: LedgerTotals, shape: RunShape) -> None:
    """Raises RemoteProtocolError (wrong_round, malformed) for what this run cannot give."""
    for number in (totals.rounds - 1, *(item.round for item in totals.lost)):
        if number >= shape.rounds:
            raise RemoteProtocolError("wrong_round", f"the run has no round {number}")
    for item in totals.lost:
        if not item.first <= item.last < shape.micro_batches_of_round(item.round):
            raise RemoteProtocolError("malformed", f"lost {item.first} to {item.last}")
    unpack_proved(totals.witnessed)


def add_totals(totals: dict[PeerId, Totals], more: Mapping[PeerId, Totals]) -> None:
    for peer, found in more.items():
        totals[peer] = totals.get(peer, Totals()).plus(found)


def add_witnessed(totals: dict[bytes, Witnessed], more: Mapping[bytes, Witnessed]) -> None:
    for tag, found in more.items():
        totals[tag] = totals.get(tag, Witnessed()).plus(found)


def place_of(lost: LostRange) -> tuple[int, int]:
    return (lost.round, lost.first)
