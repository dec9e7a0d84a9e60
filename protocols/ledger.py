"""Who has done which micro-batch: the same answer on every peer, whatever the order of the news.

The ledger is a set of entries, one for each (round, peer, incarnation), and the highest version of
each stands. Joining two ledgers is therefore commutative, associative and idempotent. Each entry is
signed by the peer it speaks of: nobody can claim or deny work in another's name. All else follows
from the entries:

    done of a round     the union of what its entries have done: an index counts once
    lost                what an entry has given up for good and nobody has done
    ended               done or lost; a round has ended when every index of it has
    processed twice     what the entries have done in sum, less the union: never hidden
    loss of a round     the entries' loss sums over the entries' samples

Rounds that have ended and have been for a while are kept in sum only (`roll_up`), so the ledger's
size does not grow with the run: eight rounds stay in detail, but in a large swarm, where a round is
long and much is said of it, as few as two. Of two peers that have rolled up to different rounds the
one further on knows enough for both.

Held-out micro-batches are scored one by one: if two peers scored the same, the entry with the
smaller key counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.ledger_entries import Entry, EntryKey, read_entry, what_is_signed
from swarmd.protocols.ledger_sums import (
    LedgerSums,
    RoundSums,
    Totals,
    add_totals,
    add_witnessed,
    check_totals,
    place_of,
)
from swarmd.protocols.limits import KIB
from swarmd.protocols.messages.ledger import (
    FINGERPRINT_BYTES,
    ROUNDS_IN_DETAIL_MAX,
    WRITERS_MAX,
    HeldOutScore,
    LedgerDigest,
    LedgerTotals,
    LostRange,
    RoundDigest,
    SignedEntry,
)
from swarmd.protocols.receipts import CAP_ROUNDS, Witnessed, weight_caps, witnessed
from swarmd.protocols.run_shape import RunShape

ROUNDS_KEPT = 8
"""Rounds in detail behind the last settled one: for late news, and for who asks for their loss."""
ROUNDS_KEPT_MIN = 2
"""However large they are: the last one's receipts are still on their way."""
KEPT_BYTES_MAX = 384 * KIB
"""Of entries of rounds that have ended; of more than that only ROUNDS_KEPT_MIN rounds are kept."""
ROUNDS_AHEAD_MAX = 64
"""Entries further ahead of what is settled here are not held; totals bring us there first."""

Verify = Callable[[PeerId, bytes, bytes], bool]
"""(peer, bytes, signature): did this peer's key make this signature over these bytes?"""


@dataclass(slots=True)
class RoundLedger:
    """One round in detail. Changed by Ledger only."""

    entries: dict[EntryKey, Entry] = field(default_factory=dict)
    done: IndexSet = EMPTY
    ended: IndexSet = EMPTY
    fingerprint: int = 0
    """Sum of the signed entries' fingerprints modulo 2^64."""
    size_bytes: int = 0
    """Of the signed entries."""
    leases: int = 0
    """Held by all entries together, whether they count or not."""


class Ledger:
    """Entries and what follows from them. No timers, no messages of its own: see leases.py."""

    def __init__(self, shape: RunShape, verify: Verify) -> None:
        self.shape = shape
        self._verify = verify
        self._rounds: dict[int, RoundLedger] = {}
        self._sums = LedgerSums()
        self._settled = 0
        self._may_settle = True
        """Something was learned since `settled` was looked for."""
        self._of_body: dict[bytes, EntryKey] = {}
        """The signed entries that we hold: most of what arrives is among them."""
        self.counters: Counter[str] = Counter()
        """Entries not taken, by code."""

    # -------------------------------------------------------------------------------- questions

    @property
    def base(self) -> int:
        """Rounds below are known in sum only, and have ended."""
        return self._sums.rounds

    @property
    def is_blank(self) -> bool:
        """Nobody has told of anything that was done, or begun."""
        return self.base == 0 and not self._rounds

    @property
    def settled(self) -> int:
        """The first round that has not ended."""
        if self._may_settle:
            self._may_settle = False
            while self._settled < self.shape.rounds and self.is_ended(self._settled):
                self._settled += 1
        return self._settled

    @property
    def newest(self) -> int:
        """The last round of which anybody has said anything."""
        return max(self._rounds, default=max(0, self.settled - 1))

    def all_of(self, round_number: int) -> IndexSet:
        return IndexSet.full(self.shape.micro_batches_of_round(round_number))

    def done(self, round_number: int) -> IndexSet:
        """Of a round that is held in detail, or still to come."""
        held = self._rounds.get(round_number)
        return held.done if held else EMPTY

    def ended(self, round_number: int) -> IndexSet:
        """Done or lost."""
        if round_number < self.base:
            return self.all_of(round_number)
        held = self._rounds.get(round_number)
        return held.ended if held else EMPTY

    def lost(self) -> list[LostRange]:
        """Given up for good and done by nobody, in order."""
        ranges = set(self._sums.lost)
        for number in self.rounds_in_detail():
            ranges |= self._lost_in(number)
        return sorted(ranges, key=place_of)

    def is_ended(self, round_number: int) -> bool:
        return self.ended(round_number) == self.all_of(round_number)

    def may_be_leased(self, round_number: int) -> bool:
        """False if there are fewer leases than micro-batches that have not ended. Cheap."""
        held = self._rounds.get(round_number)
        left = self.shape.micro_batches_of_round(round_number) - len(self.ended(round_number))
        return left <= (held.leases if held else 0)

    def entries(self, round_number: int) -> list[Entry]:
        """In the order of their keys."""
        held = self._rounds.get(round_number)
        return [held.entries[key] for key in sorted(held.entries)] if held else []

    def get(self, key: EntryKey) -> Entry | None:
        held = self._rounds.get(key.round)
        return held.entries.get(key) if held else None

    def held_as(self, signed: SignedEntry) -> EntryKey | None:
        """The key under which just this version stands here."""
        return self._of_body.get(signed.body)

    def rounds_in_detail(self) -> Iterator[int]:
        return iter(sorted(self._rounds))

    def loss(self, round_number: int) -> float | None:
        """Mean loss per token over what is done, nats. None if nothing is, or no longer known."""
        entries = self.entries(round_number)
        samples = sum(self.samples(entry) for entry in entries)
        return sum(entry.loss_sum for entry in entries) / samples if samples else None

    def held_out_scores(self, round_number: int) -> dict[int, HeldOutScore]:
        """By index, each once."""
        scores: dict[int, HeldOutScore] = {}
        for entry in self.entries(round_number):
            for score in entry.held_out:
                scores.setdefault(score.index, score)
        return scores

    def held_out_loss(self, round_number: int) -> float | None:
        """Mean loss per token over the held-out micro-batches scored so far, nats."""
        scores = self.held_out_scores(round_number).values()
        samples = sum(score.samples for score in scores)
        return sum(score.loss_sum for score in scores) / samples if samples else None

    def held_out_is_scored(self, round_number: int) -> bool:
        """Every held-out micro-batch of the round has its score."""
        return len(self.held_out_scores(round_number)) == self.shape.held_out_micro_batches

    def samples(self, entry: Entry) -> int:
        """Sequences in what the entry has done."""
        return self._samples(entry.key.round, entry.done)

    def samples_twice(self, round_number: int) -> int:
        """Samples worked on again, each further time counted."""
        entries = self.entries(round_number)
        in_sum = sum(self.samples(entry) for entry in entries)
        return in_sum - self._samples(round_number, self.done(round_number))

    def samples_twice_total(self) -> int:
        return self._sums.samples_twice + sum(map(self.samples_twice, self._rounds))

    def contributions(self) -> dict[PeerId, Totals]:
        """What each peer has done, over all its lives."""
        totals = dict(self._sums.totals)
        for round_number in self.rounds_in_detail():
            add_totals(totals, self._round_totals(round_number))
        return totals

    def witnessed(self, round_number: int) -> dict[bytes, Witnessed]:
        """What the receipts of a round in detail prove, by tag (receipts.py)."""
        told = [(entry.key.peer, entry.witnessed) for entry in self.entries(round_number)]
        return witnessed(told, self.shape)

    def witnessed_total(self) -> dict[bytes, Witnessed]:
        """What all receipts prove, by tag."""
        totals = dict(self._sums.witnessed)
        for round_number in self.rounds_in_detail():
            add_witnessed(totals, self.witnessed(round_number))
        return totals

    def weight_caps(self, round_number: int, peers: Iterable[PeerId]) -> dict[PeerId, int]:
        """How many samples of a peer's claim are believed, by what was seen of it in the rounds
        before (receipts.weight_caps)."""
        before = range(max(self.base, round_number - CAP_ROUNDS), round_number)
        usual = self.shape.micro_batches_of_round(max(0, round_number - 1))
        scale = self.shape.micro_batches_of_round(round_number) / max(1, usual)
        return weight_caps([self.witnessed(number) for number in before], peers, scale)

    # ---------------------------------------------------------------------------------- entries

    def check(self, signed: SignedEntry) -> Entry | None:
        """What a peer sent, as an entry that may be put; None if it would change nothing.

        Raises RemoteProtocolError: malformed, wrong_round, bad_signature, too_large.
        """
        if self.held_as(signed) is not None:
            return None
        try:
            entry = read_entry(signed, self.shape)
            held = self.get(entry.key)
            if entry.key.round < self.base or (held is not None and entry.rank <= held.rank):
                return None
            if entry.key.round >= self.settled + ROUNDS_AHEAD_MAX:
                self.counters["too_far_ahead"] += 1
                return None
            if held is None and len(self.entries(entry.key.round)) >= WRITERS_MAX:
                raise RemoteProtocolError("too_large", f"round {entry.key.round} has many writers")
            if not self._verify(
                entry.key.peer, what_is_signed(signed.body, self.shape), signed.signature
            ):
                raise RemoteProtocolError("bad_signature", f"entry of {entry.key.peer}")
        except RemoteProtocolError as error:
            self.counters[error.code] += 1
            raise
        return entry

    def put(self, entry: Entry) -> bool:
        """Join one entry, checked or our own. False if it is not news."""
        if entry.key.round < self.base:
            return False
        held = self._rounds.setdefault(entry.key.round, RoundLedger())
        before = held.entries.get(entry.key)
        if before is not None and entry.rank <= before.rank:
            return False
        if before is not None and before.signed is not None:
            del self._of_body[before.signed.body]
        if entry.signed is not None:
            self._of_body[entry.signed.body] = entry.key
        held.entries[entry.key] = entry
        self._may_settle = True
        held.fingerprint += entry.fingerprint - (before.fingerprint if before else 0)
        held.fingerprint %= 2**64
        held.size_bytes += entry.size_bytes - (before.size_bytes if before else 0)
        held.leases += len(entry.leased) - (len(before.leased) if before else 0)
        if before is not None and (before.done | before.lost) - entry.done - entry.lost:
            # It took something back, which nobody honest does; then all of it is counted anew.
            held.done = held.ended = EMPTY
            self._settled = min(self._settled, entry.key.round)
            joined = list(held.entries.values())
        else:
            joined = [entry]
        for each in joined:
            held.done |= each.done
            held.ended |= each.done | each.lost
        return True

    # -------------------------------------------------------------------------------- comparing

    def digest(self, *, answer: bool = False, whole: bool = True) -> LedgerDigest:
        """whole: of all rounds; else of those that have ended."""
        return LedgerDigest(
            settled=self.settled,
            rounds=tuple(
                RoundDigest(
                    round=number,
                    fingerprint=self._rounds[number].fingerprint.to_bytes(FINGERPRINT_BYTES, "big"),
                )
                for number in self.rounds_in_detail()
                if whole or number < self.settled
            ),
            answer=answer,
            whole=whole,
        )

    def signed_entries(self) -> list[SignedEntry]:
        """All that others may have, in the order of their keys."""
        entries = [entry for number in self.rounds_in_detail() for entry in self.entries(number)]
        return [entry.signed for entry in entries if entry.signed is not None]

    # ---------------------------------------------------------------------------------- summing

    def roll_up(self) -> None:
        """Keep rounds in sum only that have been settled for as long as is worth their size."""
        until = self._kept_from()
        for number in [number for number in self.rounds_in_detail() if number < until]:
            self._sums.add(
                RoundSums(
                    self._round_totals(number),
                    self.witnessed(number),
                    self.samples_twice(number),
                    frozenset(self._lost_in(number)),
                )
            )
            self._drop(number)
        self._sums.rounds = until

    def totals(self) -> LedgerTotals:
        return self._sums.to_message()

    def adopt(self, totals: LedgerTotals) -> bool:
        """Join another ledger's sums. The caller answers for their truth: they are not signed.

        Raises RemoteProtocolError: wrong_round, malformed.
        """
        check_totals(totals, self.shape)
        if totals.rounds < self.base:
            return False
        is_news = self._sums.join(totals)
        self._may_settle = True
        self._settled = max(self._settled, self.base)
        for number in [number for number in self._rounds if number < self.base]:
            self._drop(number)
        return is_news

    # ----------------------------------------------------------------------------------- inside

    def _kept_from(self) -> int:
        """The first round to be kept in detail."""
        first = max(self.base, self.settled - ROUNDS_KEPT)
        sizes = [
            self._rounds[n].size_bytes if n in self._rounds else 0
            for n in range(first, self.settled)
        ]
        while len(sizes) > ROUNDS_KEPT_MIN and sum(sizes) > KEPT_BYTES_MAX:
            del sizes[0]
        return max(self.base, self.settled - len(sizes))

    def _drop(self, round_number: int) -> None:
        for entry in self._rounds.pop(round_number).entries.values():
            if entry.signed is not None:
                del self._of_body[entry.signed.body]

    def _lost_in(self, round_number: int) -> set[LostRange]:
        holes = self.ended(round_number) - self.done(round_number)
        return {LostRange(round=round_number, first=a, last=b) for a, b in holes.ranges()}

    def _samples(self, round_number: int, indices: IndexSet) -> int:
        last = self.shape.micro_batches_of_round(round_number) - 1
        missing = 0
        if last in indices:
            size = self.shape.samples_of(MicroBatchId(round_number, last))
            missing = self.shape.micro_batch_samples - size
        return len(indices) * self.shape.micro_batch_samples - missing

    def _round_totals(self, round_number: int) -> dict[PeerId, Totals]:
        totals: dict[PeerId, Totals] = {}
        for entry in self.entries(round_number):
            if entry.done:
                mine = totals.get(entry.key.peer, Totals(rounds=1))
                more = Totals(len(entry.done), self.samples(entry), 0)
                totals[entry.key.peer] = mine.plus(more)
        return totals


assert ROUNDS_KEPT + ROUNDS_AHEAD_MAX < ROUNDS_IN_DETAIL_MAX
