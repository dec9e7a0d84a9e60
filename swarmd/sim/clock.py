"""Virtual time: a heap of things to do. The whole of the simulator's concurrency is here.

Entries are ordered by (time, sequence), and the sequence number rises with every entry, so two
things due at the same moment happen in the order in which they were arranged. Nothing else decides
an order: no threads, no hashes, no wall clock. A run is a function of its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]


class World:
    """Time, the heap, and the run's randomness."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self._seed = seed
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._sequence = 0

    def rng_for(self, purpose: str) -> random.Random:
        """Randomness of its own for each purpose: drawing more for one changes no other."""
        return random.Random(f"{self._seed}/{purpose}")

    def after(self, delay_s: float, action: Action, *args: Any) -> None:
        """Do it `delay_s` from now."""
        assert delay_s >= 0.0, "the past is over"
        self._sequence += 1
        heappush(self._heap, (self.now_s + delay_s, self._sequence, action, args))

    def at(self, time_s: float, action: Action, *args: Any) -> None:
        assert time_s >= self.now_s, "the past is over"
        self._sequence += 1
        heappush(self._heap, (time_s, self._sequence, action, args))

    def run_until(self, time_s: float) -> None:
        """Do all that is due until then."""
        heap = self._heap
        while heap and heap[0][0] <= time_s:
            self.now_s, _, action, args = heappop(heap)
            action(*args)
        self.now_s = time_s
