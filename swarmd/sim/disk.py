"""One peer's disk: small files of real bytes, that survive the process but not the disk.

The counterpart of swarmd/node/files.py: every file effect ends once, as an event, a moment later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from swarmd.protocols import effects as fx
from swarmd.sim.clock import World
from swarmd.sim.slots import SimSlots

ACCESS_S = 0.002
"""Of one read, write or hash."""
HASH_BYTES = 32

FileEffect = fx.ReadFile | fx.WriteFile | fx.HashFile


def hash_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


class SimDisk:
    """Files by name. A slot that is to be written holds bytes as its content."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.files: dict[str, bytes] = {}

    def carry_out(
        self, effect: FileEffect, slots: SimSlots, tell: Callable[[fx.Event], None]
    ) -> None:
        """`tell` takes the outcome; it must drop it itself if its process is gone by then."""
        if isinstance(effect, fx.WriteFile):
            data = slots.content(effect.buffer)
            self._world.after(ACCESS_S, self._write, effect, data, tell)
        elif isinstance(effect, fx.ReadFile):
            self._world.after(ACCESS_S, self._read, effect, slots, tell)
        else:
            self._world.after(ACCESS_S, self._hash, effect, tell)

    def _write(self, effect: fx.WriteFile, data: object, tell: Callable[[fx.Event], None]) -> None:
        if not isinstance(data, bytes) or hash_of(data) != effect.hash:
            tell(fx.FileFailed(effect.token, "hash_mismatch", effect.path))
            return
        before = self.files.get(effect.path, b"").ljust(effect.offset_bytes, b"\0")
        end = effect.offset_bytes + len(data)
        self.files[effect.path] = before[: effect.offset_bytes] + data + before[end:]
        tell(fx.FileWritten(effect.token))

    def _read(self, effect: fx.ReadFile, slots: SimSlots, tell: Callable[[fx.Event], None]) -> None:
        held = self.files.get(effect.path)
        if held is None or len(held) < effect.offset_bytes + effect.size_bytes:
            tell(fx.FileFailed(effect.token, "missing", effect.path))
            return
        piece = held[effect.offset_bytes : effect.offset_bytes + effect.size_bytes]
        buffer = slots.acquire(len(piece), piece)
        if buffer is None:
            tell(fx.FileFailed(effect.token, "no_slot", effect.path))
        else:
            tell(fx.FileRead(effect.token, buffer))

    def _hash(self, effect: fx.HashFile, tell: Callable[[fx.Event], None]) -> None:
        held = self.files.get(effect.path)
        if held is None:
            tell(fx.FileFailed(effect.token, "missing", effect.path))
            return
        size = effect.piece_bytes
        hashes = tuple(hash_of(held[at : at + size]) for at in range(0, len(held), size))
        tell(fx.FileHashed(effect.token, len(held), hashes))
