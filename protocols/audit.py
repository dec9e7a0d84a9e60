"""What the ledger proves: that no sample is missing and none was counted twice.

Every member answers from its own ledger (docs/cli.md, `data audit`). A sample counts once, when its
micro-batch is done, however often it was worked on; what was worked on again is told apart from it.

  gaps      micro-batches given up for good, and those not done in a round that the swarm has left
            two rounds behind. What the present rounds still have to do is not a gap.
  repeats   sample numbers that two micro-batches of the ledger share. The arithmetic of a run gives
            none, and the ledger counts by sets; the audit looks all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.run_shape import RunShape

ROUNDS_OPEN = 2
"""A round opens when all of the one before is leased, so two are under way at a time."""


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Samples first..last, counted over the whole run, of one round's micro-batches."""

    first: int
    last: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Counts are samples unless named otherwise. `swarmd.audit` of docs/cli.md."""

    samples_total: int
    samples_completed: int
    gaps: tuple[SampleRange, ...]
    repeats: tuple[SampleRange, ...]
    processed_twice: int
    open_leases: int
    """Micro-batches held by somebody now."""
    covered_until: int
    """Every sample below is done, but for the gaps."""

    @property
    def clean(self) -> bool:
        return not self.gaps and not self.repeats

    @property
    def complete(self) -> bool:
        return self.clean and self.samples_completed == self.samples_total


def audit(ledger: Ledger, open_leases: int) -> Audit:
    shape = ledger.shape
    ranges, gaps = _summed_up(ledger)
    last_left = ledger.newest - ROUNDS_OPEN
    for number in range(ledger.base, min(shape.rounds, ledger.newest + 1)):
        done = ledger.done(number)
        ranges += [_samples(shape, number, a, b) for a, b in done.ranges()]
        closed = ledger.all_of(number) if number <= last_left else ledger.ended(number)
        gaps += [_samples(shape, number, a, b) for a, b in (closed - done).ranges()]
    return Audit(
        samples_total=_samples_total(shape),
        samples_completed=sum(part.last - part.first + 1 for part in ranges),
        gaps=tuple(gaps),
        repeats=tuple(_overlaps(ranges)),
        processed_twice=ledger.samples_twice_total(),
        open_leases=open_leases,
        covered_until=_covered_until(ledger),
    )


def _summed_up(ledger: Ledger) -> tuple[list[SampleRange], list[SampleRange]]:
    """(done, gaps) of the rounds that are known in sum only."""
    shape = ledger.shape
    holes: dict[int, IndexSet] = {}
    for lost in ledger.lost():
        if lost.round < ledger.base:
            more = IndexSet.progression(lost.first, 1, lost.last - lost.first + 1)
            holes[lost.round] = holes.get(lost.round, EMPTY) | more
    done: list[SampleRange] = []
    first = 0
    for number in sorted(holes):
        done += _whole_rounds(shape, first, number)
        kept = ledger.all_of(number) - holes[number]
        done += [_samples(shape, number, a, b) for a, b in kept.ranges()]
        first = number + 1
    done += _whole_rounds(shape, first, ledger.base)
    gaps = [
        _samples(shape, number, a, b) for number in sorted(holes) for a, b in holes[number].ranges()
    ]
    return done, gaps


def _whole_rounds(shape: RunShape, first: int, end: int) -> list[SampleRange]:
    """Rounds first..end-1 in one range: rounds follow on each other without a hole."""
    if first >= end:
        return []
    last = _samples(shape, end - 1, 0, shape.micro_batches_of_round(end - 1) - 1)
    return [SampleRange(_samples(shape, first, 0, 0).first, last.last, end - 1)]


def _samples(shape: RunShape, number: int, first: int, last: int) -> SampleRange:
    """The samples of micro-batches first..last of a round."""
    start = shape.first_micro_batch(number)
    size = shape.micro_batch_samples
    before_last = (start + last) * size
    return SampleRange(
        (start + first) * size,
        before_last + shape.samples_of(MicroBatchId(number, last)) - 1,
        number,
    )


def _samples_total(shape: RunShape) -> int:
    last = shape.rounds - 1
    return _samples(shape, last, 0, shape.micro_batches_of_round(last) - 1).last + 1


def _covered_until(ledger: Ledger) -> int:
    settled, shape = ledger.settled, ledger.shape
    if settled >= shape.rounds:
        return _samples_total(shape)
    micro_batches = shape.first_micro_batch(settled) + ledger.ended(settled).first_missing()
    return micro_batches * shape.micro_batch_samples


def _overlaps(ranges: list[SampleRange]) -> list[SampleRange]:
    overlaps = []
    reached = -1
    for part in sorted(ranges, key=lambda part: (part.first, part.last)):
        if part.first <= reached:
            overlaps.append(SampleRange(part.first, min(part.last, reached), part.round))
        reached = max(reached, part.last)
    return overlaps
