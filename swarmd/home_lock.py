"""One home, one daemon: a lock that the living daemon holds and that a dead one cannot.

The kernel drops an flock with its holder, however that died, so a stale lock is taken over without
asking. `run/lock` names the holder for people. A second lock, on the state directory itself, covers
two sessions whose runtime directories differ but whose identity is one.

flock rather than POSIX record locks: those are lost as soon as anything in the process closes the
file, for instance to read who holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.store import store_error

_PATIENCE_S = 0.5
_PAUSE_S = 0.05
"""A reader that asks `holder_of` holds the lock for an instant; a daemon outlasts it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a home, as it wrote itself down. Unknown in the instant of taking the lock."""

    pid: int | None = None
    started_at: str | None = None
    version: str | None = None


class HomeLock:
    """Held from `acquire_lock` until `release` or the end of the process."""

    def __init__(self, home: Home, lock_descriptor: int, state_descriptor: int) -> None:
        self._home = home
        self._descriptors: tuple[int, ...] = (lock_descriptor, state_descriptor)

    def release(self) -> None:
        """The file goes while the lock is still held: nobody can be holding a removed one."""
        self._home.lock_file.unlink(missing_ok=True)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()


def acquire_lock(
    home: Home,
    *,
    started_at: str,
    version: str,
    wait: bool = False,
    gives_up: Callable[[], bool] = lambda: False,
) -> HomeLock:
    """Take the home, whose directories exist, or raise UserError `home_busy` (exit 75).

    wait: wait for as long as it takes (`--wait-lock`), or until `gives_up`. Blocks; call it before
    the event loop.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            held = _try(home)
        except OSError as error:
            raise store_error(home.lock_file, error) from error
        if held is not None:
            break
        if gives_up() or (not wait and time.monotonic() >= deadline_s):
            raise busy_error(home)
        time.sleep(_PAUSE_S)
    holder = {"pid": os.getpid(), "started_at": started_at, "version": version, "home": str(home)}
    os.ftruncate(held[0], 0)
    os.write(held[0], json.dumps(holder).encode() + b"\n")
    return HomeLock(home, *held)


def holder_of(home: Home) -> Holder | None:
    """Who holds the home now; None if nobody does."""
    try:
        descriptor = os.open(home.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _state_holder(home)
    except OSError as error:
        raise store_error(home.lock_file, error) from error
    try:
        if _flock(descriptor, fcntl.LOCK_SH):
            return _state_holder(home)
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)


def is_held(home: Home) -> bool:
    """Whether a living daemon holds the home."""
    return holder_of(home) is not None


def busy_error(home: Home) -> UserError:
    """Who holds it, since when, and what can be done. Exit 75."""
    holder = holder_of(home) or Holder()
    who = "another daemon" if holder.pid is None else f"the daemon with pid {holder.pid}"
    since = f", since {holder.started_at}" if holder.started_at else ""
    return UserError(
        f"the home {home} is held by {who}{since}",
        code="home_busy",
        exit_code=75,
        hint="`swarmd status` shows it, `swarmd leave` stops it, `--wait-lock` waits for it",
    )


def read_lock_file(path: Path) -> dict[str, object]:
    """What stands in a lock file, held or not; empty if it cannot be read."""
    try:
        found = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _try(home: Home) -> tuple[int, int] | None:
    with contextlib.ExitStack() as undo:
        lock = os.open(home.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, lock)
        if not _flock(lock, fcntl.LOCK_EX) or not _is_still_there(lock, home.lock_file):
            return None
        state = os.open(home.state, os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, state)
        if not _flock_folder(state, fcntl.LOCK_EX):
            return None
        undo.pop_all()
        return lock, state


def _flock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flock_folder(descriptor: int, how: int) -> bool:
    """Some network file systems lock files only; there `run/lock` has to do."""
    try:
        return _flock(descriptor, how)
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            return True
        raise


def _is_still_there(descriptor: int, path: Path) -> bool:
    """Not removed by its last holder between our open and our lock."""
    ours = os.fstat(descriptor)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _state_holder(home: Home) -> Holder | None:
    """Somebody whose runtime directory is another one."""
    try:
        descriptor = os.open(home.state, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_error(home.state, error) from error
    try:
        return None if _flock_folder(descriptor, fcntl.LOCK_SH) else Holder()
    finally:
        os.close(descriptor)


def _read_holder(descriptor: int) -> Holder:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return Holder()
    if not isinstance(found, dict):
        return Holder()
    pid, started_at, version = (found.get(key) for key in ("pid", "started_at", "version"))
    return Holder(
        pid if isinstance(pid, int) else None,
        started_at if isinstance(started_at, str) else None,
        version if isinstance(version, str) else None,
    )
