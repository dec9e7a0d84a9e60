"""This month's traffic, counted across starts: what `--quota-month` is held against (rules.py).

Bytes through all sockets, strangers' included: what a provider would bill. Written down now and
then: a crash forgets half a minute of it, not the month.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import trio

from swarmd.errors import Corrupt, StoreError
from swarmd.store import read_json, write_json

log = logging.getLogger("swarmd.node")

WRITE_S = 30.0


def local_time() -> datetime:
    return datetime.now().astimezone()


class MonthTraffic:
    """totals: bytes sent and received since the start of this process. now: a month is the
    user's."""

    def __init__(
        self,
        file: Path,
        totals: Callable[[], tuple[int, int]],
        now: Callable[[], datetime] = local_time,
    ) -> None:
        self._file, self._totals, self._now = file, totals, now
        self._counted = 0
        """Of `totals`, what is in `_used_bytes` already."""
        self._month, self._used_bytes = self._read()

    async def keep(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await trio.sleep(WRITE_S)
                self.write()
        finally:
            self.write()

    def used_bytes(self) -> int:
        month, total = self._now().strftime("%Y-%m"), sum(self._totals())
        if month != self._month:
            self._month, self._used_bytes = month, 0
        self._used_bytes += total - self._counted
        self._counted = total
        return self._used_bytes

    def write(self) -> None:
        used = self.used_bytes()
        try:
            write_json(self._file, {"month": self._month, "bytes": used})
        except StoreError as error:  # told by whoever needs the disk for more than a number
            log.warning("traffic_of_the_month_not_written error=%s", error)

    def _read(self) -> tuple[str, int]:
        try:
            found = read_json(self._file)
        except Corrupt as error:
            log.error("traffic_of_the_month_unreadable error=%s", error)
            found = None
        match found:
            case {"month": str() as month, "bytes": int() as used} if used >= 0:
                return month, used
        return self._now().strftime("%Y-%m"), 0
