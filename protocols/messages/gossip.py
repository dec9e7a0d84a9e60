"""What peers tell about themselves and each other. Owned by roster.py and membership.py.

News travels in two forms. A signed record is a fact: its peer wrote it. A rumour is an accusation
("suspect", "dead"), signed by the accuser, and the accused answers with a record of a higher
refutation. Both ride on probes and acknowledgements; what is urgent goes at once in a `Gossip`.

Anti-entropy compares rosters by bucket hashes first, so that equal rosters cost a few bytes:

    A -> B  SyncSummary   hashes of A's buckets
    B -> A  SyncEntries   what B has in the buckets that differ; nothing if none does
    A -> B  Gossip        the records that B lacks, and the keys of those that A wants
    B -> A  Gossip        those
"""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.messages.state import GUARDED_MAX, GuardedStage
from swarmd.protocols.schema import (
    Message,
    flag,
    message,
    nested,
    number,
    optional,
    raw,
    sequence,
    text,
    uint,
)

RECORD_BYTES_MAX = 4 * limits.KIB
PHASES = ("joining", "syncing", "active", "draining", "left")
VERDICTS = ("suspect", "dead")

KEY_BYTES = 8
"""A peer's name in digests: the first bytes of BLAKE2b of its id."""
SYNC_BUCKETS_MAX = 1_024
SYNC_ENTRY_BYTES = 33
"""Key, incarnation, version, refutation (8 bytes each, big-endian), liveness (1)."""
SYNC_WANTS_MAX = 512
"""Records asked for at once; what is left is asked for in the next exchange."""
SAVED_ROUNDS_MAX = 8
NEWS_RECORDS_MAX = 256
NEWS_RUMOURS_MAX = 256
NEWS_BYTES_MAX = 32 * limits.KIB
"""Of all news in one message: a probe must never wait long behind gossip."""


@message(20)
class SignedRecord(Message):
    """A PeerRecord's bytes (as wire.encode gives them) and its peer's signature over them."""

    body: bytes = raw(RECORD_BYTES_MAX)
    signature: bytes = raw(64)


@message(21)
class PeerRecord(Message):
    """What one peer says of itself. Only it can sign; the highest (incarnation, version) wins."""

    peer: str = text(limits.NAME_CHARS_MAX)
    incarnation: int = uint()
    version: int = uint()
    run_id: str = text(64)
    name: str = text()
    phase: str = text()
    """One of PHASES."""
    stage: int | None = optional(uint(limits.STAGES_MAX))
    """None: an observer, or not assigned yet."""
    pinned: bool = flag(default=False)
    cordoned: bool = flag(default=False)
    lacks_data: bool = flag(default=False)
    """The run's data are not where it is: it can hold no first stage."""
    addresses: tuple[str, ...] = sequence(text(limits.ADDRESS_CHARS_MAX), limits.ADDRESSES_MAX)
    """Where libp2p listens, as multiaddresses without the /p2p part."""
    bulk_addresses: tuple[str, ...] = sequence(text(limits.ADDRESS_CHARS_MAX), limits.ADDRESSES_MAX)
    protocol_min: int = uint(65_535, default=1)
    protocol_max: int = uint(65_535, default=1)
    tokens_per_s: float = number(0.0, 1e12, default=0.0)
    """Measured capacity at its stage (or by the dry step before it has one)."""
    memory_bytes: int = uint(default=0)
    """What its device may use for a stage."""
    round: int = uint(limits.ROUND_MAX, default=0)
    step: int = uint(limits.STEP_MAX, default=0)
    micro_batches: int = uint(default=0)
    """Done so far in this incarnation; what tells a stalled peer from a working one."""
    refutation: int = uint(default=0)
    """Raised each time the peer contradicts an accusation: what SWIM calls its incarnation. It is
    kept apart so that an incarnation means a start of the process, and nothing else."""
    observer: bool = flag(default=False)
    """Never holds a stage, and is never counted as one that trains."""
    settled: bool = flag(default=False)
    """Has held its stage for the minimum dwell: may be asked to move for the swarm's sake."""
    mixes_from: int = uint(limits.ROUND_MAX, default=0)
    """The first outer round in which it exchanges with its stage's replicas: told a round ahead, so
    that all count it in at the same one."""
    recent_starts: int = uint(1 << 16, default=0)
    """Starts within assignment.FLAP_WINDOW_S, this one included, as its own disk remembers."""
    saved_rounds: tuple[int, ...] = sequence(uint(limits.ROUND_MAX), SAVED_ROUNDS_MAX)
    """Of `stage`: the rounds that it could go on from by its own disk, until it holds a state."""
    guarded: tuple[GuardedStage, ...] = sequence(nested(GuardedStage), GUARDED_MAX)
    """Snapshots of other stages that it gives to whoever takes such a stage."""


@message(22)
class Rumour(Message):
    """`accuser` finds `peer` suspect or dead. Holds for this life of the peer and earlier ones."""

    peer: str = text(limits.NAME_CHARS_MAX)
    incarnation: int = uint()
    refutation: int = uint()
    verdict: str = text(8)
    """One of VERDICTS."""
    accuser: str = text(limits.NAME_CHARS_MAX)
    signature: bytes = raw(64, default=b"")
    """The accuser's, over the run id and this message without it (accusers.py)."""


def _records() -> tuple[SignedRecord, ...]:
    made: tuple[SignedRecord, ...] = sequence(nested(SignedRecord), NEWS_RECORDS_MAX)
    return made


def _rumours(count_max: int = NEWS_RUMOURS_MAX) -> tuple[Rumour, ...]:
    made: tuple[Rumour, ...] = sequence(nested(Rumour), count_max)
    return made


@message(23)
class Probe(Message):
    """Are you there? Answered with an Ack of the same sequence number, at once."""

    sequence: int = uint()
    link_wanted: bool = flag(default=True)
    """False: as far as the sender is concerned, this link may be closed."""
    records: tuple[SignedRecord, ...] = _records()
    rumours: tuple[Rumour, ...] = _rumours()


@message(24)
class Ack(Message):
    """Yes."""

    sequence: int = uint()
    link_wanted: bool = flag(default=True)
    records: tuple[SignedRecord, ...] = _records()
    rumours: tuple[Rumour, ...] = _rumours()


@message(25)
class ProbeRequest(Message):
    """I cannot hear `target`: can you? Answered with a ProbeReply, in the end always."""

    sequence: int = uint()
    target: str = text(limits.NAME_CHARS_MAX)
    rumours: tuple[Rumour, ...] = _rumours(1)
    """Of what it stands accused, if the question comes from hearsay: the helper tells it."""


@message(26)
class ProbeReply(Message):
    """Whether the helper heard the target just now."""

    sequence: int = uint()
    heard: bool = flag()


@message(27)
class Gossip(Message):
    """News, and the keys of peers whose records the sender wants."""

    records: tuple[SignedRecord, ...] = _records()
    rumours: tuple[Rumour, ...] = _rumours()
    wanted: tuple[bytes, ...] = sequence(raw(KEY_BYTES), SYNC_WANTS_MAX)


@message(28)
class SyncSummary(Message):
    """The sender's roster as 8-byte sums, one a bucket. The bucket count is a power of two."""

    buckets: bytes = raw(8 * SYNC_BUCKETS_MAX)


@message(29)
class SyncEntries(Message):
    """All that the sender has in those buckets, SYNC_ENTRY_BYTES an entry."""

    bucket_count: int = uint(SYNC_BUCKETS_MAX, low=1)
    buckets: tuple[int, ...] = sequence(uint(SYNC_BUCKETS_MAX), SYNC_BUCKETS_MAX)
    entries: bytes = raw(SYNC_ENTRY_BYTES * limits.PEERS_MAX)
