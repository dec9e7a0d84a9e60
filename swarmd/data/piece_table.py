"""Pieces of text to their ids, for some hundred thousand pieces at a time and no Python for each.

A piece of up to fifteen bytes is its own key: two numbers, the second with the length on top. The
keys stand in an open hash table of arrays, so that looking up is a few operations on whole arrays,
and what is found is what was asked for, byte by byte. Longer pieces are rare and in a dictionary.
The ids of all pieces lie one after the other; a piece has the place of its first and their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

SHORT_MAX = 15
"""Bytes of a piece that is its own key."""
PADDING = bytes(16)
"""Stands behind the pieces, so that a key may be read past the last of them."""
SLOTS_MIN = 1 << 12
_KEPT = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
"""By length: what of eight bytes, read as a number, belongs to a piece."""
_MIX_LOW, _MIX_HIGH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

UNKNOWN = (0, -1)
"""(first, count) of a piece without ids."""

Numbers = NDArray[np.int64]


class Places:
    """Where pieces lie in `data`, padding behind them: starts and lengths, a key for each."""

    def __init__(self, data: bytes, starts: Numbers, lengths: Numbers) -> None:
        self.data, self.starts, self.lengths = data, starts, lengths
        eight = np.ndarray(
            (len(data) - 7,), dtype="<u8", buffer=memoryview(data), strides=(1,)
        )  # at every byte, the number that begins there
        low_bytes = np.minimum(lengths, 8)
        high_bytes = np.clip(lengths - 8, 0, 7)
        self.low = eight[starts] & _KEPT[low_bytes]
        self.high = (eight[starts + low_bytes] & _KEPT[high_bytes]) | (
            lengths.astype(np.uint64) << np.uint64(56)
        )

    def pieces(self, places: Numbers) -> list[bytes]:
        """These, by their numbers."""
        starts = self.starts[places]
        pairs = zip(starts.tolist(), (starts + self.lengths[places]).tolist(), strict=True)
        return [self.data[start:end] for start, end in pairs]


class PieceTable:
    """Holds whatever is put into it; its owner counts and clears."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self.clear()

    def clear(self) -> None:
        self._long: dict[bytes, tuple[int, int]] = {}
        self._ids = np.empty(SLOTS_MIN, dtype=self._dtype)
        self._ids_end = 0
        self._short = 0
        self._make_slots(SLOTS_MIN)

    def __len__(self) -> int:
        return self._short + len(self._long)

    # ------------------------------------------------------------------------------------ look up

    def find(self, places: Places) -> tuple[Numbers, Numbers]:
        """(first, count) of each piece's ids; count -1 where the piece is not known."""
        first = np.zeros(len(places.starts), dtype=np.int64)
        count = np.full(len(places.starts), UNKNOWN[1], dtype=np.int64)
        is_short = places.lengths <= SHORT_MAX
        short = np.flatnonzero(is_short)
        slots = self._slots_of(places.low[short], places.high[short])
        known = self._high[slots] != 0
        first[short[known]] = self._first[slots[known]]
        count[short[known]] = self._count[slots[known]]
        long = np.flatnonzero(~is_short)
        if len(long):
            found = [self._long.get(piece, UNKNOWN) for piece in places.pieces(long)]
            first[long], count[long] = np.array(found, dtype=np.int64).T
        return first, count

    def join(self, first: Numbers, count: Numbers) -> NDArray[np.unsignedinteger]:
        """The ids of pieces, one after the other."""
        ends = np.cumsum(count)
        total = int(ends[-1]) if len(ends) else 0
        at = np.repeat(first - (ends - count), count)
        at += np.arange(total)
        return self._ids[at]

    def _slots_of(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> Numbers:
        """Where each of these stands, or the empty slot where it would."""
        mixed = (low * _MIX_LOW) ^ (high * _MIX_HIGH)
        mixed ^= mixed >> np.uint64(29)
        slots = ((mixed * _MIX_LOW) >> self._shift).astype(np.int64)
        others = np.arange(len(slots))
        while len(others):
            here = slots[others]
            there = self._high[here]
            is_other = (there != 0) & ((there != high[others]) | (self._low[here] != low[others]))
            others = others[is_other]
            slots[others] = (slots[others] + 1) & (len(self._high) - 1)
        return slots

    # -------------------------------------------------------------------------------------- learn

    def put(self, pieces: Sequence[bytes], ids: Sequence[bytes]) -> None:
        """Pieces that are not there yet, each once, and the bytes of their ids."""
        counts = np.array([len(body) for body in ids], dtype=np.int64) // self._dtype.itemsize
        first = self._ids_end + np.cumsum(counts) - counts
        self._append(b"".join(ids))
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        places = Places(b"".join(pieces) + PADDING, np.cumsum(lengths) - lengths, lengths)
        short = np.flatnonzero(lengths <= SHORT_MAX)
        for place in np.flatnonzero(lengths > SHORT_MAX).tolist():
            self._long[pieces[place]] = int(first[place]), int(counts[place])
        self._short += len(short)
        if 2 * self._short > len(self._high):
            self._grow()
        self._insert(places.low[short], places.high[short], first[short], counts[short])

    def _append(self, body: bytes) -> None:
        new = np.frombuffer(body, dtype=self._dtype)
        end = self._ids_end + len(new)
        if end > len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(end, dtype=self._dtype)])
        self._ids[self._ids_end : end] = new
        self._ids_end = end

    def _make_slots(self, count: int) -> None:
        """count: a power of two. A high key of 0 means that nothing is there."""
        self._shift = np.uint64(64 - (count.bit_length() - 1))
        self._low = np.zeros(count, dtype=np.uint64)
        self._high = np.zeros(count, dtype=np.uint64)
        self._first = np.zeros(count, dtype=np.int64)
        self._count = np.zeros(count, dtype=np.int64)

    def _grow(self) -> None:
        """So that half of the slots are empty at least."""
        used = np.flatnonzero(self._high)
        before = [part[used] for part in (self._low, self._high, self._first, self._count)]
        slots = len(self._high)
        while 2 * self._short > slots:
            slots *= 2
        self._make_slots(slots)
        self._insert(*before)

    def _insert(
        self,
        low: NDArray[np.uint64],
        high: NDArray[np.uint64],
        first: Numbers,
        count: Numbers,
    ) -> None:
        """Of those that want the same slot one gets it, and the others look again."""
        left = np.arange(len(low))
        while len(left):
            slots = self._slots_of(low[left], high[left])
            taken, winners = np.unique(slots, return_index=True)
            these = left[winners]
            self._low[taken], self._high[taken] = low[these], high[these]
            self._first[taken], self._count[taken] = first[these], count[these]
            left = np.delete(left, winners)
