"""Which pieces of a state are there, on their way, or missing; and what to ask of whom next.

Every donor begins at another place, so that donors give different pieces from the start, and those
who join at one instant have different pieces to give on. A piece is asked of one donor at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.state import Manifest
from swarmd.protocols.state_offers import Plan, best_hash


@dataclass(slots=True)
class Donor:
    """What became of a peer that was asked."""

    outcome: str = "asked"
    manifest: Manifest | None = None
    bytes_received: int = 0
    heard_s: float = 0.0
    avoid_until_s: float = 0.0
    resume_s: float = 0.0
    """It gives nothing more before: its rate."""

    @property
    def is_engaged(self) -> bool:
        return self.outcome in ("asked", "offers", "gives")


@dataclass(slots=True)
class Pieces:
    """Of one plan. `own`: whose order it is."""

    plan: Plan
    own: PeerId
    missing: set[int] = field(default_factory=set)
    asked: dict[int, PeerId] = field(default_factory=dict)
    writing: dict[int, tuple[int, PeerId]] = field(default_factory=dict)
    """Token to piece and whose it was."""
    bytes_done: int = 0
    bytes_refetched: int = 0
    """What arrived, and had to be asked for again."""
    bytes_kept: int = 0
    """Of `bytes_done`: what an earlier life had fetched."""

    _places: dict[PeerId, int] = field(default_factory=dict)
    """By donor: where the search for its next piece begins."""

    def __post_init__(self) -> None:
        self.missing = set(range(self.plan.pieces))

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.asked or self.writing)

    def keep(self, found: tuple[bytes, ...], size_bytes: int, offers: list[Manifest]) -> None:
        """Of a file that is there already, what a donor would give."""
        for index, digest in enumerate(found[: self.plan.pieces]):
            is_long = index * self.plan.chunk_bytes + self.plan.piece_bytes(index) <= size_bytes
            if is_long and any(digest == offer.hashes[index] for offer in offers):
                self.missing.discard(index)
                self.bytes_kept += self.plan.piece_bytes(index)
        self.bytes_done += self.bytes_kept

    def asked_of(self, peer: PeerId) -> int:
        return sum(donor == peer for donor in self.asked.values())

    def ask(self, peer: PeerId, offers: Mapping[PeerId, Manifest]) -> int | None:
        """The next piece for this donor: the first one missing, from its own place on, that it has
        as most have it."""
        if not self.missing:
            return None
        count = self.plan.pieces
        first = self._places.get(peer, _place(self.own, peer))
        for ahead in range(count):
            index = (first + ahead) % count
            if index in self.missing and offers[peer].hashes[index] == best_hash(
                [offer.hashes[index] for offer in offers.values()]
            ):
                self.missing.discard(index)
                self.asked[index] = peer
                self._places[peer] = index + 1
                return index
        return None

    def give_back(self, index: int) -> None:
        """It did not come."""
        if self.asked.pop(index, None) is not None:
            self.missing.add(index)

    def leave(self, peer: PeerId) -> None:
        """Nothing more is expected of this donor."""
        for index in [index for index, donor in self.asked.items() if donor == peer]:
            self.give_back(index)

    def arrived(self, index: int, token: int) -> None:
        self.writing[token] = (index, self.asked.pop(index))

    def written(self, token: int) -> None:
        index, _ = self.writing.pop(token)
        self.bytes_done += self.plan.piece_bytes(index)

    def spoilt(self, token: int) -> tuple[int, PeerId]:
        """It could not be kept. Returns the piece, and whose it was."""
        index, peer = self.writing.pop(token)
        self.missing.add(index)
        self.bytes_refetched += self.plan.piece_bytes(index)
        return index, peer


def _place(own: PeerId, peer: PeerId) -> int:
    digest = hashlib.blake2b(f"{own}/{peer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
