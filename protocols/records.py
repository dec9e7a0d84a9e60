"""What can be said of a signed record by itself: its stamp, its life, which of two stands.

`join` keeps the record with the highest (incarnation, version); it is commutative, associative and
idempotent, so peers that have heard the same records hold the same, whatever the path and order.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter

from swarmd.protocols import limits, wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import KEY_BYTES, PHASES, PeerRecord, SignedRecord
from swarmd.protocols.suspicion import Life

PROGRESS_FIELDS = frozenset({"tokens_per_s", "memory_bytes", "step", "micro_batches"})
"""What changes all the time. Changes of these alone may wait."""
SHAPELESS_FIELDS = PROGRESS_FIELDS | {"round"}
"""What decides on nobody's stage, links or work. Everything else is the shape of the swarm."""
_shape_values = attrgetter(
    *sorted({item.name for item in fields(PeerRecord)} - SHAPELESS_FIELDS - {"version"})
)


class Haste(IntEnum):
    """How soon a piece of news has to be told, and to how many."""

    WHENEVER = 0
    """Progress: on probes, to a few links; the next piece overtakes it."""
    SOON = 1
    """A round has ended, here as on every peer at about the same time: to all, but gathered, and
    not before progress is due: nothing hangs on it but the run's end, which is insisted on."""
    AT_ONCE = 2
    """A claim, a death, a refutation ...: others act on it."""


def stamp_of(record: PeerRecord) -> tuple[int, int]:
    return (record.incarnation, record.version)


def life_of(record: PeerRecord) -> Life:
    return (record.incarnation, record.refutation)


def haste_of(before: SignedRecord, after: SignedRecord) -> Haste:
    """Of the news that a peer's record has changed so."""
    shape, round_before = _told_by(before.body)
    new_shape, round_after = _told_by(after.body)
    if shape != new_shape:
        return Haste.AT_ONCE
    return Haste.WHENEVER if round_before == round_after else Haste.SOON


def join(a: SignedRecord, b: SignedRecord) -> SignedRecord:
    """The one of two records of a peer that stands.

    A peer that signed two different bodies with one stamp has equivocated; then the larger bytes
    win, so that all agree.
    """
    rank_a = (stamp_of(read_record(a.body)), a.body)
    rank_b = (stamp_of(read_record(b.body)), b.body)
    return a if rank_a >= rank_b else b


@lru_cache(maxsize=2_048)
def read_record(body: bytes) -> PeerRecord:
    """Decode a record's body. Raises RemoteProtocolError(malformed).

    Cached because the same bytes arrive from several neighbours.
    """
    record = wire.decode(body)
    if not isinstance(record, PeerRecord):
        raise RemoteProtocolError("malformed", f"a {type(record).__name__} for a record")
    if record.phase not in PHASES or not record.peer:
        raise RemoteProtocolError("malformed", f"record of {record.peer!r} in {record.phase!r}")
    return record


@lru_cache(maxsize=2_048)
def _told_by(body: bytes) -> tuple[tuple[object, ...], int]:
    """(what others act on, the round), kept for the same reason."""
    record = read_record(body)
    return _shape_values(record), record.round


@lru_cache(maxsize=limits.PEERS_MAX)
def key_of(peer: PeerId) -> bytes:
    """A peer's short name in digests."""
    return hashlib.blake2b(peer.encode(), digest_size=KEY_BYTES).digest()
