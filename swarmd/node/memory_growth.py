"""Whether this daemon's memory grows and grows: a leak, which people should report."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

LOOK_S = 60.0
WARM_UP_S = 600.0
"""Caches fill, and buffers find their size."""
LOOKS = 11
"""Ten minutes. The least of the first and of the last three are compared: what is free again after
a peak is no growth."""
SHARE = 3


class MemoryGrowth:
    """rss_bytes: of the daemon, without its worker."""

    def __init__(self, rss_bytes: Callable[[], int]) -> None:
        self._rss_bytes = rss_bytes
        self._seen: deque[int] = deque(maxlen=LOOKS)

    async def keep(self) -> None:
        """Until cancelled."""
        await trio.sleep(WARM_UP_S)
        while True:
            self.note()
            await trio.sleep(LOOK_S)

    def note(self) -> None:
        self._seen.append(self._rss_bytes())

    @property
    def bytes_per_min(self) -> float | None:
        """None while it was not looked at for ten minutes."""
        if len(self._seen) < LOOKS:
            return None
        seen = list(self._seen)
        minutes = (LOOKS - SHARE) * LOOK_S / 60
        return (min(seen[-SHARE:]) - min(seen[:SHARE])) / minutes
