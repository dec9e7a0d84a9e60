"""The order of samples: a permutation, the same one everywhere."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.data.order import Permutation

REPOSITORY = Path(__file__).parents[2]

VECTORS = [
    # size, seed, epoch, and what stands at 0, 1, 2, 3 and size - 1
    (5, 0, 0, [1, 3, 2, 4, 0]),
    (1_000, 7, 0, [198, 968, 832, 930, 861]),
    (1_000, 7, 1, [239, 159, 413, 427, 269]),
    (90_240, 7, 0, [67491, 32863, 474, 10552, 83115]),
    (10**9, 12345678901, 17, [219953745, 211395804, 764465900, 88704656, 255761572]),
    (
        1 << 62,
        1,
        2,
        [
            4024574140594545181,
            1416083020990067889,
            2000507505890145829,
            4373141326764055752,
            4251249326278305579,
        ],
    ),
]


def _by_plain_integers(size: int, seed: int, epoch: int, place: int) -> int:
    """The order once more, written from its description, without numpy."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, word = (1 << half_bits) - 1, (1 << 64) - 1
    keys = hashlib.blake2b(
        f"train/{seed}/{epoch}".encode(), digest_size=64, person=b"swarmd.order.1"
    ).digest()
    value = place
    while True:
        left, right = value >> half_bits, value & mask
        for start in range(0, 64, 8):
            mixed = right ^ int.from_bytes(keys[start : start + 8], "little")
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) & mask)
        value = (left << half_bits) | right
        if value < size:
            return value


def _first_and_last(size: int, seed: int, epoch: int) -> list[int]:
    positions = np.array([0, 1, 2, 3, size - 1], dtype=np.int64)
    return Permutation(size, seed=seed, epoch=epoch)(positions).tolist()


@pytest.mark.parametrize(("size", "seed", "epoch", "expected"), VECTORS)
def test_order_equals_the_published_vectors(size, seed, epoch, expected):
    assert _first_and_last(size, seed, epoch) == expected


def test_order_equals_its_description_in_plain_integers():
    for size, seed, epoch in [(1, 0, 0), (2, 5, 1), (1_000, 7, 3), (70_001, 2**60, 9)]:
        places = sorted({0, 1 % size, size // 3, size - 1})
        order = Permutation(size, seed=seed, epoch=epoch)(np.array(places, dtype=np.int64))
        assert order.tolist() == [_by_plain_integers(size, seed, epoch, place) for place in places]


@given(size=st.integers(1, 3_000), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**9))
def test_every_number_stands_somewhere_exactly_once(size, seed, epoch):
    order = Permutation(size, seed=seed, epoch=epoch)(np.arange(size))
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(10**9, 2**62), data=st.data())
def test_places_in_a_huge_corpus_are_distinct_and_inside(size, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
    order = Permutation(size, seed=3)(np.array(positions, dtype=np.int64))
    assert len(set(order.tolist())) == len(positions)
    assert order.min() >= 0
    assert order.max() < size


def test_one_at_a_time_and_all_at_once_agree():
    order = Permutation(1_000, seed=7, epoch=2)
    together = order(np.arange(1_000))
    assert [int(order(np.array([place]))[0]) for place in range(0, 1_000, 37)] == together[
        ::37
    ].tolist()


def test_seeds_epochs_and_purposes_give_unrelated_orders():
    size = 10_000
    orders = [
        Permutation(size, seed=7, epoch=0)(np.arange(size)),
        Permutation(size, seed=7, epoch=1)(np.arange(size)),
        Permutation(size, seed=8, epoch=0)(np.arange(size)),
        Permutation(size, seed=7, epoch=0, purpose="held_out")(np.arange(size)),
    ]
    for one in range(len(orders)):
        for other in range(one):
            # Two independent orders agree in about one place, 12 in one case of a billion.
            assert int((orders[one] == orders[other]).sum()) < 12


def test_neighbours_are_spread_over_the_whole_corpus():
    size = 100_000
    order = Permutation(size, seed=7)(np.arange(size)).astype(np.float64)
    correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
    assert abs(correlation) < 0.02  # six standard deviations of an independent order
    tenths = np.histogram(order[: size // 10], bins=10, range=(0, size))[0]
    assert tenths.min() > 850
    assert tenths.max() < 1_150


@pytest.mark.process
def test_order_does_not_depend_on_the_hash_seed():
    program = (
        "import numpy as np; from swarmd.data.order import Permutation;"
        "print(Permutation(12345, seed=7, epoch=3)(np.arange(50)).tolist())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "424242")
    }
    assert len(printed) == 1
