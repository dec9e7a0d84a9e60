"""Comparing two rosters and finding what each lacks; the messages are drawn in messages/gossip.py.

Peers are sorted into buckets by their key, and a bucket is told apart by the sum of its entries'
fingerprints: equal rosters cost 8 bytes a bucket and nothing else. About four peers a bucket, as
many buckets as the sender of the summary finds right for its own roster; the other side follows.

Opinions travel too: whom one side holds for dead and the other for alive, about that peer the
rumour goes over, so that the accused hears of it and can answer. Peers absent for half the time
after which they are forgotten are left out: else rosters that forget at different moments would
bring them back to each other for ever.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from swarmd.protocols.dissemination import size_of
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.messages.gossip import (
    NEWS_BYTES_MAX,
    NEWS_RECORDS_MAX,
    SYNC_BUCKETS_MAX,
    SYNC_ENTRY_BYTES,
    SYNC_WANTS_MAX,
    Gossip,
    Rumour,
    SignedRecord,
    SyncEntries,
    SyncSummary,
)
from swarmd.protocols.records import stamp_of
from swarmd.protocols.roster import PRESENT, Entry, Liveness, Roster

_SUM = struct.Struct(">Q")
_SUM_MAX = 0xFFFF_FFFF_FFFF_FFFF
_ENTRY = struct.Struct(">8sQQQB")
_CODES = (Liveness.ALIVE, Liveness.SUSPECT, Liveness.DEAD, Liveness.LEFT)
_PEERS_A_BUCKET = 4

assert _ENTRY.size == SYNC_ENTRY_BYTES


@dataclass(slots=True)
class Difference:
    """What the receiver of SyncEntries makes of them."""

    lacking: list[Entry] = field(default_factory=list)
    """Ours that the other side has not, or has older."""
    wanted: list[bytes] = field(default_factory=list)
    """Keys of records that it has newer, and of those whom it alone holds for dead."""
    is_cut: bool = False
    """More is wanted than one exchange may ask for."""


def bucket_count_for(peer_count: int) -> int:
    """The power of two that leaves about four peers in a bucket."""
    buckets = 1
    while buckets * _PEERS_A_BUCKET < peer_count and buckets < SYNC_BUCKETS_MAX:
        buckets *= 2
    return buckets


class AntiEntropy:
    """Reads the roster, never changes it."""

    def __init__(self, roster: Roster, told_s_max: float) -> None:
        self._roster = roster
        self._told_s_max = told_s_max

    def summary(self, now_s: float) -> SyncSummary:
        return SyncSummary(buckets=self._sums(bucket_count_for(len(self._roster)), now_s))

    def compare(self, summary: SyncSummary, now_s: float) -> SyncEntries | None:
        """Our entries in the buckets that differ; None if none does."""
        count, rest = divmod(len(summary.buckets), _SUM.size)
        if rest or not 1 <= count <= SYNC_BUCKETS_MAX or count & (count - 1):
            raise RemoteProtocolError("malformed", f"summary of {len(summary.buckets)} bytes")
        ours = self._sums(count, now_s)
        different = [
            bucket
            for bucket in range(count)
            if ours[8 * bucket : 8 * bucket + 8] != summary.buckets[8 * bucket : 8 * bucket + 8]
        ]
        if not different:
            return None
        packed = [_pack(entry) for entry in self._entries_in(set(different), count, now_s)]
        return SyncEntries(bucket_count=count, buckets=tuple(different), entries=b"".join(packed))

    def difference(self, theirs: SyncEntries, now_s: float) -> Difference:
        """Against what the other side says it has."""
        listed = _unpack(theirs)
        found = Difference()
        for entry in self._entries_in(set(theirs.buckets), theirs.bucket_count, now_s):
            other = listed.get(entry.key)
            if other is None or other.stamp < stamp_of(entry.record) or _buries(entry, other):
                found.lacking.append(entry)
        for key in sorted(listed):
            ours, other = self._roster.of_key(key), listed[key]
            if ours is None or stamp_of(ours.record) < other.stamp or _is_buried(ours, other):
                found.wanted.append(key)
        found.is_cut = len(found.wanted) > SYNC_WANTS_MAX
        del found.wanted[SYNC_WANTS_MAX:]
        return found

    def fulfil(self, wanted: tuple[bytes, ...]) -> list[Entry]:
        entries = [self._roster.of_key(key) for key in wanted]
        return [entry for entry in entries if entry is not None]

    def messages(self, entries: list[Entry], wanted: list[bytes]) -> list[Gossip]:
        """Records, with a rumour for each that is dead, in messages of bounded size."""
        made: list[Gossip] = []
        records: list[SignedRecord] = []
        rumours: list[Rumour] = []
        room_bytes = NEWS_BYTES_MAX
        for entry in entries:
            size_bytes = size_of(entry.signed)
            if room_bytes < size_bytes or len(records) == NEWS_RECORDS_MAX:
                made.append(Gossip(records=tuple(records), rumours=tuple(rumours)))
                records, rumours, room_bytes = [], [], NEWS_BYTES_MAX
            records.append(entry.signed)
            room_bytes -= size_bytes
            if entry.death is not None:
                rumours.append(entry.death)
        if records or wanted:
            made.append(
                Gossip(records=tuple(records), rumours=tuple(rumours), wanted=tuple(wanted))
            )
        return made

    def _sums(self, bucket_count: int, now_s: float) -> bytes:
        sums = [0] * bucket_count
        mask = bucket_count - 1
        for entry in self._told(now_s):
            key, stamp_hash = entry.key, entry.stamp_hash
            sums[(key[0] << 8 | key[1]) & mask] += stamp_hash or entry.fingerprint
        return struct.pack(f">{bucket_count}Q", *[total & _SUM_MAX for total in sums])

    def _entries_in(self, buckets: set[int], count: int, now_s: float) -> list[Entry]:
        mask = count - 1
        return [
            entry
            for entry in self._told(now_s)
            if (entry.key[0] << 8 | entry.key[1]) & mask in buckets
        ]

    def _told(self, now_s: float) -> list[Entry]:
        roster = self._roster
        if roster.present_count == len(roster):
            return list(roster.entries())
        since_s = now_s - self._told_s_max
        return [
            entry
            for entry in roster.entries()
            if entry.liveness in PRESENT or entry.since_s >= since_s
        ]


@dataclass(frozen=True, slots=True)
class _Listed:
    """One line of SyncEntries."""

    stamp: tuple[int, int]
    life: tuple[int, int]
    liveness: Liveness

    @property
    def is_present(self) -> bool:
        return self.liveness in PRESENT


def _buries(ours: Entry, other: _Listed) -> bool:
    """We hold for dead whom the other side holds for alive, in the same life."""
    return ours.liveness is Liveness.DEAD and other.is_present and other.life == ours.life


def _is_buried(ours: Entry, other: _Listed) -> bool:
    """The other way round."""
    return other.liveness is Liveness.DEAD and ours.is_present and other.life >= ours.life


def _pack(entry: Entry) -> bytes:
    record = entry.record
    return _ENTRY.pack(
        entry.key,
        record.incarnation,
        record.version,
        record.refutation,
        _CODES.index(entry.liveness),
    )


def _unpack(message: SyncEntries) -> dict[bytes, _Listed]:
    """By key. Raises RemoteProtocolError(malformed)."""
    count = message.bucket_count
    if len(message.entries) % SYNC_ENTRY_BYTES or count & (count - 1):
        raise RemoteProtocolError("malformed", f"{len(message.entries)} bytes of sync entries")
    listed = {}
    for key, incarnation, version, refutation, code in _ENTRY.iter_unpack(message.entries):
        if code >= len(_CODES):
            raise RemoteProtocolError("malformed", f"liveness {code}")
        listed[key] = _Listed((incarnation, version), (incarnation, refutation), _CODES[code])
    return listed
