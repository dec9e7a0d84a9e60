"""Documents to two token files in the cache, written once and mapped into memory ever after.

    CACHE/data/KEY/train.bin      ids of the documents that are trained on, a separator after each
                   held_out.bin   the same for the documents that never are
                   index.json     what the two are made of, and their hashes

KEY names the content and the layout, so a folder is either right or damaged, never out of date. A
folder whose files do not hash to what its index says is made again. Folders are written aside,
synced and renamed: a reader sees all of one or nothing. One process at a time packs into a cache
(file lock, released by the system when its holder dies); what a killed one left is swept away.

A document is held out when the hash of its name and content falls below a threshold: no list, no
dependence on order, the same documents on every machine. Where the share gives less than a run
looks at (few or short documents) the threshold is raised just as far as needed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import heapq
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmd.data.sources import ContentDigest, DataMissing, Source
from swarmd.data.tokeniser import SEPARATOR, Tokeniser
from swarmd.errors import Corrupt, DiskFull, NotPermitted, StoreError

LAYOUT_VERSION = 1
WRITE_BUFFER_BYTES = 1 << 20
ASIDE_PREFIX = ".aside-"


@dataclass(frozen=True, slots=True)
class Packed:
    """A corpus in the cache. The arrays are read-only maps of files; nothing is loaded."""

    content_hash: str
    documents: int
    held_out_documents: int
    train: NDArray[Any]
    held_out: NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Index:
    layout: int
    source: str
    content_hash: str
    dtype: str
    documents: int
    held_out_documents: int
    train_tokens: int
    held_out_tokens: int
    train_hash: str
    held_out_hash: str


@dataclass(frozen=True, slots=True)
class _Scan:
    content_hash: str
    threshold: int
    """A document whose first eight digest bytes (big-endian) are below this is held out."""


def pack(
    source: Source,
    tokeniser: Tokeniser,
    cache_dir: Path,
    *,
    held_out_share: float,
    held_out_tokens_min: int,
    content_hash: str = "",
) -> Packed:
    """Open the packed corpus, making it if it is not there or damaged.

    content_hash: what the run demands, 64 hexadecimal digits. A sound folder of that content is
    used without a look at the source. Empty: whatever the source gives now.

    Raises DataMissing if the source cannot be read or has other content, StoreError if the cache
    cannot be written.
    """
    layout = f"{LAYOUT_VERSION}/{tokeniser.name}/{held_out_share!r}/{held_out_tokens_min}"
    parent = cache_dir / "data"
    if content_hash:
        ready = _open_if_sound(_folder(parent, content_hash, layout))
        if ready is not None:
            return ready
    scan = _scan(source, tokeniser, held_out_share, held_out_tokens_min)
    if content_hash and scan.content_hash != content_hash:
        raise _other_content(source, content_hash, scan.content_hash)
    folder = _folder(parent, scan.content_hash, layout)
    with _reporting_store_errors(folder), _only_packer(parent):
        ready = _open_if_sound(folder)
        if ready is None:
            _build(source, tokeniser, scan, folder)
            ready = _open_if_sound(folder)
    if ready is None:
        raise Corrupt(folder, "what was just written does not read back")
    return ready


def _folder(parent: Path, content_hash: str, layout: str) -> Path:
    key = hashlib.blake2b(f"{content_hash}/{layout}".encode(), digest_size=16)
    return parent / key.hexdigest()


# -------------------------------------------------------------------------------------------- scan


def _scan(source: Source, tokeniser: Tokeniser, share: float, tokens_min: int) -> _Scan:
    """First pass: the content hash, and how far down the hash order documents are held out."""
    digest = ContentDigest()
    lowest: list[tuple[int, int]] = []
    """A heap of (-rank, tokens): the lowest ranks that together reach tokens_min, no more."""
    lowest_tokens = 0
    for document in source.documents():
        document_digest = document.digest()
        digest.add(document_digest)
        tokens = len(tokeniser.encode(document.content)) + 1
        heapq.heappush(lowest, (-_rank(document_digest), tokens))
        lowest_tokens += tokens
        while lowest_tokens - lowest[0][1] >= tokens_min:
            lowest_tokens -= heapq.heappop(lowest)[1]
    if not lowest:
        raise DataMissing(
            f"{source.spec} has no text in it",
            path=source.spec,
            hint="every file that matches is empty",
        )
    return _Scan(digest.hexdigest(), max(int(share * 2.0**64), 1 - lowest[0][0]))


def _rank(document_digest: bytes) -> int:
    return int.from_bytes(document_digest[:8], "big")


# ------------------------------------------------------------------------------------------- build


def _build(source: Source, tokeniser: Tokeniser, scan: _Scan, folder: Path) -> None:
    """Second pass: write the files aside, then put them in place."""
    aside = Path(tempfile.mkdtemp(prefix=ASIDE_PREFIX, dir=folder.parent))
    try:
        index = _write_tokens(source, tokeniser, scan, aside)
        with (aside / "index.json").open("w", encoding="utf-8") as file:
            json.dump(asdict(index), file, indent=1)
            _sync(file)
        _sync_folder(aside)
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_tokens(source: Source, tokeniser: Tokeniser, scan: _Scan, aside: Path) -> _Index:
    digest = ContentDigest()
    separator = np.array([SEPARATOR], dtype=tokeniser.dtype).tobytes()
    with _TokenFile(aside / "train.bin") as train, _TokenFile(aside / "held_out.bin") as held_out:
        for document in source.documents():
            document_digest = document.digest()
            digest.add(document_digest)
            part = held_out if _rank(document_digest) < scan.threshold else train
            part.write(tokeniser.encode(document.content).tobytes() + separator)
    if digest.hexdigest() != scan.content_hash:
        raise DataMissing(
            f"{source.spec} changed while it was read",
            path=source.spec,
            hint="wait until nothing writes to these files, then try again",
        )
    token_bytes = np.dtype(tokeniser.dtype).itemsize
    return _Index(
        layout=LAYOUT_VERSION,
        source=source.spec,
        content_hash=scan.content_hash,
        dtype=np.dtype(tokeniser.dtype).str,
        documents=train.writes + held_out.writes,
        held_out_documents=held_out.writes,
        train_tokens=train.size_bytes // token_bytes,
        held_out_tokens=held_out.size_bytes // token_bytes,
        train_hash=train.hexdigest(),
        held_out_hash=held_out.hexdigest(),
    )


class _TokenFile:
    """A file that is hashed while it is written, and synced when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=WRITE_BUFFER_BYTES)
        self._digest = _file_digest()
        self.size_bytes = 0
        self.writes = 0

    def __enter__(self) -> _TokenFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                _sync(self._file)

    def write(self, body: bytes) -> None:
        self._file.write(body)
        self._digest.update(body)
        self.size_bytes += len(body)
        self.writes += 1

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


# -------------------------------------------------------------------------------------------- open


def _open_if_sound(folder: Path) -> Packed | None:
    """The packed corpus, or None if there is none or anything about it is wrong."""
    try:
        index = _Index(**json.loads((folder / "index.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    if index.layout != LAYOUT_VERSION:
        return None
    train = _map_if_sound(folder / "train.bin", index.dtype, index.train_tokens, index.train_hash)
    held_out = _map_if_sound(
        folder / "held_out.bin", index.dtype, index.held_out_tokens, index.held_out_hash
    )
    if train is None or held_out is None:
        return None
    return Packed(
        content_hash=index.content_hash,
        documents=index.documents,
        held_out_documents=index.held_out_documents,
        train=train,
        held_out=held_out,
    )


def _map_if_sound(path: Path, dtype: str, tokens: int, expected: str) -> NDArray[Any] | None:
    digest = _file_digest()
    try:
        with path.open("rb") as file:
            while block := file.read(WRITE_BUFFER_BYTES):
                digest.update(block)
        if digest.hexdigest() != expected:
            return None
        if tokens == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype=dtype)
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(tokens,)))
    except (OSError, ValueError, TypeError):
        return None


# ------------------------------------------------------------------------------------- file system


@contextmanager
def _only_packer(parent: Path) -> Iterator[None]:
    """Hold the cache's lock. Whoever has it may remove what lies aside: its maker is gone."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in parent.glob(f"{ASIDE_PREFIX}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        yield


@contextmanager
def _reporting_store_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(folder, text) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotPermitted(folder, text) from None
        raise StoreError(folder, text) from None


def _file_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32, person=b"swarmd.tokens")


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _other_content(source: Source, expected: str, found: str) -> DataMissing:
    return DataMissing(
        f"{source.spec} is not the run's data: its content hash is {found}, the run's {expected}",
        path=source.spec,
        hint="a file is missing, altered or too many"
        if not source.spec.startswith("builtin:")
        else "another version of Python has another library; use the one the run was made with",
    )
