"""Files that are whole or not there: written aside, synced, renamed, directory synced.

A crash at any instant leaves the old content or the new, never a mixture. What the system refuses
comes out as a StoreError that says which file and why: DiskFull, NotPermitted, Corrupt.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from swarmd.errors import Corrupt, DiskFull, NotPermitted, StoreError

JSON_BYTES_MAX = 16 << 20
"""A small file of ours that is larger than this is not ours."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(path: Path, error: OSError) -> StoreError:
    """The OSError in our words."""
    text = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return DiskFull(path, text)
    if error.errno in _FORBIDDEN:
        return NotPermitted(path, text)
    return StoreError(path, text)


def refused_by_disk(error: BaseException) -> StoreError | None:
    """For who takes whatever is raised: a disk that has no room, or that nobody may write to, is
    no mistake of ours. None: something else."""
    if isinstance(error, StoreError):
        return error
    if not isinstance(error, OSError) or error.errno not in (*_NO_ROOM, errno.EROFS):
        return None
    # A file that is open already does not say its name when it cannot be written.
    named = error.filename if isinstance(error.filename, str) else "a file"
    return store_error(Path(named), error)


@contextlib.contextmanager
def writing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well, and vanishes otherwise.

    The block may write; readers see the old content until the rename. Raises StoreError.
    """
    import tempfile  # slow to load, and reading commands write nothing

    try:
        descriptor, aside_name = tempfile.mkstemp(
            prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent
        )
    except OSError as error:
        raise store_error(path, error) from error
    aside = Path(aside_name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        raise store_error(path, error) from error
    finally:
        aside.unlink(missing_ok=True)


def write_bytes(path: Path, body: bytes, *, mode: int = 0o600) -> None:
    """Raises StoreError, with the old content untouched."""
    with writing(path, mode=mode) as file:
        file.write(body)


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """Raises StoreError; ValueError if the value holds NaN or Infinity."""
    body = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1)
    write_bytes(path, body.encode() + b"\n", mode=mode)


def read_bytes(path: Path, *, bytes_max: int = JSON_BYTES_MAX) -> bytes | None:
    """None if there is no such file. Raises StoreError; Corrupt if it is too large."""
    try:
        with path.open("rb") as file:
            body = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_error(path, error) from error
    if len(body) > bytes_max:
        raise Corrupt(path, f"holds more than {bytes_max} bytes")
    return body


def check_is_file(path: Path) -> None:
    """Raises Corrupt for a pipe or device, which might never end, or a folder; StoreError where it
    cannot be looked at. What is not there passes: that is told when it is opened."""
    try:
        is_other = path.exists() and not path.is_file()
    except OSError as error:
        raise store_error(path, error) from error
    if is_other:
        raise Corrupt(path, "is not a file")


def read_json(path: Path) -> Any:
    """None if there is no such file. Raises StoreError; Corrupt if it is no JSON."""
    body = read_bytes(path)
    if body is None:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise Corrupt(path, f"is no JSON: {error}") from None


def sync(path: Path) -> None:
    """Make what a file holds last, or of a folder its renames."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
