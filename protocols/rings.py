"""Who keeps a link to whom: neighbours on a few pseudo-random rings.

Every peer id has a pseudo-random place on each of K rings; a peer's neighbours are the next and the
previous one on each. All peers derive the same rings from the same roster, so nothing has to be
agreed on: no join, shuffle or disconnect messages as in HyParView, which serves peers that know
only a part of the swarm. Ours know all of it. K random rings are an expander: news crosses N peers
in O(log N) hops, and the fall of any few peers does not cut it. Each peer is watched by 2K others,
and when those fall too, the next ones on the rings take over (as in Rapid, arXiv 1803.03620).

In a small swarm everybody is everybody's neighbour.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from functools import lru_cache

from swarmd.protocols import limits
from swarmd.protocols.ids import PeerId

PLACE_BYTES = 8
RINGS_MAX = 8
"""BLAKE2b gives 64 bytes at once."""


@lru_cache(maxsize=limits.PEERS_MAX)
def _places(peer: PeerId) -> tuple[tuple[int, PeerId], ...]:
    """The peer's place on each ring, with its name as it stands there."""
    digest = hashlib.blake2b(b"ring/" + peer.encode()).digest()
    return tuple(
        (int.from_bytes(digest[PLACE_BYTES * ring : PLACE_BYTES * (ring + 1)], "big"), peer)
        for ring in range(RINGS_MAX)
    )


class Rings:
    """The places of all peers that are present."""

    def __init__(self, ring_count: int, full_mesh_max: int) -> None:
        assert 1 <= ring_count <= RINGS_MAX
        self._full_mesh_max = full_mesh_max
        self._found: dict[PeerId, tuple[PeerId, ...]] = {}
        """Neighbours that were asked for since the rings last changed."""
        self._rings: list[list[tuple[int, PeerId]]] = [[] for _ in range(ring_count)]

    def __len__(self) -> int:
        return len(self._rings[0])

    def add(self, peer: PeerId) -> None:
        """Harmless if it is there."""
        for ring, place in zip(self._rings, _places(peer), strict=False):
            here = bisect_left(ring, place)
            if here == len(ring) or ring[here] != place:
                insort(ring, place)
                self._found.clear()

    def remove(self, peer: PeerId) -> None:
        """Harmless if it is not there."""
        for ring, place in zip(self._rings, _places(peer), strict=False):
            here = bisect_left(ring, place)
            if here < len(ring) and ring[here] == place:
                del ring[here]
                self._found.clear()

    def neighbours(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Those that should keep a link to `peer` (itself on the rings or not), by id."""
        found = self._found.get(peer)
        if found is None:
            found = self._found[peer] = tuple(sorted(self._find(peer)))
        return found

    def _find(self, peer: PeerId) -> set[PeerId]:
        if len(self) <= self._full_mesh_max:
            return {other for _, other in self._rings[0] if other != peer}
        found: set[PeerId] = set()
        for ring, place in zip(self._rings, _places(peer), strict=False):
            here = bisect_left(ring, place)
            is_on_it = here < len(ring) and ring[here][1] == peer
            found.add(ring[here - 1][1])
            found.add(ring[(here + is_on_it) % len(ring)][1])
        found.discard(peer)
        return found
