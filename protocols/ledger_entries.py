"""One entry of the ledger: read from a peer's bytes with every value checked, and signed by us.

Reading is where a peer's claims meet the run: no index that the round does not have, no lease on
what has ended, no score of a micro-batch that is not held out. Whether the signature is right is
asked last, because it costs most (ledger.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from swarmd.protocols import wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.messages.ledger import (
    FINGERPRINT_BYTES,
    LEASES_OPEN_MAX,
    HeldOutScore,
    LedgerEntry,
    SignedEntry,
)
from swarmd.protocols.receipts import Seen, pack_seen, unpack_seen
from swarmd.protocols.run_shape import RunShape

Sign = Callable[[bytes], bytes]
"""Our own key's signature over some bytes."""


class EntryKey(NamedTuple):
    round: int
    peer: PeerId
    incarnation: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A LedgerEntry whose every value was checked. `signed` is None while ours is being changed."""

    key: EntryKey
    version: int
    leased: IndexSet = EMPTY
    done: IndexSet = EMPTY
    lost: IndexSet = EMPTY
    loss_sum: float = 0.0
    held_out: tuple[HeldOutScore, ...] = ()
    witnessed: tuple[Seen, ...] = ()
    signed: SignedEntry | None = None

    @property
    def taken(self) -> IndexSet:
        """All that nobody else needs to take."""
        return self.leased | self.done | self.lost

    @property
    def rank(self) -> tuple[int, bytes]:
        """Of two entries with one key the higher rank stands. A peer that signs two bodies with one
        version has equivocated; then the larger bytes win, so that all agree."""
        return (self.version, self.signed.body if self.signed else b"")

    @property
    def fingerprint(self) -> int:
        """64 bits; 0 for what nobody else can have yet."""
        return _fingerprint(self.signed.body) if self.signed else 0

    @property
    def size_bytes(self) -> int:
        return len(self.signed.body) + len(self.signed.signature) if self.signed else 0


def what_is_signed(body: bytes, shape: RunShape) -> bytes:
    """The run is part of it, though not of the entry: it need not travel with each of them."""
    return b"swarmd.ledger/" + shape.run_id.encode() + body


def read_entry(signed: SignedEntry, shape: RunShape) -> Entry:
    """Leaves the signature aside. Raises RemoteProtocolError: malformed, wrong_round."""
    plain = _decoded(signed.body)
    if plain.round >= shape.rounds or not plain.peer:
        raise RemoteProtocolError("wrong_round", f"the run has no round {plain.round}")
    end = shape.micro_batches_of_round(plain.round)
    leased = IndexSet.from_bytes(plain.leased, end)
    done = IndexSet.from_bytes(plain.done, end)
    lost = IndexSet.from_bytes(plain.lost, end) if plain.lost else EMPTY
    if len(leased) > LEASES_OPEN_MAX or leased & (done | lost) or done & lost:
        raise RemoteProtocolError("malformed", f"{len(leased)} leases, or ended ones among them")
    _check_held_out(plain.held_out, shape)
    key = EntryKey(plain.round, PeerId(plain.peer), plain.incarnation)
    return Entry(
        key,
        plain.version,
        leased,
        done,
        lost,
        plain.loss_sum,
        plain.held_out,
        unpack_seen(plain.witnessed, shape, plain.round),
        signed=signed,
    )


def sign_entry(entry: Entry, shape: RunShape, sign: Sign) -> Entry:
    """The same entry, ready for others."""
    body = wire.encode(
        LedgerEntry(
            peer=entry.key.peer,
            incarnation=entry.key.incarnation,
            version=entry.version,
            round=entry.key.round,
            leased=entry.leased.to_bytes(),
            done=entry.done.to_bytes(),
            lost=entry.lost.to_bytes() if entry.lost else b"",
            loss_sum=entry.loss_sum,
            held_out=entry.held_out,
            witnessed=pack_seen(entry.witnessed, shape),
        )
    )
    return replace(
        entry, signed=SignedEntry(body=body, signature=sign(what_is_signed(body, shape)))
    )


def _check_held_out(scores: tuple[HeldOutScore, ...], shape: RunShape) -> None:
    if len({score.index for score in scores}) < len(scores):
        raise RemoteProtocolError("malformed", "a held-out micro-batch is scored twice")
    for score in scores:
        if score.index >= shape.held_out_micro_batches or score.samples > shape.micro_batch_samples:
            raise RemoteProtocolError("malformed", f"the run has no held-out {score.index}")


@lru_cache(maxsize=4_096)
def _decoded(body: bytes) -> LedgerEntry:
    """Cached because the same bytes arrive from several neighbours."""
    plain = wire.decode(body)
    if not isinstance(plain, LedgerEntry):
        raise RemoteProtocolError("malformed", f"a {type(plain).__name__} for a ledger entry")
    return plain


@lru_cache(maxsize=4_096)
def _fingerprint(body: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(body, digest_size=FINGERPRINT_BYTES).digest(), "big")
