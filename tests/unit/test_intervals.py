"""Index sets: they behave as sets, survive the wire, and stay small."""

import itertools
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.intervals import IndexSet

END = 300
indices = st.sets(st.integers(0, END - 1))


@given(indices, indices)
def test_it_behaves_as_a_set(one, other):
    a, b = IndexSet.of(one), IndexSet.of(other)
    assert list(a) == sorted(one)
    assert len(a) == len(one)
    assert bool(a) == bool(one)
    assert set(a | b) == one | other
    assert set(a & b) == one & other
    assert set(a - b) == one - other
    assert a.first() == min(one, default=None)
    assert a.first_missing() == next(n for n in range(END + 1) if n not in one)
    for index in (0, 7, END - 1):
        assert (index in a) == (index in one)
        assert set(a.with_index(index)) == one | {index}
        assert set(a.without_index(index)) == one - {index}


@given(indices)
def test_ranges_are_maximal_and_cover_the_set(some):
    ranges = list(IndexSet.of(some).ranges())
    assert {n for first, last in ranges for n in range(first, last + 1)} == some
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))


@given(indices)
def test_bytes_give_the_set_back(some):
    value = IndexSet.of(some)
    assert IndexSet.from_bytes(value.to_bytes(), END) == value


@given(indices)
def test_bytes_are_never_longer_than_a_bit_an_index(some):
    assert len(IndexSet.of(some).to_bytes()) <= END / 8 + 2


@given(st.integers(0, 50), st.integers(1, 40), st.integers(0, 60))
def test_progressions_are_what_range_gives(start, step, count):
    expected = list(range(start, start + step * count, step))
    assert list(IndexSet.progression(start, step, count)) == expected


@pytest.mark.parametrize("heads", [1, 2, 7, 100])
def test_what_one_of_many_heads_did_takes_a_few_bytes(heads):
    done = IndexSet.progression(heads - 1, heads, 100_000 // heads)
    assert len(done.to_bytes()) <= 8


@given(
    st.integers(0, 6),
    st.sets(st.integers(0, 41), max_size=6),
    st.sets(st.integers(0, END - 1), max_size=6),
)
def test_what_one_of_seven_heads_did_survives_with_its_exceptions(head, missing, others):
    places = [place for place in range(42) if place not in missing]
    done = IndexSet.of([*(head + 7 * place for place in places), *others])
    assert IndexSet.from_bytes(done.to_bytes(), END) == done


def test_what_was_taken_from_a_head_and_by_it_costs_two_bytes_each_at_most():
    rng = random.Random(1)
    share = IndexSet.progression(5, 47, 544)
    taken = IndexSet.of(rng.sample(list(share), 30))
    stolen = IndexSet.of(rng.sample(range(25_600), 30))
    assert len((share - taken | stolen).to_bytes()) <= 12 + 2 * 60


@given(st.binary(max_size=40))
@example(b"")
@example(b"\x00\x00\x00\x05")  # step 0
@example(b"\x00\x00\x01\x00")  # count 0
@example(b"\x00\x05\x01")  # cut short
@example(b"\x00" + b"\xff" * 12)  # a number without end
@example(b"\x00\x00\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f")  # far beyond the end
@example(b"\x01" + b"\xff" * 39)
@example(b"\x02")  # no progression
@example(b"\x02\x00\x01\x05\x01")  # a hole too few
@example(b"\x02\x00\x00\x05\x00")  # step 0
@example(b"\x02\x00\x01\x00\x00")  # count 0
@example(b"\x02\x00\x01\x41\x00")  # beyond the end
@example(b"\x02\x00\x01\x05\x01\x05")  # a hole beyond the progression
@example(b"\x02\x00\x01\x05\x00\x3f\x01")  # another index beyond the end
@example(b"\x02\x00\x01\x05\x01\x02\x3f")  # right
@example(b"\x03")
@example(b"\x00" + b"\x01\x01\x01" * 10)  # right, but longer than the bits
def test_any_bytes_give_a_set_in_bounds_or_a_protocol_error(body):
    try:
        value = IndexSet.from_bytes(body, 64)
    except RemoteProtocolError:
        return
    assert all(0 <= index < 64 for index in value)
    assert len(body) <= 10
