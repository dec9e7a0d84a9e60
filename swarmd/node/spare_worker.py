"""A worker's process that is started ahead of its work, and imports meanwhile.

Importing torch takes seconds, and so does settling with the others who takes which stage. So the
process is started with the peer's first claim, and is handed to whoever first needs one. If nobody
does, it ends with its nursery.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import trio

from swarmd.worker_spawn import SpawnedWorker, spawn_worker

log = logging.getLogger("swarmd.worker")


class SpareWorker:
    """At most one process. `take` it as often as wanted: it is there once."""

    def __init__(self) -> None:
        self._spawned: SpawnedWorker | None = None
        self._taken = trio.Event()

    def start(
        self,
        nursery: trio.Nursery,
        slots_fd: int,
        environment: Mapping[str, str] | None,
        imports: str,
    ) -> None:
        """imports: the module that it loads while it waits."""
        assert self._spawned is None, "one is enough"
        try:
            self._spawned = spawn_worker(slots_fd, environment, imports=imports)
        except OSError as error:
            log.warning("spare_worker_failed error=%s", error)  # the real start will end with it
        else:
            nursery.start_soon(self._keep, self._spawned)

    def take(self) -> SpawnedWorker | None:
        """The process, which is the caller's from now on. None: there is none that lives."""
        spawned, self._spawned = self._spawned, None
        if spawned is None or spawned.process.poll() is not None:
            return None
        self._taken.set()
        return spawned

    async def _keep(self, spawned: SpawnedWorker) -> None:
        try:
            await self._taken.wait()
        finally:
            if not self._taken.is_set():
                _end(spawned)


def _end(spawned: SpawnedWorker) -> None:
    spawned.process.kill()
    spawned.process.wait()
    spawned.control.close()
    os.close(spawned.log_fd)
    spawned.close_lifeline()
