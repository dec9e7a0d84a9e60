"""`--disk-limit`: what this home holds on disk, and whether it may hold more.

Counted is everything below its data, cache and state directories: checkpoints, snapshots for
others, packed data, logs. Not the homes of companions: each has its own share. What is over the
limit is not written; checkpoints that are older than the newest make room for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import trio

from swarmd.checkpoints import CheckpointFolder
from swarmd.errors import OverDiskLimit
from swarmd.home import Home

MEASURE_EVERY_S = 30.0


class DiskQuota:
    """limit_bytes: as it holds now; None: none. All but `keep` block, and belong into a thread."""

    def __init__(self, home: Home, limit_bytes: Callable[[], int | None]) -> None:
        self._home = home
        self._limit_bytes = limit_bytes
        self.used_bytes: int | None = None
        """When it was last measured, and what was written since."""

    async def keep(self) -> None:
        """Measure now and then, until cancelled."""
        while True:
            await trio.to_thread.run_sync(self.measure)
            await trio.sleep(MEASURE_EVERY_S)

    def measure(self) -> int:
        home = self._home
        places = {home.data, home.cache, home.state}
        outer = [place for place in places if places.isdisjoint(place.parents)]
        self.used_bytes = sum(size for place in outer for size in _sizes(place, home.devices))
        return self.used_bytes

    def require(self, more_bytes: int, path: Path) -> None:
        """Raises OverDiskLimit if so much more must not be written; else counts it."""
        limit = self._limit_bytes()
        if limit is None:
            return
        used = self.measure() if self.used_bytes is None else self.used_bytes
        if used + more_bytes > limit:
            raise OverDiskLimit(path, _text(used + more_bytes, limit))
        self.used_bytes = used + more_bytes

    def require_place_for(self, aside: Path, folder: CheckpointFolder, stage: int) -> None:
        """For the checkpoint whose state lies `aside` already: within the limit once those before
        it are gone. Raises OverDiskLimit; then the file aside is gone."""
        limit = self._limit_bytes()
        if limit is None:
            return
        least = self.measure() - folder.bytes_of(stage)
        if least > limit:
            aside.unlink(missing_ok=True)
            raise OverDiskLimit(folder.path, _text(least, limit))

    def make_room(self, folder: CheckpointFolder, stage: int) -> None:
        """Older checkpoints go until the limit holds. The newest stays."""
        limit = self._limit_bytes()
        while limit is not None and self.measure() > limit and folder.drop_oldest(stage):
            pass


def _text(needed: int, limit: int) -> str:
    return f"{needed / 1e9:.3g} GB would be in use, and --disk-limit is {limit / 1e9:.3g} GB"


def _sizes(folder: Path, left_out: Path) -> Iterator[int]:
    """Of every file below it, as far as they are there."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if Path(entry.path) != left_out:
                    yield from _sizes(Path(entry.path), left_out)
            else:
                yield entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
