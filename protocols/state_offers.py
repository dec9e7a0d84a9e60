"""Which of the states that donors offer is to be had: the vote on manifests. Pure.

Replicas that agree offer equal pieces; replicas that were apart in some exchange offer pieces that
differ in the last bits, so their hashes cannot be counted, but their sketches are close. So a vote
has two steps. The round of the largest group that is close together wins, and who is far from its
middle is outvoted. Of each piece the bytes that most of the group have are taken, from any of them.

With two donors that disagree there is no majority: the larger group by count, then the newer round,
then the smaller digest, and the reason says that nobody vouched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.state import Manifest
from swarmd.protocols.state_donor import digest_of

CLOSE = 0.02
"""So far apart, against their own length, two states are always close."""
CLOSE_MAX = 0.5
"""And so far apart never: another model's weights are at 1.4, the same ones negated at 2. Guesses
both; replicas were at 0.001 to 0.1 in what was measured of disagreement."""
SPREAD = 3.0
"""Between: three times as far from the middle as half of the group is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is fetched: pieces of these sizes, of this round."""

    round: int
    step: int
    size_bytes: int
    chunk_bytes: int
    middle: tuple[float, ...]
    """Of the sketches that were agreed on."""

    @property
    def pieces(self) -> int:
        return -(-self.size_bytes // self.chunk_bytes)

    def piece_bytes(self, index: int) -> int:
        """The last may be shorter."""
        return min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)


@dataclass(frozen=True, slots=True)
class Vote:
    plan: Plan
    agreed: tuple[PeerId, ...]
    outvoted: tuple[PeerId, ...]
    """They offer something else of the same round."""
    why: str
    """agreed, single (nobody else offers anything), disputed (nobody vouched)."""


def vote(offers: Mapping[PeerId, Manifest]) -> Vote:
    """At least one offer, each sound by itself (`why_not`)."""
    assert offers, "a vote on nothing"
    groups = [_group(offers, layout) for layout in sorted({_layout(m) for m in offers.values()})]
    best = max(groups, key=lambda group: (len(group), offers[group[0]].round))
    first = offers[best[0]]
    plan = Plan(first.round, first.step, first.size_bytes, first.chunk_bytes, _middle(offers, best))
    others = [p for p in sorted(offers) if p not in best and offers[p].round == first.round]
    why = "agreed" if len(best) > 1 else "disputed" if others else "single"
    return Vote(plan, tuple(best), tuple(others), why)


def is_same(plan: Plan, other: Plan) -> bool:
    """Whether pieces of one may stand beside pieces of the other."""
    sizes, others = _sizes(plan), _sizes(other)
    return sizes == others and _distance(plan.middle, other.middle) <= CLOSE_MAX


def best_hash(hashes: Sequence[bytes]) -> bytes:
    """What most donors have of a piece; if all differ, any."""
    counted = Counter(hashes)
    return min(counted, key=lambda item: (-counted[item], item))


def agreed_digest(offers: Iterable[Manifest]) -> bytes | None:
    """Of the state that is taken from them: of each piece, what most have. Offers of one layout."""
    hashes = [offer.hashes for offer in offers]
    return digest_of(tuple(map(best_hash, zip(*hashes, strict=True)))) if hashes else None


def why_not(manifest: Manifest, stage: int) -> str | None:
    """The rejection code of a manifest that cannot be right, or None."""
    if manifest.stage != stage:
        return "wrong_stage"
    if not manifest.hashes or any(len(item) != 32 for item in manifest.hashes):
        return "malformed"
    if len(manifest.hashes) != -(-manifest.size_bytes // manifest.chunk_bytes):
        return "malformed"
    return None if digest_of(manifest.hashes) == manifest.digest else "hash_mismatch"


# ------------------------------------------------------------------------------------------- pieces


_Layout = tuple[int, int, int, int, int]


def _layout(manifest: Manifest) -> _Layout:
    sizes = (manifest.size_bytes, manifest.chunk_bytes, len(manifest.sketch))
    return (manifest.round, manifest.step, *sizes)


def _sizes(plan: Plan) -> _Layout:
    sizes = (plan.size_bytes, plan.chunk_bytes, len(plan.middle))
    return (plan.round, plan.step, *sizes)


def _group(offers: Mapping[PeerId, Manifest], layout: _Layout) -> list[PeerId]:
    """The largest part of those with one layout that is close together; by peer id."""
    peers = sorted(peer for peer, manifest in offers.items() if _layout(manifest) == layout)
    middle = _middle(offers, peers)
    far = {peer: _distance(offers[peer].sketch, middle) for peer in peers}
    limit = min(CLOSE_MAX, max(CLOSE, SPREAD * median(far.values())))
    close = [peer for peer in peers if far[peer] <= limit]
    return close or [min(peers, key=lambda peer: (offers[peer].digest, peer))]


def _middle(offers: Mapping[PeerId, Manifest], peers: Sequence[PeerId]) -> tuple[float, ...]:
    """Value by value: a minority cannot move it far."""
    return tuple(map(median, zip(*(offers[peer].sketch for peer in peers), strict=True)))


def _distance(sketch: Sequence[float], middle: Sequence[float]) -> float:
    """Against the longer of the two: 2 at most."""
    size = max(math.hypot(*middle), math.hypot(*sketch))
    return math.dist(sketch, middle) / size if size else 0.0
