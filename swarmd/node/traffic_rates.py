"""How fast bytes go through the sockets of this daemon, and what an inner step costs of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

LOOK_S = 2.0
WINDOW_S = 10.0
STEPS = 16
"""Of so many inner steps the mean is taken."""


class TrafficRates:
    """totals: bytes sent and received at all sockets since the start, strangers' included. step:
    inner steps behind us; None: no stage is held."""

    def __init__(
        self, totals: Callable[[], tuple[int, int]], step: Callable[[], int | None]
    ) -> None:
        self._totals, self._step = totals, step
        self._seen: deque[tuple[float, int, int]] = deque()
        self._steps: deque[tuple[int, int]] = deque(maxlen=STEPS + 1)
        """(inner steps, bytes sent when there were so many)."""

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            self.note(trio.current_time())
            await trio.sleep(LOOK_S)

    def note(self, now_s: float) -> None:
        sent, received = self._totals()
        self._seen.append((now_s, sent, received))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= WINDOW_S:
            self._seen.popleft()
        step = self._step()
        if step is None or (self._steps and step < self._steps[-1][0]):
            self._steps.clear()  # another stage, or an older state of it
        if step is not None and (not self._steps or step > self._steps[-1][0]):
            self._steps.append((step, sent))

    @property
    def bytes_per_s(self) -> tuple[float | None, float | None]:
        """Up and down, over ten seconds; None while that is not known."""
        if len(self._seen) < 2:
            return None, None
        (since_s, sent, received), (until_s, *last) = self._seen[0], self._seen[-1]
        took_s = until_s - since_s
        return (last[0] - sent) / took_s, (last[1] - received) / took_s

    @property
    def bytes_per_step(self) -> float | None:
        """Sent, over the last inner steps."""
        if len(self._steps) < 2:
            return None
        (first, before), (last, after) = self._steps[0], self._steps[-1]
        return (after - before) / (last - first)
