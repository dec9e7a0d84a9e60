"""Which entries two ledgers do not share, told in a few bytes each. Pure; ledger_gossip.py sends.

Fingerprints say which rounds differ. Of such a round one side lists what it holds, by a hash of the
peer and its life, the version, and two bytes of the entry's own fingerprint; the other finds in the
list what it lacks itself and what the first one lacks. So an entry crosses a link once. Entries of
one peer with one version and two contents, which only a liar signs, go both ways, and the ledger
keeps one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import VARINT_MAX, read_varint, varint
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_entries import Entry, EntryKey
from swarmd.protocols.messages.ledger import (
    UPDATE_BYTES_MAX,
    UPDATE_ENTRIES_MAX,
    WHO_BYTES,
    WRITERS_MAX,
    LedgerDigest,
    SignedEntry,
)

CHECK_BYTES = 2
ENTRY_OVERHEAD_BYTES = 128


class Held(NamedTuple):
    version: int
    check: bytes


class Difference(NamedTuple):
    """Of one round, seen from here."""

    they_lack: list[SignedEntry]
    we_lack: list[bytes]
    """Who, in order."""


class News(NamedTuple):
    """Of one round, in a list that is not whole."""

    known: list[EntryKey]
    """What both have, just so."""
    lacking: dict[bytes, int]
    """Who, and in which version, of what we lack."""


def rounds_that_differ(ledger: Ledger, theirs: LedgerDigest) -> list[int]:
    """Rounds in which either side may have what the other lacks. Where they hold a round in sum
    only there is nothing to tell them, and where we do there is nothing to learn."""
    known = {item.round: item.fingerprint for item in theirs.rounds}
    mine = {item.round: item.fingerprint for item in ledger.digest().rounds}
    differ = {number for number in known if number >= ledger.base and number not in mine}
    for number, fingerprint in mine.items():
        if number in known:
            if known[number] != fingerprint:
                differ.add(number)
        elif number >= theirs.settled and (theirs.whole or number < ledger.settled):
            differ.add(number)
    return sorted(differ)


def pack_held(ledger: Ledger, round_number: int) -> bytes:
    return pack_news(entry for entry, _ in _signed(ledger, round_number))


def compare_held(ledger: Ledger, round_number: int, body: bytes) -> Difference:
    """Raises RemoteProtocolError (malformed, wrong_round)."""
    _check_round(ledger, round_number)
    theirs = _unpack_held(body)
    they_lack = []
    for entry, signed in _signed(ledger, round_number):
        who, mine = _told(entry)
        held = theirs.get(who)
        if held == mine:
            del theirs[who]
        elif held is None or mine.version >= held.version:
            they_lack.append(signed)
            if held is not None and mine.version > held.version:
                del theirs[who]
    return Difference(they_lack, sorted(theirs))


def pack_news(entries: Iterable[Entry]) -> bytes:
    """The same list, of these only."""
    held = dict(_told(entry) for entry in entries)
    return b"".join(who + varint(item.version) + item.check for who, item in sorted(held.items()))


def read_news(ledger: Ledger, round_number: int, body: bytes) -> News:
    """Raises RemoteProtocolError (malformed, wrong_round)."""
    _check_round(ledger, round_number)
    theirs = _unpack_held(body)
    known = []
    for entry, _ in _signed(ledger, round_number):
        who, mine = _told(entry)
        held = theirs.get(who)
        if held is not None and mine.version >= held.version:
            if held == mine:
                known.append(entry.key)
            del theirs[who]
    return News(known, {who: held.version for who, held in theirs.items()})


def who_is(key: EntryKey) -> bytes:
    """How a list calls the writer of an entry."""
    return _who(key.peer, key.incarnation)


def wanted_entries(ledger: Ledger, round_number: int, wanted: bytes) -> list[SignedEntry]:
    """Raises RemoteProtocolError (malformed, wrong_round)."""
    _check_round(ledger, round_number)
    if len(wanted) % WHO_BYTES:
        raise RemoteProtocolError("malformed", f"{len(wanted)} bytes of wanted entries")
    asked = {wanted[place : place + WHO_BYTES] for place in range(0, len(wanted), WHO_BYTES)}
    return [
        signed
        for entry, signed in _signed(ledger, round_number)
        if _who(entry.key.peer, entry.key.incarnation) in asked
    ]


def _check_round(ledger: Ledger, round_number: int) -> None:
    if round_number >= ledger.shape.rounds:
        raise RemoteProtocolError("wrong_round", f"the run has no round {round_number}")


def _unpack_held(body: bytes) -> dict[bytes, Held]:
    held: dict[bytes, Held] = {}
    place, before = 0, b""
    while place < len(body):
        who = body[place : place + WHO_BYTES]
        version, place = read_varint(body, place + WHO_BYTES)
        check = body[place : place + CHECK_BYTES]
        place += CHECK_BYTES
        if place > len(body) or who <= before or len(held) == WRITERS_MAX:
            raise RemoteProtocolError("malformed", "a list of held entries")
        held[who], before = Held(version, check), who
    return held


def _signed(ledger: Ledger, round_number: int) -> list[tuple[Entry, SignedEntry]]:
    entries = ledger.entries(round_number)
    return [(entry, entry.signed) for entry in entries if entry.signed is not None]


def _told(entry: Entry) -> tuple[bytes, Held]:
    check = entry.fingerprint.to_bytes(8, "big")[:CHECK_BYTES]
    who = _who(entry.key.peer, entry.key.incarnation)
    return who, Held(min(entry.version, VARINT_MAX), check)


@lru_cache(maxsize=8_192)
def _who(peer: PeerId, incarnation: int) -> bytes:
    text = f"{peer}/{incarnation}".encode()
    return hashlib.blake2b(text, digest_size=WHO_BYTES, person=b"swarmd.writer").digest()


def batches(
    entries: list[SignedEntry], bytes_max: int | None = None
) -> Iterator[list[SignedEntry]]:
    """Cut to what one message may hold; no more than `bytes_max` in all, but at least one entry."""
    batch: list[SignedEntry] = []
    batch_bytes = total_bytes = 0
    for signed in entries:
        size_bytes = len(signed.body) + ENTRY_OVERHEAD_BYTES
        total_bytes += size_bytes
        if bytes_max is not None and total_bytes > bytes_max and total_bytes > size_bytes:
            break
        is_full = batch_bytes + size_bytes > UPDATE_BYTES_MAX or len(batch) == UPDATE_ENTRIES_MAX
        if batch and is_full:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(signed)
        batch_bytes += size_bytes
    if batch:
        yield batch
