"""Who is in the swarm: one signed record a peer, joined so that order and repeats do not matter.

The join (records.py) keeps the highest (incarnation, version), whatever the path and order. Only a
peer itself can sign its record: `verify(peer, body, signature)` comes in from outside, since
floor 0 has no cryptography.

Liveness stands beside the records, because it is an opinion and not a fact: alive, suspect, dead,
left. It belongs to one life of the peer, (incarnation, refutation); news of that life or an earlier
one cannot bring a dead peer back. The dead are remembered for a day for the same reason.

Invariants: one entry a peer id; at most PEERS_MAX; every foreign record held was verified.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from swarmd.protocols import limits
from swarmd.protocols.errors import LocalProtocolError, RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import PeerRecord, Rumour, SignedRecord
from swarmd.protocols.records import Haste, haste_of, key_of, life_of, read_record, stamp_of
from swarmd.protocols.suspicion import Life
from swarmd.protocols.values import value

Verify = Callable[[PeerId, bytes, bytes], bool]
"""(peer, body, signature): did this peer's key make this signature over this body?"""


class Liveness(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


PRESENT = (Liveness.ALIVE, Liveness.SUSPECT)
"""Counted as being there. A suspect is, until its time is up."""


class Meaning(StrEnum):
    """What a record meant to the roster."""

    SAME = "same"
    OLDER = "older"
    NEW = "new"
    CHANGED = "changed"
    REFUTED = "refuted"
    """It was suspect, and contradicts."""
    RETURNED = "returned"
    """It was dead or gone, or its process has started again."""
    OWN = "own"
    """A record of ourselves that we did not make. Nothing was changed."""


class Merged(NamedTuple):
    """The outcome of taking in a record."""

    meaning: Meaning
    record: PeerRecord
    """What was sent, decoded."""
    before: PeerRecord | None = None
    """What it replaced."""
    haste: Haste = Haste.WHENEVER
    """How soon others have to hear of it."""


@value
class PeerView:
    """One peer as others see it. Replaced, never changed."""

    record: PeerRecord
    liveness: Liveness
    last_heard_s: float
    """On the machine's own clock: the last message from the peer itself, or news of it."""

    @property
    def peer(self) -> PeerId:
        return PeerId(self.record.peer)

    @property
    def is_present(self) -> bool:
        return self.liveness in PRESENT


@value
class RosterView:
    """What everybody else may know of the roster: frozen, by peer id, ourselves included."""

    peers: tuple[PeerView, ...]
    revision: int
    """Rises with every change; equal numbers mean an equal roster of the same peer."""
    shape: int
    """Rises only when more than progress changed: who is there, where, in which phase ..."""
    _index: dict[PeerId, int] = field(repr=False, compare=False)

    def get(self, peer: PeerId) -> PeerView | None:
        place = self._index.get(peer)
        return None if place is None else self.peers[place]

    def present(self) -> tuple[PeerView, ...]:
        """Those alive or suspect."""
        return tuple([view for view in self.peers if view.liveness in PRESENT])


@dataclass(slots=True)
class Entry:
    """A peer's place in the roster. Changed by Roster only."""

    record: PeerRecord
    signed: SignedRecord
    key: bytes
    liveness: Liveness = Liveness.ALIVE
    since_s: float = 0.0
    """When `liveness` last changed."""
    last_heard_s: float = 0.0
    stamp_hash: int | None = None
    """Of `fingerprint`, while nothing has changed."""
    revision: int = 0
    """The roster's, when this entry last changed."""
    death: Rumour | None = None
    """Who said so, for those who ask."""
    view: PeerView | None = None

    @property
    def life(self) -> Life:
        return life_of(self.record)

    @property
    def is_present(self) -> bool:
        return self.liveness in PRESENT

    @property
    def fingerprint(self) -> int:
        """64 bits over the stamp and on whether the peer is present; summed up in digests."""
        if self.stamp_hash is None:
            self.stamp_hash = _fingerprint(self)
        return self.stamp_hash


class Roster:
    """The records and our opinion of who lives. No timers, no messages: see membership.py."""

    def __init__(self, own: PeerId, run_id: str, verify: Verify) -> None:
        self._own = own
        self._run_id = run_id
        self._verify = verify
        self._entries: dict[PeerId, Entry] = {}
        self._ids: list[PeerId] = []
        self._by_change: dict[PeerId, Entry] = {}
        """The latest change last."""
        self._of_key: dict[bytes, PeerId] = {}
        self._of_body: dict[bytes, PeerId] = {}
        self._places: dict[PeerId, int] | None = None
        """Of the ids in order; made anew, never changed, since views hold on to it."""
        self._view: RosterView | None = None
        self._view_at_s = 0.0
        self.revision = 0
        self.shape = 0
        self.present_count = 0
        """Peers alive or suspect, ourselves included."""
        self.counters: Counter[str] = Counter()
        """Records not taken, by code; and older ones, which are normal in gossip."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PeerId]:
        """Ids in order."""
        return iter(self._ids)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def get(self, peer: PeerId) -> Entry | None:
        return self._entries.get(peer)

    def whose(self, body: bytes) -> PeerId | None:
        """Of whom we hold this very record, if of anybody."""
        return self._of_body.get(body)

    def entries(self) -> Iterator[Entry]:
        """By id."""
        return map(self._entries.__getitem__, self._ids)

    def changed_since(self, revision: int) -> list[Entry]:
        """What is new or different since then, the latest first."""
        changed = []
        for entry in reversed(self._by_change.values()):
            if entry.revision <= revision:
                break
            changed.append(entry)
        return changed

    def of_key(self, key: bytes) -> Entry | None:
        peer = self._of_key.get(key)
        return None if peer is None else self._entries[peer]

    # ---------------------------------------------------------------------------------- records

    def merge(self, signed: SignedRecord, now_s: float) -> Merged:
        """Take in a record that somebody sent.

        Raises RemoteProtocolError, with nothing changed: malformed, wrong_run, bad_signature,
        run_full.
        """
        known = self._of_body.get(signed.body)
        if known is not None:
            return Merged(Meaning.SAME, self._entries[known].record)
        try:
            record = self._check(signed)
        except RemoteProtocolError as error:
            self.counters[error.code] += 1
            raise
        peer = PeerId(record.peer)
        held = self._entries.get(peer)
        if held is not None and not _is_newer(signed, record, held):
            self.counters["duplicate"] += 1
            return Merged(Meaning.OLDER, record)
        if not self._verify(peer, signed.body, signed.signature):
            self.counters["bad_signature"] += 1
            raise RemoteProtocolError("bad_signature", f"record of {peer}")
        if peer == self._own:
            return Merged(Meaning.OWN, record)
        if held is None:
            self._make_room(now_s)
            self._insert(peer, signed, record, now_s)
            return Merged(Meaning.NEW, record, None, Haste.AT_ONCE)
        before = held.record
        haste = haste_of(held.signed, signed)
        return Merged(self._replace(held, signed, record, haste, now_s), record, before, haste)

    def put_own(self, signed: SignedRecord, record: PeerRecord, now_s: float) -> None:
        """Our own record, just signed by us."""
        held = self._entries.get(self._own)
        if held is None:
            self._insert(self._own, signed, record, now_s)
        elif stamp_of(record) <= stamp_of(held.record):
            raise LocalProtocolError("duplicate", "own record does not advance")
        else:
            self._replace(held, signed, record, haste_of(held.signed, signed), now_s)

    def _check(self, signed: SignedRecord) -> PeerRecord:
        record = read_record(signed.body)
        if record.run_id != self._run_id:
            raise RemoteProtocolError("wrong_run", f"record of run {record.run_id[:8]}")
        return record

    def _insert(self, peer: PeerId, signed: SignedRecord, record: PeerRecord, now_s: float) -> None:
        entry = Entry(record, signed, key_of(peer), since_s=now_s, last_heard_s=now_s)
        if record.phase == "left":
            entry.liveness = Liveness.LEFT
        else:
            self.present_count += 1
        self._entries[peer] = entry
        insort(self._ids, peer)
        self._places = None
        self._of_key[entry.key] = peer
        self._of_body[signed.body] = peer
        self.shape += 1
        self._touch(entry)

    def _replace(
        self, held: Entry, signed: SignedRecord, record: PeerRecord, haste: Haste, now_s: float
    ) -> Meaning:
        is_new_life = life_of(record) > held.life
        has_restarted = record.incarnation > held.record.incarnation
        before = held.liveness
        self.shape += haste is Haste.AT_ONCE
        del self._of_body[held.signed.body]
        self._of_body[signed.body] = PeerId(record.peer)
        held.record, held.signed = record, signed
        held.last_heard_s = now_s
        if record.phase == "left":
            self.set_liveness(held, Liveness.LEFT, now_s)
        elif is_new_life or held.liveness is Liveness.LEFT:
            self.set_liveness(held, Liveness.ALIVE, now_s)
        self._touch(held)
        if has_restarted or (held.is_present and before not in PRESENT):
            return Meaning.RETURNED
        is_cleared = before is Liveness.SUSPECT and held.liveness is Liveness.ALIVE
        return Meaning.REFUTED if is_cleared else Meaning.CHANGED

    # --------------------------------------------------------------------------------- liveness

    def set_liveness(self, entry: Entry, liveness: Liveness, now_s: float) -> None:
        if entry.liveness is liveness:
            return
        was_present = entry.is_present
        entry.liveness = liveness
        entry.since_s = now_s
        entry.death = None
        self.present_count += entry.is_present - was_present
        self.shape += 1
        self._touch(entry)

    def heard(self, peer: PeerId, now_s: float) -> None:
        """A message from the peer itself."""
        entry = self._entries.get(peer)
        if entry is not None:
            entry.last_heard_s = now_s

    def forget(self, peer: PeerId) -> bool:
        """Drop a peer that is not present. False if there is none such."""
        entry = self._entries.get(peer)
        if entry is None or entry.is_present:
            return False
        del self._entries[peer]
        del self._ids[bisect_left(self._ids, peer)]
        self._places = None
        del self._by_change[peer]
        del self._of_key[entry.key]
        del self._of_body[entry.signed.body]
        self.revision += 1
        self.shape += 1
        return True

    def forget_older_than(self, age_s: float, now_s: float) -> list[PeerId]:
        """Drop those dead or gone for longer than that."""
        old = [peer for peer in self._ids if self._absent_s(peer, now_s) > age_s]
        for peer in old:
            self.forget(peer)
        return old

    def _absent_s(self, peer: PeerId, now_s: float) -> float:
        entry = self._entries[peer]
        return -1.0 if entry.is_present else now_s - entry.since_s

    def _make_room(self, now_s: float) -> None:
        """Keep the bound: the one absent longest goes, and if nobody is absent, nobody comes."""
        if len(self._entries) < limits.PEERS_MAX:
            return
        longest = max(self._ids, key=lambda peer: (self._absent_s(peer, now_s), peer))
        if not self.forget(longest):
            self.counters["run_full"] += 1
            raise RemoteProtocolError("run_full", f"{limits.PEERS_MAX} peers are known")

    def _touch(self, entry: Entry) -> None:
        self.revision += 1
        entry.revision = self.revision
        peer = PeerId(entry.record.peer)
        self._by_change.pop(peer, None)
        self._by_change[peer] = entry
        entry.stamp_hash = None
        entry.view = None

    # ------------------------------------------------------------------------------------- view

    def view(self, now_s: float) -> RosterView:
        """The roster as a value. Built again when it changed, or when a second has passed."""
        held = self._view
        if held is not None and held.revision == self.revision and now_s - self._view_at_s < 1.0:
            return held
        peers = []
        for entry in self.entries():
            view = entry.view
            if view is None or view.last_heard_s != entry.last_heard_s:
                view = entry.view = PeerView(entry.record, entry.liveness, entry.last_heard_s)
            peers.append(view)
        if self._places is None:
            self._places = {peer: place for place, peer in enumerate(self._ids)}
        self._view = RosterView(tuple(peers), self.revision, self.shape, self._places)
        self._view_at_s = now_s
        return self._view


def _is_newer(signed: SignedRecord, record: PeerRecord, held: Entry) -> bool:
    theirs, ours = stamp_of(record), stamp_of(held.record)
    return theirs > ours or (theirs == ours and signed.body > held.signed.body)


def _fingerprint(entry: Entry) -> int:
    text = b"%b/%d/%d/%d" % (
        entry.key,
        entry.record.incarnation,
        entry.record.version,
        entry.is_present,
    )
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
