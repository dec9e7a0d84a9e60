"""The file effects of a machine, carried out in threads: pieces of state read, checked, written.

Paths in effects are plain names; they lie below one directory and can point nowhere else. Only the
names of checkpoints are looked for where swarmd/checkpoints.py puts those. Bytes go between a slot
of shared memory and the file; hashing happens in the same thread, which gives up the GIL for it.
Every effect ends as one event.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import trio

from swarmd.checkpoints import CheckpointFolder
from swarmd.errors import DiskFull, OverDiskLimit, StoreError
from swarmd.net.transport import PayloadStore
from swarmd.node.disk_quota import DiskQuota
from swarmd.protocols import effects as fx
from swarmd.protocols.saved_states import GUARDED, is_name_of_saved

log = logging.getLogger("swarmd.node")

THREADS_MAX = 2
"""Reads and writes of a donor must not take the cores from its worker."""

FileEffect = fx.ReadFile | fx.WriteFile | fx.HashFile | fx.KeepCheckpoint


class FileLane:
    """One per driver. `run_nowait` takes an effect; `on_event` gets its outcome in the trio thread.

    A write holds its slot until it is done; a read acquires one, or fails with `no_slot`.
    """

    def __init__(
        self,
        folder: Path,
        slots: PayloadStore,
        nursery: trio.Nursery,
        on_event: Callable[[fx.Event], None],
        quota: DiskQuota,
    ) -> None:
        self._folder = folder
        self._quota = quota
        self.checkpoints: CheckpointFolder | None = None
        """Of the run, once that is known."""
        self.guarded: CheckpointFolder | None = None
        """Of other stages, for others."""
        self.is_full = False
        """Injected: every write finds no room."""
        self._slots = slots
        self._nursery = nursery
        self._on_event = on_event
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for former in (*folder.glob("snapshot-*"), *folder.glob("guard-*")):
            former.unlink(missing_ok=True)  # what a former life was serving, or began to guard

    def run_nowait(self, effect: FileEffect) -> None:
        if isinstance(effect, fx.WriteFile):
            self._slots.retain(effect.buffer)
        self._nursery.start_soon(self._run, effect)

    def remove_nowait(self, effect: fx.RemoveFile) -> None:
        self._nursery.start_soon(self._remove, self._path(effect.path))

    async def _remove(self, path: Path) -> None:
        try:
            await self._in_thread(path.unlink, True)
        except OSError as error:
            log.warning("not_removed path=%s why=%s", path, error)

    async def _run(self, effect: FileEffect) -> None:
        try:
            if self.is_full and isinstance(effect, (fx.WriteFile, fx.KeepCheckpoint)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            match effect:
                case fx.ReadFile():
                    event = await self._read(effect)
                case fx.WriteFile():
                    event = await self._write(effect)
                case fx.HashFile():
                    event = await self._hash(effect)
                case fx.KeepCheckpoint():
                    event = await self._keep(effect)
        except StoreError as error:
            event = self._failed(effect, _code_of_store(error), error)
        except OSError as error:
            event = self._failed(effect, _code_of(error), error)
        finally:
            if isinstance(effect, fx.WriteFile):
                self._slots.release(effect.buffer)
        self._on_event(event)

    def _failed(self, effect: FileEffect, code: str, error: Exception) -> fx.Event:
        if isinstance(effect, fx.KeepCheckpoint):  # its event has only the code
            log.warning("checkpoint_not_written code=%s why=%s", code, error)
        return fx.FileFailed(effect.token, code, str(error))

    async def _read(self, effect: fx.ReadFile) -> fx.Event:
        buffer = self._slots.acquire(effect.size_bytes)
        if buffer is None:
            return fx.FileFailed(effect.token, "no_slot", "no slot is free")
        view = self._slots.view(buffer)
        try:
            got = await self._in_thread(
                _read_into, self.path_of(effect.path), effect.offset_bytes, view
            )
        except BaseException:
            self._slots.release(buffer)
            raise
        if got != effect.size_bytes:
            self._slots.release(buffer)
            return fx.FileFailed(effect.token, "missing", "the file is shorter than it was")
        return fx.FileRead(effect.token, buffer)

    async def _write(self, effect: fx.WriteFile) -> fx.Event:
        view = self._slots.view(effect.buffer)
        path = self._path(effect.path)
        await self._in_thread(self._quota.require, len(view), path)
        if not await self._in_thread(_write_checked, path, effect.offset_bytes, view, effect.hash):
            return fx.FileFailed(effect.token, "hash_mismatch", "the bytes are not those announced")
        return fx.FileWritten(effect.token)

    async def _hash(self, effect: fx.HashFile) -> fx.Event:
        path = self.path_of(effect.path)
        size, hashes = await self._in_thread(_hashes_of, path, effect.piece_bytes)
        return fx.FileHashed(effect.token, size, hashes)

    async def _keep(self, effect: fx.KeepCheckpoint) -> fx.Event:
        folder = self.guarded if effect.guarded else self.checkpoints
        assert folder is not None, "a checkpoint before the run is known"

        def keep(checkpoints: CheckpointFolder, state: Path) -> None:
            self._quota.require_place_for(state, checkpoints, effect.stage)
            checkpoints.keep(
                state,
                stage=effect.stage,
                round_number=effect.round,
                step=effect.step,
                ledger=effect.ledger,
            )
            self._quota.make_room(checkpoints, effect.stage)

        await self._in_thread(keep, folder, self._path(effect.path))
        return fx.FileWritten(effect.token)

    async def _in_thread(self, call: Callable[..., object], *arguments: object) -> object:
        return await trio.to_thread.run_sync(call, *arguments, limiter=self._limiter)

    def path_of(self, name: str) -> Path:
        """Where a machine's file lies."""
        if is_name_of_saved(name):
            assert self.checkpoints is not None, "a checkpoint before the run is known"
            return self.checkpoints.state_file(name)
        if name.startswith(GUARDED):
            assert self.guarded is not None, "a snapshot before the run is known"
            return self.guarded.state_file(name.removeprefix(GUARDED))
        return self._path(name)

    def _path(self, name: str) -> Path:
        assert name == os.path.basename(name), f"{name!r} is no plain name"
        assert name not in ("", ".", ".."), "no name"
        return self._folder / name


def names_in(folder: Path) -> list[str]:
    """What former lives have left there."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _read_into(path: Path, offset: int, view: memoryview) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        return file.readinto(view)


def _write_checked(path: Path, offset: int, view: memoryview, wanted: bytes) -> bool:
    if hashlib.blake2b(view, digest_size=32).digest() != wanted:
        return False
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(view):
            written += os.pwrite(descriptor, view[written:], offset + written)
    finally:
        os.close(descriptor)
    return True


def _hashes_of(path: Path, piece_bytes: int) -> tuple[int, tuple[bytes, ...]]:
    hashes, size = [], 0
    with path.open("rb") as file:
        while piece := file.read(piece_bytes):
            size += len(piece)
            hashes.append(hashlib.blake2b(piece, digest_size=32).digest())
    return size, tuple(hashes)


def _code_of_store(error: StoreError) -> str:
    if isinstance(error, OverDiskLimit):
        return "disk_limit"
    return "disk_full" if isinstance(error, DiskFull) else "disk_error"


def _code_of(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    return "missing" if error.errno == errno.ENOENT else "disk_error"
