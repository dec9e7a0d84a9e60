"""A folder that is there whole or not at all: filled beside its place, synced, renamed into it.

While it is filled it is `.NAME.part`, locked by who fills it. The lock goes with its owner, however
that ends: a folder that nobody locks is what a killed one left, and who comes next empties it. Two
who want the same place never mix their files, and neither overwrites the other's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarmd.errors import UserError
from swarmd.store import store_error, sync

TRIES_MAX = 100
"""A folder may be renamed or removed by its holder just before we lock it."""


def check_is_free(target: Path) -> None:
    """Raises UserError (usage) unless `target` is nothing yet, or an empty folder."""
    if not os.path.lexists(target):
        parent = next(place for place in target.parents if os.path.lexists(place))
        if not parent.is_dir():
            raise _usage(f"{parent} is no folder, so {target} cannot be one")
    elif not target.is_dir():
        raise _usage(f"{target} is there already, and is no folder")
    elif _is_filled(target):
        raise _usage(f"{target} is there already")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """The folder to fill. It becomes `target` when the block ends well, and vanishes otherwise.

    Raises UserError (usage, busy) and StoreError.
    """
    check_is_free(target)
    part = target.parent / f".{target.name}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(part, target)
    except OSError as error:
        raise store_error(target, error) from error
    try:
        _empty(part)
        yield part
        _put_in_place(part, target)
    except OSError as error:
        raise store_error(target, error) from error
    finally:
        if _is_same(lock, part):
            shutil.rmtree(part, ignore_errors=True)
        os.close(lock)


def _locked(part: Path, target: Path) -> int:
    """A descriptor of the folder, which holds its lock."""
    for _ in range(TRIES_MAX):
        part.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            break
        if _is_same(lock, part):
            return lock
        os.close(lock)
    raise UserError(
        f"another process writes to {target}",
        code="busy",
        exit_code=75,
        hint="wait for it, or name another folder",
    )


def _is_same(lock: int, part: Path) -> bool:
    """Whether what we have locked still has that name."""
    try:
        return os.path.samestat(os.fstat(lock), part.stat())
    except FileNotFoundError:
        return False


def _empty(part: Path) -> None:
    for path in part.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _put_in_place(part: Path, target: Path) -> None:
    for path in part.iterdir():
        sync(path)
    part.chmod(0o755)
    sync(part)
    try:
        part.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _usage(f"{target} is there already") from None
        raise
    sync(target.parent)


def _is_filled(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError as error:
        raise store_error(folder, error) from error


def _usage(text: str) -> UserError:
    return UserError(
        text, code="usage", exit_code=2, hint="nothing is overwritten: name a new folder"
    )
