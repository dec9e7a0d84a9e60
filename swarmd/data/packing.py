"""Documents to a folder of tokens (token_folder.py): made once, opened at once ever after.

In the cache, folders are named by content and layout, so one is either right or damaged, never out
of date. A damaged one is made again. Folders are written aside, synced and renamed: a reader sees
all of one or nothing. One process at a time packs into a cache (file lock, released by the system
when its holder dies); what a killed one left is swept away.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swarmd.data.documents import DataMissing
from swarmd.data.sources import Source
from swarmd.data.token_folder import LAYOUT_VERSION, Packed, open_folder
from swarmd.data.token_writing import Recipe, Tell, write_tokens
from swarmd.data.tokeniser import Tokeniser
from swarmd.errors import Corrupt, DiskFull, NotPermitted, StoreError
from swarmd.store import sync

ASIDE_PREFIX = ".aside-"


def pack(
    source: Source,
    tokeniser: Tokeniser,
    cache_dir: Path,
    recipe: Recipe,
    *,
    content_hash: str = "",
    tell: Tell | None = None,
) -> Packed:
    """Open the packed corpus, making it if it is not there or damaged.

    content_hash: what the run demands, 64 hexadecimal digits. A sound folder of that content is
    used without a look at the source. Empty: whatever the source gives now.

    Raises DataMissing if the source cannot be read or has other content, StoreError if the cache
    cannot be written.
    """
    parent = cache_dir / "data"
    if content_hash:
        wanted = folder_of(content_hash, tokeniser.name, recipe, cache_dir)
        ready = _open_if_sound(wanted)
        if ready is not None:
            return ready
    with reporting_store_errors(parent), _only_packer(parent):
        if content_hash:
            ready = _open_if_sound(wanted)
            if ready is not None:
                return ready
        with aside(parent) as made:
            index = write_tokens(source, tokeniser, made, recipe, tell)
            if content_hash and index.content_hash != content_hash:
                raise _other_content(source, content_hash, index.content_hash)
            folder = folder_of(index.content_hash, tokeniser.name, recipe, cache_dir)
            ready = _open_if_sound(folder)
            if ready is None:
                put_in_place(made, folder)
                ready = open_folder(folder)
    return ready


def folder_of(content_hash: str, tokeniser_name: str, recipe: Recipe, cache_dir: Path) -> Path:
    """Where the cache has this content in this layout, or would have it."""
    layout = (
        f"{LAYOUT_VERSION}/{tokeniser_name}/{recipe.held_out_share!r}/{recipe.held_out_tokens_min}"
    )
    key = hashlib.blake2b(f"{content_hash}/{layout}".encode(), digest_size=16)
    return cache_dir / "data" / key.hexdigest()


def _open_if_sound(folder: Path) -> Packed | None:
    """None if there is none, or anything about it is wrong."""
    try:
        return open_folder(folder)
    except (FileNotFoundError, Corrupt):
        return None


# ------------------------------------------------------------------------------------- file system


@contextmanager
def aside(parent: Path) -> Iterator[Path]:
    """A folder beside the right place, to be put there by `put_in_place` or else gone.

    Its maker holds it locked, so what lies there unlocked is of somebody who was killed: it goes.
    """
    for left_over in parent.glob(f"{ASIDE_PREFIX}*"):
        with _locked(left_over) as is_ours:
            if is_ours:
                shutil.rmtree(left_over, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=ASIDE_PREFIX, dir=parent))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether we have it: false if somebody else has, or it is gone by now."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    is_ours = False
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)


def put_in_place(made: Path, folder: Path) -> None:
    """All or nothing: a reader of `folder` sees what was there before, or this."""
    sync(made)
    if folder.exists():
        shutil.rmtree(folder)
    made.rename(folder)
    sync(folder.parent)


@contextmanager
def reporting_store_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(folder, text) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotPermitted(folder, text) from None
        raise StoreError(folder, text) from None


@contextmanager
def _only_packer(parent: Path) -> Iterator[None]:
    """Hold the cache's lock."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _other_content(source: Source, expected: str, found: str) -> DataMissing:
    return DataMissing(
        f"{source.spec} is not the run's data: its content hash is {found}, the run's {expected}",
        path=source.spec,
        hint="a file is missing, altered or too many"
        if not source.spec.startswith("builtin:")
        else "another version of Python has another library; use the one the run was made with",
    )
