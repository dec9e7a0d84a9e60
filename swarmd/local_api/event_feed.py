"""Events to the file and to everybody who follows, from one place.

A follower gets what the file holds after its number, then what comes. It reads at its own speed
from a bounded ring: one that falls behind by more than the ring catches up from the file.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from swarmd.errors import StoreError
from swarmd.events_log import EventLog, read_events
from swarmd.json_record import utc
from swarmd.local_api.server import Args, Emit

log = logging.getLogger("swarmd.events")

RING = 1024


class EventFeed:
    """`publish` is synchronous: it may be called from anywhere in the trio thread."""

    def __init__(self, events: EventLog) -> None:
        self._log = events
        self._ring: deque[dict[str, Any]] = deque(maxlen=RING)
        self._news = trio.Event()
        self.on_event: Callable[[dict[str, Any]], None] = lambda event: None
        """Told each one as it happens, in the trio thread: must only take note."""
        self.failures = 0
        """Events that did not reach the file; health shows why (disk_full, disk_error)."""

    def publish(self, event: str, **fields: Any) -> dict[str, Any] | None:
        """See EventLog.append. None if the disk did not take it; followers do not see it then."""
        try:
            found = self._log.append(event, at=utc(), **fields)
        except StoreError as error:
            self.failures += 1
            log.error("event_not_written event=%s error=%s", event, error)
            return None
        self._ring.append(found)
        self.on_event(found)
        self._news.set()
        self._news = trio.Event()
        return found

    def latest(self, count: int) -> list[dict[str, Any]]:
        """The last ones, oldest first."""
        return list(self._ring)[-count:]

    async def follow(self, args: Args, emit: Emit) -> None:
        """The handler of the request `events`. Ends when it is cancelled."""
        after = args.get("after_seq")
        seq = after if type(after) is int else self._log.seq
        while True:
            news = self._news
            for event in self._after(seq):
                await emit(event)
                seq = event["seq"]
            if self._log.seq <= seq:
                await news.wait()

    def _after(self, seq: int) -> list[dict[str, Any]]:
        if self._ring and self._ring[0]["seq"] <= seq + 1:
            return [event for event in self._ring if event["seq"] > seq]
        return list(read_events(self._log.path, after_seq=seq))[:RING]
