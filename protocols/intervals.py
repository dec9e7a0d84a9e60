"""Sets of indices 0..end-1 that are mostly regular, small in memory and on the wire.

In memory a set is one big integer, bit i for index i: union, difference and counting are single
operations, and a round of ten thousand micro-batches takes 1.25 kB.

On the wire it is whichever is shortest:

    0, then three varints a run: gap, step, count      (arithmetic progressions, in order)
    1, then the bits, eight indices a byte, index 0 in the lowest bit of the first
    2, then varints: start, step, count of one progression; how many of it are missing, and their
       places in it, as gaps; then indices that are not of it, as gaps until the end

`gap` counts from the last index of the run before (from 0 for the first), and in the third form
from the place or index before. Heads take every n-th micro-batch, so what one of them has done is a
progression: some ten bytes, however many. What others took of it, and it took of theirs, breaks a
run in two; in the third form it costs a byte or two. The second bounds the worst case to end/8 + 1
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from swarmd.protocols.errors import RemoteProtocolError

FORM_RUNS, FORM_BITS, FORM_EXCEPTIONS = b"\0", b"\1", b"\2"
VARINT_BYTES_MAX = 5
VARINT_MAX = (1 << 7 * VARINT_BYTES_MAX) - 1


@dataclass(frozen=True, slots=True)
class IndexSet:
    """An immutable set of natural numbers."""

    bits: int = 0

    @classmethod
    def of(cls, indices: Iterable[int]) -> IndexSet:
        bits = 0
        for index in indices:
            bits |= 1 << index
        return cls(bits)

    @classmethod
    def full(cls, end: int) -> IndexSet:
        """0..end-1."""
        return cls((1 << end) - 1)

    @classmethod
    def progression(cls, start: int, step: int, count: int) -> IndexSet:
        """start, start + step, ... `count` of them."""
        if count < 1:
            return cls()
        bits, have = 1, 1
        while have < count:
            bits |= bits << (have * step)
            have *= 2
        return cls((bits & ((1 << ((count - 1) * step + 1)) - 1)) << start)

    def __contains__(self, index: int) -> bool:
        return bool(self.bits >> index & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __iter__(self) -> Iterator[int]:
        """In order."""
        digits = f"{self.bits:b}"[::-1]
        index = digits.find("1")
        while index >= 0:
            yield index
            index = digits.find("1", index + 1)

    def __or__(self, other: IndexSet) -> IndexSet:
        return IndexSet(self.bits | other.bits)

    def __and__(self, other: IndexSet) -> IndexSet:
        return IndexSet(self.bits & other.bits)

    def __sub__(self, other: IndexSet) -> IndexSet:
        return IndexSet(self.bits & ~other.bits)

    def with_index(self, index: int) -> IndexSet:
        return IndexSet(self.bits | 1 << index)

    def without_index(self, index: int) -> IndexSet:
        return IndexSet(self.bits & ~(1 << index))

    def first(self) -> int | None:
        """The lowest index."""
        return (self.bits & -self.bits).bit_length() - 1 if self.bits else None

    def first_missing(self) -> int:
        """The lowest number that is not in the set."""
        return (~self.bits & (self.bits + 1)).bit_length() - 1

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Maximal runs without a hole, as (first, last), in order."""
        digits = f"{self.bits:b}"[::-1]
        start = digits.find("1")
        while start >= 0:
            end = digits.find("0", start)
            if end < 0:
                end = len(digits)
            yield start, end - 1
            start = digits.find("1", end)

    # ------------------------------------------------------------------------------------- wire

    def to_bytes(self) -> bytes:
        """The shortest form; of two that are equally short the one with the lower number."""
        if not self.bits:
            return FORM_RUNS
        as_bits = FORM_BITS + self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")
        runs = list(self._progressions())
        forms = [_bytes_of_runs(runs), as_bits]
        if len(runs) > 1:
            forms.append(self._with_exceptions(runs))
        return min(forms, key=lambda form: (len(form), form[:1]))

    def _with_exceptions(self, runs: list[tuple[int, int, int]]) -> bytes:
        """The third form, of the progression that most of the runs are pieces of."""
        steps: Counter[int] = Counter()
        for _, step, count in runs:
            steps[step] += count
        step = max(steps, key=lambda one: (steps[one], one))
        offsets = Counter(index % step for index in self)
        offset = max(offsets, key=lambda one: (offsets[one], one))
        members = [index for index in self if index % step == offset]
        start, count = members[0], (members[-1] - members[0]) // step + 1
        whole = IndexSet.progression(start, step, count)
        missing = [(index - start) // step for index in whole - self]
        body = [start, step, count, len(missing), *_gaps(missing), *_gaps(self - whole)]
        return FORM_EXCEPTIONS + b"".join(map(varint, body))

    @classmethod
    def from_bytes(cls, body: bytes, end: int) -> IndexSet:
        """Raises RemoteProtocolError(malformed) for anything but a subset of 0..end-1.

        Also for the longer form of one: it only costs time.
        """
        form, rest = body[:1], body[1:]
        if len(rest) > (end + 7) // 8:
            raise RemoteProtocolError("malformed", f"index set of {len(body)} bytes")
        if form == FORM_BITS:
            bits = int.from_bytes(rest, "little")
        elif form == FORM_RUNS:
            bits = _bits_of_runs(rest, end)
        elif form == FORM_EXCEPTIONS:
            bits = _bits_with_exceptions(rest, end)
        else:
            raise RemoteProtocolError("malformed", "index set of unknown form")
        if bits.bit_length() > end:
            raise RemoteProtocolError("malformed", f"index set beyond {end}")
        return cls(bits)

    def _progressions(self) -> Iterator[tuple[int, int, int]]:
        """Greedy, in order: (start, step, count). A single index has step 1."""
        start, step, count = -1, 1, 0
        last = -1
        for index in self:
            if count == 0:
                start, count = index, 1
            elif count == 1:
                step, count = index - start, 2
            elif index - last == step:
                count += 1
            else:
                yield start, step, count
                start, step, count = index, 1, 1
            last = index
        if count:
            yield start, step, count


EMPTY = IndexSet()


def _bytes_of_runs(runs: Iterable[tuple[int, int, int]]) -> bytes:
    body = bytearray(FORM_RUNS)
    previous = 0
    for start, step, count in runs:
        body += varint(start - previous) + varint(step) + varint(count)
        previous = start + step * (count - 1)
    return bytes(body)


def _gaps(numbers: Iterable[int]) -> Iterator[int]:
    previous = 0
    for number in numbers:
        yield number - previous
        previous = number


def _bits_of_runs(body: bytes, end: int) -> int:
    bits, previous, place = 0, 0, 0
    while place < len(body):
        gap, place = read_varint(body, place)
        step, place = read_varint(body, place)
        count, place = read_varint(body, place)
        start = previous + gap
        previous = start + step * (count - 1)
        if step < 1 or count < 1 or previous >= end:
            raise RemoteProtocolError("malformed", f"run {start}+{step}x{count} in 0..{end - 1}")
        bits |= IndexSet.progression(start, step, count).bits
    return bits


def _bits_with_exceptions(body: bytes, end: int) -> int:
    numbers, place = [], 0
    while place < len(body):
        number, place = read_varint(body, place)
        numbers.append(number)
    if len(numbers) < 4 or len(numbers) < 4 + numbers[3]:
        raise RemoteProtocolError("malformed", "index set is cut short")
    start, step, count, holes = numbers[:4]
    if step < 1 or count < 1 or start + step * (count - 1) >= end:
        raise RemoteProtocolError("malformed", f"run {start}+{step}x{count} in 0..{end - 1}")
    places = list(accumulate(numbers[4 : 4 + holes]))
    others = list(accumulate(numbers[4 + holes :]))
    if max(places, default=0) >= count or max(others, default=0) >= end:
        raise RemoteProtocolError("malformed", f"index set beyond {end}")
    missing = IndexSet.of(start + step * one for one in places)
    return (IndexSet.progression(start, step, count) - missing | IndexSet.of(others)).bits


def varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the highest bit says that more follow."""
    body = bytearray()
    while value > 0x7F:
        body.append(value & 0x7F | 0x80)
        value >>= 7
    body.append(value)
    return bytes(body)


def read_varint(body: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        if place >= len(body):
            raise RemoteProtocolError("malformed", "index set is cut short")
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, place
    raise RemoteProtocolError("malformed", "number too long in an index set")
