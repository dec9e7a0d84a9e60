"""A counter in shared memory by which the daemon sees that its compute worker is awake.

The worker raises it from a thread of its own, so it beats through the longest job, and stops when
the process is stopped, swapped out or hung in a call that holds the interpreter. Looking at it
costs the daemon a memory read: no message, no wake-up. One writer, one reader, one aligned word.
"""

from __future__ import annotations

import mmap
import os
import struct

from swarmd.buffers import create_shared_file

BEAT_INTERVAL_S = 0.25
"""How often the worker beats."""

_WORD = struct.Struct("=Q")


class Pulse:
    """Either side, over an inherited descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> Pulse:
        return cls(create_shared_file("swarmd-pulse", mmap.PAGESIZE))

    @property
    def count(self) -> int:
        value: int = _WORD.unpack_from(self._map)[0]
        return value

    def beat(self) -> None:
        _WORD.pack_into(self._map, 0, self.count + 1)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
