"""Receipts: what a peer's neighbours in the pipeline saw of its work, signed by them.

Whoever works in a round sees two kinds of others: those it called, which gave it gradients, and
those that called it, whose work it was given. At the round's end it puts what it saw of each (how
many micro-batches, how many samples) into its ledger entry of the round, all in one. Entries are
signed, told and joined as ever (ledger.py), so receipts arrive wherever the ledger does, can be
checked by anybody at any time, and say the same on every peer.

What they prove of a peer S in a stage
    first      what those it called say
    last       what its callers say
    between    the smaller of the two: one friend on one side is not enough

What S says of itself counts nothing, nor what is said twice; forged entries are refused before they
come here. A peer that colludes with both of its sides can still invent work: this is a witness, no
proof of honest computing.

A receipt names its peer by 8 bytes of hash, since most of what is told of rounds is names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.intervals import EMPTY, VARINT_MAX, IndexSet, read_varint, varint
from swarmd.protocols.messages.ledger import SEEN_MAX, TAG_BYTES, WRITERS_MAX
from swarmd.protocols.run_shape import RunShape

CALLED, CALLER = 0, 1
"""What the other was to the witness: it was called, or it was the caller."""
CAP_SLACK = 1.5
"""A claim may be so many times what was seen of the peer in the rounds before: rounds differ, and a
claim comes before the receipts of its own round do. Guess, never tuned."""
CAP_ROUNDS = 3
"""So many rounds are looked back for it, because one may have gone badly."""


class Seen(NamedTuple):
    """What a witness saw of one other in one round. Sorted as it stands here."""

    stage: int
    """The other's."""
    role: int
    tag: bytes
    micro_batches: int
    samples: int


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What all witnesses together prove of one peer."""

    micro_batches: int = 0
    samples: int = 0
    rounds: int = 0
    receipts: int = 0

    def plus(self, other: Witnessed) -> Witnessed:
        return Witnessed(
            self.micro_batches + other.micro_batches,
            self.samples + other.samples,
            self.rounds + other.rounds,
            self.receipts + other.receipts,
        )

    def joined(self, other: Witnessed) -> Witnessed:
        """Of two sums over the same rounds the one that knows more, number by number."""
        return Witnessed(
            max(self.micro_batches, other.micro_batches),
            max(self.samples, other.samples),
            max(self.rounds, other.rounds),
            max(self.receipts, other.receipts),
        )


@lru_cache(maxsize=8_192)
def tag_of(peer: PeerId) -> bytes:
    return hashlib.blake2b(peer.encode(), digest_size=TAG_BYTES, person=b"swarmd.receipt").digest()


class SeenBook:
    """What this peer itself has seen, micro-batch by micro-batch: each counts once."""

    def __init__(self, shape: RunShape) -> None:
        self._shape = shape
        self._rounds: dict[int, dict[tuple[int, int, PeerId], IndexSet]] = {}

    def add(self, micro_batch: MicroBatchId, peer: PeerId, stage: int, role: int) -> None:
        of_round = self._rounds.setdefault(micro_batch.round, {})
        before = of_round.get((stage, role, peer), EMPTY)
        of_round[stage, role, peer] = before.with_index(micro_batch.index)

    def take_back(self, micro_batch: MicroBatchId, peer: PeerId, stage: int, role: int) -> None:
        """What it gave proved useless."""
        of_round = self._rounds.get(micro_batch.round, {})
        before = of_round.get((stage, role, peer), EMPTY)
        of_round[stage, role, peer] = before.without_index(micro_batch.index)

    def of_round(self, round_number: int) -> tuple[Seen, ...]:
        found = [
            Seen(stage, role, tag_of(peer), len(indices), self._samples(round_number, indices))
            for (stage, role, peer), indices in self._rounds.get(round_number, {}).items()
            if indices
        ]
        found.sort(key=lambda seen: (-seen.samples, seen))
        return tuple(sorted(found[:SEEN_MAX]))

    def forget_before(self, round_number: int) -> None:
        for number in [number for number in self._rounds if number < round_number]:
            del self._rounds[number]

    def _samples(self, round_number: int, indices: IndexSet) -> int:
        return sum(self._shape.samples_of(MicroBatchId(round_number, index)) for index in indices)


# -------------------------------------------------------------------------------------------- wire


def pack_seen(seen: Iterable[Seen], shape: RunShape) -> bytes:
    """By stage and role: varints 2 * stage + role and how many follow; then of each its tag and
    2 * micro-batches, plus 1 if their samples are fewer than usual, and then by how many."""
    body = bytearray()
    for (stage, role), items in groupby(seen, key=lambda item: (item.stage, item.role)):
        group = list(items)
        body += varint(2 * stage + role) + varint(len(group))
        for item in group:
            missing = item.micro_batches * shape.micro_batch_samples - item.samples
            body += item.tag + varint(2 * item.micro_batches + bool(missing))
            if missing:
                body += varint(missing)
    return bytes(body)


def unpack_seen(body: bytes, shape: RunShape, round_number: int) -> tuple[Seen, ...]:
    """Raises RemoteProtocolError(malformed) for anything that no round of this run can give."""
    found: list[Seen] = []
    place = 0
    while place < len(body):
        stage_and_role, place = read_varint(body, place)
        count, place = read_varint(body, place)
        if not 1 <= count <= SEEN_MAX - len(found):
            raise RemoteProtocolError("malformed", f"{count} receipts of one kind")
        for _ in range(count):
            seen, place = _unpack_one(body, place, stage_and_role, shape)
            _check(seen, shape, round_number)
            if found and found[-1][:3] >= seen[:3]:
                raise RemoteProtocolError("malformed", "receipts out of order, or one twice")
            found.append(seen)
    return tuple(found)


def _unpack_one(body: bytes, place: int, stage_and_role: int, shape: RunShape) -> tuple[Seen, int]:
    tag = body[place : place + TAG_BYTES]
    doubled, place = read_varint(body, place + TAG_BYTES)
    micro_batches, missing = doubled // 2, 0
    if doubled % 2:
        missing, place = read_varint(body, place)
    samples = micro_batches * shape.micro_batch_samples - missing
    return Seen(stage_and_role // 2, stage_and_role % 2, tag, micro_batches, samples), place


def _check(seen: Seen, shape: RunShape, round_number: int) -> None:
    first, last = (1, shape.stages - 1) if seen.role == CALLED else (0, shape.stages - 2)
    is_possible = (
        first <= seen.stage <= last
        and 1 <= seen.micro_batches <= shape.micro_batches_of_round(round_number)
        and 1 <= seen.samples <= seen.micro_batches * shape.micro_batch_samples
    )
    if not is_possible:
        raise RemoteProtocolError("malformed", f"a receipt of {seen} in round {round_number}")


def pack_proved(proved: Mapping[bytes, Witnessed]) -> bytes:
    """Tag, then varints: micro-batches, samples, rounds, receipts. Of too many those who did most
    are kept."""
    most = sorted(proved, key=lambda tag: (-proved[tag].samples, tag))[:WRITERS_MAX]
    body = bytearray()
    for tag in sorted(most):
        found = proved[tag]
        body += tag
        for value in (found.micro_batches, found.samples, found.rounds, found.receipts):
            body += varint(min(value, VARINT_MAX))
    return bytes(body)


def unpack_proved(body: bytes) -> dict[bytes, Witnessed]:
    """Raises RemoteProtocolError(malformed)."""
    proved: dict[bytes, Witnessed] = {}
    place = 0
    while place < len(body):
        tag = body[place : place + TAG_BYTES]
        place += TAG_BYTES
        values = []
        for _ in range(4):
            value, place = read_varint(body, place)
            values.append(value)
        proved[tag] = Witnessed(*values)
    return proved


# ----------------------------------------------------------------------------------------- answers


def witnessed(
    told: Iterable[tuple[PeerId, tuple[Seen, ...]]], shape: RunShape
) -> dict[bytes, Witnessed]:
    """One round: what (witness, what it saw) together prove, by tag."""
    sides: dict[tuple[bytes, int], list[list[int]]] = {}
    receipts: dict[bytes, set[PeerId]] = {}
    for witness, seen in told:
        own = tag_of(witness)
        for item in seen:
            if item.tag == own:
                continue
            side = sides.setdefault((item.tag, item.stage), [[0, 0], [0, 0]])[item.role]
            side[0] += item.micro_batches
            side[1] += item.samples
            receipts.setdefault(item.tag, set()).add(witness)
    proved: dict[bytes, Witnessed] = {}
    for (tag, stage), (as_called, as_caller) in sorted(sides.items()):
        if stage == 0:
            micro_batches, samples = as_caller
        elif stage == shape.stages - 1:
            micro_batches, samples = as_called
        else:
            micro_batches, samples = map(min, zip(as_called, as_caller, strict=True))
        if samples:
            before = proved.get(tag, Witnessed(rounds=1, receipts=len(receipts[tag])))
            proved[tag] = before.plus(Witnessed(micro_batches, samples))
    return proved


def weight_caps(
    rounds: Iterable[Mapping[bytes, Witnessed]], peers: Iterable[PeerId], scale: float = 1.0
) -> dict[PeerId, int]:
    """The most samples that each peer's claim is believed; none where nobody was seen at all.

    rounds: what was proved in those before. Of whom nothing was, as much as of the least of the
    others is believed: its witnesses may have died. scale: this round's size over theirs.
    """
    best: dict[PeerId, int] = {}
    wanted = sorted(peers)
    for proved in rounds:
        for peer in wanted:
            found = proved.get(tag_of(peer))
            if found is not None:
                best[peer] = max(best.get(peer, 0), found.samples)
    if not best:
        return {}
    least = min(best.values())
    return {
        peer: max(1, round(CAP_SLACK * scale * best[peer]))
        if peer in best
        else max(1, round(scale * least))
        for peer in wanted
    }
