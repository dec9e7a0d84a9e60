"""How fast the whole swarm is: what its ledger counts, over the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

LOOK_S = 5.0
WINDOW_S = 60.0
SPAN_S_MIN = 10.0
"""Work is counted in lumps, when it is told; less time says nothing."""
SETTLE_S = 15.0
"""After the first work that is known: a newcomer learns of all that was done before in one go."""


class SwarmSpeed:
    """counted_tokens: of everybody, since the run began."""

    def __init__(self, counted_tokens: Callable[[], int]) -> None:
        self._counted_tokens = counted_tokens
        self._seen: deque[tuple[float, int]] = deque()
        self._known_s: float | None = None
        """Since when any work is known."""

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            self.note(trio.current_time())
            await trio.sleep(LOOK_S)

    def note(self, now_s: float) -> None:
        tokens = self._counted_tokens()
        if self._known_s is None and tokens:
            self._known_s = now_s
        if self._known_s is None or now_s - self._known_s < SETTLE_S:
            return
        self._seen.append((now_s, tokens))
        while now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def tokens_per_s(self) -> float | None:
        """None while it is not known."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        took_s = last_s - first_s
        return max(0, last - first) / took_s if took_s >= SPAN_S_MIN else None
