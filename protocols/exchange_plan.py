"""What an exchange is, settled before it begins; and what came of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.mixing import MixRef, Offer
from swarmd.protocols.mix_parts import PartLayout
from swarmd.protocols.outer_rules import OuterRules, Range
from swarmd.protocols.raw_by_peer import RawByPeer

WINDOW_SLOTS = 32
WINDOW_MAX = 16
"""A part takes about three turns in the queue of a worker that computes meanwhile: packed, reduced,
taken. What is under way at once so bounds how much a mix gets done beside a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """One mix of one round in one group, as this member sees it."""

    ref: MixRef
    members: tuple[PeerId, ...]
    """Ascending; messages name them by their place."""
    own: PeerId
    rules: OuterRules
    layout: PartLayout
    weight: int
    """Ours. 0: we receive and are not counted."""
    norm: float
    """Of our whole vector."""
    usual_norm: float = 0.0
    """How long outer gradients usually are, or (Mix1) how far starts usually lie apart."""
    resets: bool = False
    """Mix2: we were too far off, and start again from the group's mean."""
    excluded: Mapping[PeerId, str] = field(default_factory=dict)
    """Not waited for, and why: silent the last time (until they speak), out of reach, or caught."""
    tardy: frozenset[PeerId] = frozenset()
    """Too late the last time: taken if they come, not waited for."""
    weight_caps: Mapping[PeerId, int] = field(default_factory=dict)
    """What neighbours saw of each: no claim beyond it counts."""

    @property
    def mix(self) -> int:
        return self.ref.mix

    @property
    def window(self) -> int:
        """Parts under way to one reducer at a time. Its slots: window times members, for inputs,
        and window for means."""
        return max(1, min(WINDOW_MAX, WINDOW_SLOTS // (len(self.members) + 1)))

    def range_of(self, part: int) -> Range:
        return Range(self.layout.first(part), self.layout.size(part))

    def share_of(self, part: int) -> float:
        """Of a vector's length, what a part has if all coordinates are alike."""
        return math.sqrt(self.layout.size(part) / self.layout.elements)

    def offer(self, *, wants_reply: bool) -> Offer:
        return Offer(
            ref=self.ref,
            elements=self.layout.elements,
            wire=self.layout.wire.name,
            weight=self.weight,
            norm=self.norm,
            wants_reply=wants_reply,
        )

    def why_not_offer(self, offer: Offer) -> str:
        """The rejection code of an offer that cannot be of this exchange; "" if it can."""
        if offer.elements != self.layout.elements:
            return "wrong_shape"
        return "" if offer.wire == self.layout.wire.name else "wrong_dtype"


@dataclass(slots=True)
class ExchangeBytes:
    """Payloads only; raw: as 32-bit numbers, every coordinate."""

    raw_sent: int = 0
    wire_sent: int = 0
    raw_received: int = 0
    wire_received: int = 0
    raw_by_peer: RawByPeer = field(default_factory=RawByPeer)

    def sent(self, peer: PeerId, elements: int, size_bytes: int) -> None:
        self.raw_sent += 4 * elements
        self.wire_sent += size_bytes
        self.raw_by_peer.add(peer, sent=4 * elements)

    def received(self, peer: PeerId, elements: int, size_bytes: int) -> None:
        self.raw_received += 4 * elements
        self.wire_received += size_bytes
        self.raw_by_peer.add(peer, received=4 * elements)

    def add(self, other: ExchangeBytes) -> None:
        self.raw_sent += other.raw_sent
        self.wire_sent += other.wire_sent
        self.raw_received += other.raw_received
        self.wire_received += other.wire_received
        self.raw_by_peer.add_all(other.raw_by_peer)


@dataclass(slots=True)
class ExchangeRecord:
    """What an exchange has come to, part by part."""

    parts_of: Counter[int] = field(default_factory=Counter)
    """Who is in (a bit each) to how many of our parts have just them."""
    kept: list[int] = field(default_factory=list)
    """Parts for which we keep our own values."""
    rejected: Counter[tuple[int, str]] = field(default_factory=Counter)
    """(member, code) to how many parts we ourselves left it out of, or clipped it in."""
    told: Counter[tuple[int, str]] = field(default_factory=Counter)
    """The same by other reducers' word: shown, and held against nobody."""
    bytes: ExchangeBytes = field(default_factory=ExchangeBytes)
    was_late: bool = False
    """A member told us that it had gone on without us."""
    decided_s: float | None = None
    """When the last of our parts was decided."""

    @property
    def mixed_parts(self) -> int:
        return sum(self.parts_of.values()) - len(self.kept)

    def included(self, own: int) -> int:
        """Those who are in every part that has a mean (a bit each); we alone, if none has."""
        mixed = self.parts_of.copy()
        mixed[1 << own] -= len(self.kept)
        everywhere = -1
        for bits, parts in mixed.items():
            if parts > 0:
                everywhere &= bits
        return 1 << own if everywhere < 0 else everywhere
