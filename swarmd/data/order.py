"""Which sample comes when: a permutation of 0..size-1 for each epoch that needs no memory.

A Feistel network permutes the numbers of 2k bits whatever its round function is; the smallest such
domain that holds `size` is at most four times as large, and numbers that fall outside are sent
through again until they fall inside (cycle walking; Black and Rogaway 2002). So the place of one
sample is found in constant time and memory, on any peer, without a shuffled list, and nothing but
integer arithmetic modulo 2^64 is involved: every platform agrees.

Round keys come from BLAKE2b over (purpose, seed, epoch). This is a shuffle, not a cipher: nobody is
hindered from predicting it. Test vectors: tests/unit/test_order.py.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
"""Four rounds make a good shuffle (Luby and Rackoff 1988); eight because the round function is
cheap and the halves of small domains are only a few bits wide."""


class Permutation:
    """A fixed random-looking order of 0..size-1."""

    def __init__(self, size: int, *, seed: int, epoch: int = 0, purpose: str = "train") -> None:
        """`size` in 1..2^62. Different (seed, epoch, purpose) give unrelated orders."""
        assert 1 <= size <= 1 << 62
        self.size = size
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._half_mask = (np.uint64(1) << self._half_bits) - np.uint64(1)
        self._keys = _round_keys(f"{purpose}/{seed}/{epoch}")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands at each of `positions` (int64, in 0..size-1)."""
        values = np.asarray(positions).astype(np.uint64)
        assert values.size == 0 or int(values.max()) < self.size
        values = self._feistel(values)
        outside = values >= self.size
        while outside.any():
            values[outside] = self._feistel(values[outside])
            outside = values >= self.size
        return values.astype(np.int64)

    def _feistel(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left = values >> self._half_bits
        right = values & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        return (left << self._half_bits) | right


def _round_keys(material: str) -> tuple[np.uint64, ...]:
    digest = hashlib.blake2b(
        material.encode(), digest_size=8 * ROUNDS, person=b"swarmd.order.1"
    ).digest()
    return tuple(np.uint64(int(word)) for word in np.frombuffer(digest, dtype="<u8"))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the input moves about half of the low bits (finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
