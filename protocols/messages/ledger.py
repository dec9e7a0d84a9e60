"""What heads tell about the micro-batches of a round, and how ledgers are compared.

A `LedgerEntry` is everything that one life of one peer has to say of one round: what it holds, what
it has done. Only that peer can sign it, and a later version replaces an earlier one, so entries may
be repeated, reordered, lost and passed on by anybody. Comparing sends each entry once, to whoever
lacks it, and of those that both have no more than a few bytes:

    A -> B  LedgerDigest   how far A is, and a fingerprint of each round it holds in detail
    B -> A  LedgerHeld     which entries B has of each round that differs (or LedgerTotals, if A is
                           behind what B holds in detail), then B's own digest, marked as an answer,
                           if A is further
    A -> B  LedgerUpdate   those that B lacks, and
            LedgerWanted   which ones A lacks
    B -> A  LedgerUpdate   those

In a large swarm news is passed on in the same way: LedgerHeld, marked as news, to many, and the
entry itself only to who asks for it with LedgerWanted.

All of these travel without the names of their fields, which would weigh more than most entries.
"""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.schema import (
    Message,
    flag,
    message,
    nested,
    number,
    raw,
    sequence,
    text,
    uint,
)

INDEX_SET_BYTES_MAX = limits.MICRO_BATCHES_PER_ROUND_MAX // 8 + 1
LEASES_OPEN_MAX = 1_024
"""Micro-batches one head may hold in one round: far above any pipeline's depth."""
HELD_OUT_MAX = 1_024
"""Forward-only micro-batches a round; 64 sequences are usual."""
ENTRY_BYTES_MAX = 512 * limits.KIB
UPDATE_ENTRIES_MAX = 1_024
UPDATE_BYTES_MAX = 64 * limits.KIB
"""Entries are put into one message up to this size, or one alone if it is larger."""
ROUNDS_IN_DETAIL_MAX = 256
"""Rounds of which single entries are held at all; usually ten."""
WRITERS_MAX = 4_096
"""Peers that have ever been a head."""
LOST_RANGES_MAX = 4_096
FINGERPRINT_BYTES = 8
NOBODY, HEADS, EVERYBODY = range(3)
"""How far news shall go. Nobody: all who need it have been told, or will ask."""
TAG_BYTES = 8
"""Of a peer's id, in receipts. Fewer could be matched by making keys until one fits."""
WHO_BYTES = 6
"""Of a peer and its life, where entries are compared. Who collides is compared less well, no more.
"""
HELD_BYTES_MAX = WRITERS_MAX * (WHO_BYTES + 5 + 2)
SEEN_MAX = 1_024
"""Others that one entry tells of; more are left out, those with the least samples first."""
SEEN_BYTES_MAX = SEEN_MAX * (TAG_BYTES + 20)
WITNESSED_BYTES_MAX = WRITERS_MAX * (TAG_BYTES + 20)


@message(60, in_order=True)
class HeldOutScore(Message):
    """One forward-only micro-batch."""

    index: int = uint(HELD_OUT_MAX)
    samples: int = uint(1 << 20, low=1)
    loss_sum: float = number(-1e12, 1e12)
    """Sum over samples of the mean loss per token, nats."""


@message(61, in_order=True)
class LedgerEntry(Message):
    """What `peer` in its life `incarnation` says of one round. The highest version stands."""

    peer: str = text(limits.NAME_CHARS_MAX)
    incarnation: int = uint()
    version: int = uint()
    round: int = uint(limits.ROUND_MAX)
    leased: bytes = raw(INDEX_SET_BYTES_MAX)
    """IndexSet: held now. Neither done nor given back."""
    done: bytes = raw(INDEX_SET_BYTES_MAX)
    """IndexSet: ended with a gradient. Only ever grows."""
    lost: bytes = raw(INDEX_SET_BYTES_MAX, default=b"")
    """IndexSet: given up for good, and reported. Empty bytes: none. Only ever grows."""
    loss_sum: float = number(-1e15, 1e15, default=0.0)
    """Over the samples of `done`: sum of the mean loss per token, nats."""
    held_out: tuple[HeldOutScore, ...] = sequence(nested(HeldOutScore), HELD_OUT_MAX)
    witnessed: bytes = raw(SEEN_BYTES_MAX, default=b"")
    """Receipts: what its neighbours in the pipeline did, as it saw it (receipts.py)."""


@message(62, in_order=True)
class SignedEntry(Message):
    """A LedgerEntry's bytes (as wire.encode gives them) and its peer's signature over the run and
    them (ledger_entries.py): an entry of another run is a forged one here."""

    body: bytes = raw(ENTRY_BYTES_MAX)
    signature: bytes = raw(64)


@message(63, in_order=True)
class LedgerUpdate(Message):
    """Entries that the sender believes the receiver lacks."""

    entries: tuple[SignedEntry, ...] = sequence(nested(SignedEntry), UPDATE_ENTRIES_MAX)
    reach: int = uint(EVERYBODY, default=EVERYBODY)
    """To whom the receiver shall pass on what is new to it: NOBODY, HEADS or EVERYBODY."""


@message(64, in_order=True)
class RoundDigest(Message):
    round: int = uint(limits.ROUND_MAX)
    fingerprint: bytes = raw(FINGERPRINT_BYTES)


@message(65, in_order=True)
class LedgerDigest(Message):
    """Compares two ledgers. All rounds below `settled` have ended."""

    settled: int = uint(limits.ROUND_MAX)
    rounds: tuple[RoundDigest, ...] = sequence(nested(RoundDigest), ROUNDS_IN_DETAIL_MAX)
    answer: bool = flag(default=False)
    """True: the other side of an exchange that was asked for; do not answer with a digest."""
    whole: bool = flag(default=True)
    """Nothing is held of later rounds than those that stand here. False: nothing is said of them.
    """


@message(66, in_order=True)
class WriterTotals(Message):
    """All that a peer has done in the rounds that are no longer held in detail."""

    peer: str = text(limits.NAME_CHARS_MAX)
    micro_batches: int = uint()
    samples: int = uint()
    rounds: int = uint(limits.ROUND_MAX)


@message(67, in_order=True)
class LostRange(Message):
    """Micro-batches first..last of a round that were given up and that nobody has done."""

    round: int = uint(limits.ROUND_MAX)
    first: int = uint(limits.MICRO_BATCHES_PER_ROUND_MAX)
    last: int = uint(limits.MICRO_BATCHES_PER_ROUND_MAX)


@message(68, in_order=True)
class LedgerTotals(Message):
    """The rounds below `rounds`, which have ended, in sum: for a peer that comes late. Not signed:
    see ledger_gossip.py."""

    rounds: int = uint(limits.ROUND_MAX)
    processed_twice: int = uint()
    """Samples that were worked on more than once, counted once."""
    writers: tuple[WriterTotals, ...] = sequence(nested(WriterTotals), WRITERS_MAX)
    lost: tuple[LostRange, ...] = sequence(nested(LostRange), LOST_RANGES_MAX)
    witnessed: bytes = raw(WITNESSED_BYTES_MAX, default=b"")
    """What receipts prove of each peer in those rounds (receipts.py, pack_proved)."""


@message(69, in_order=True)
class LedgerHeld(Message):
    """What the sender holds of a round: all, where the receiver's digest differs from its own; or
    what it has just heard, for whoever lacks it to ask for."""

    round: int = uint(limits.ROUND_MAX)
    held: bytes = raw(HELD_BYTES_MAX)
    """One after the other: who (WHO_BYTES), the version as a varint, two bytes of fingerprint."""
    news: bool = flag(default=False)
    """True: only what is new to the sender stands here. What does not is no sign that it lacks it.
    """


@message(59, in_order=True)
class LedgerWanted(Message):
    """Entries that the receiver has told to hold and the sender lacks."""

    round: int = uint(limits.ROUND_MAX)
    wanted: bytes = raw(WRITERS_MAX * WHO_BYTES)
    """Who, WHO_BYTES each."""
    news: bool = flag(default=False)
    """True: they were told as news, and whoever gets them tells of them in turn."""


assert 3 * INDEX_SET_BYTES_MAX + HELD_OUT_MAX * 48 + SEEN_BYTES_MAX <= ENTRY_BYTES_MAX
assert ENTRY_BYTES_MAX + UPDATE_BYTES_MAX < limits.CONTROL_MESSAGE_BYTES_MAX
assert (
    WRITERS_MAX * 160 + LOST_RANGES_MAX * 40 + WITNESSED_BYTES_MAX
    < limits.CONTROL_MESSAGE_BYTES_MAX
)
