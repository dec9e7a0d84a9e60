"""Tokens on disk: a folder of shards with an index, and a hash for each block of them.

    FOLDER/index.json          what the tokens are made of, their type and counts
           hashes.bin          BLAKE2b-256 of each block, shard by shard, training before held-out
           train-00000.bin     token ids, little-endian; all shards but a part's last are full
           held_out-00000.bin
           tokenizer.json      where the tokeniser is more than a name

A folder is opened in the time it takes to read the hashes; a block is compared with its hash when
it is read for the first time, and again when its file has changed since. So work begins, or goes on
anywhere, at once, whatever the size, and altered tokens are never trained on.

Shards are read and not mapped: a mapped file that somebody cuts short kills its reader, a read
reports it; and what was read does not stay in the process's memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from swarmd.errors import Corrupt

LAYOUT_VERSION = 2
BLOCK_BYTES = 1 << 20
SHARD_BYTES = 256 << 20
HASH_BYTES = 32
OPEN_FILES_MAX = 64
TOKENISER_FILE = "tokenizer.json"

PartName = Literal["train", "held_out"]
PARTS: tuple[PartName, PartName] = ("train", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """index.json. Counts are of documents, tokens or bytes, as named."""

    layout: int
    source: str
    content_hash: str
    tokeniser: str
    vocab_size: int
    dtype: str
    documents: int
    held_out_documents: int
    mended_documents: int
    """Those with U+FFFD in them: bad UTF-8, zero bytes, or so in the text."""
    empty_texts: int
    """Left out."""
    train_tokens: int
    held_out_tokens: int
    shard_bytes: int
    hashes_hash: str

    def tokens_of(self, part: PartName) -> int:
        return self.train_tokens if part == "train" else self.held_out_tokens

    @property
    def root(self) -> str:
        """Names tokens, type, tokeniser and split at once, wherever the texts lay."""
        body = json.dumps(asdict(self) | {"source": ""}, sort_keys=True).encode()
        return hashlib.blake2b(body, digest_size=32, person=b"swarmd.tokenroot").hexdigest()


@dataclass(frozen=True, slots=True)
class Packed:
    """An open folder."""

    folder: Path
    index: Index
    content_hash: str
    train: TokenPart
    held_out: TokenPart


class TokenPart:
    """The tokens of one part, as if they were one array on disk. Safe for several threads."""

    def __init__(self, folder: Path, part: PartName, index: Index, hashes: bytes) -> None:
        self._folder = folder
        self._part = part
        self._dtype = np.dtype(index.dtype)
        self._tokens = index.tokens_of(part)
        self._shard_bytes = index.shard_bytes
        self._hashes = memoryview(hashes)
        self._open: OrderedDict[int, _Shard] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._tokens

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Token ids start..start+count-1. Raises Corrupt, naming the shard's file."""
        assert 0 <= start <= start + count <= self._tokens
        item = self._dtype.itemsize
        place, end = start * item, (start + count) * item
        body = bytearray()
        while place < end:
            number, offset = divmod(place, self._shard_bytes)
            size = min(end - place, self._shard_bytes - offset)
            with self._lock:
                body += self._shard(number).read(offset, size)
            place += size
        return np.frombuffer(body, dtype=self._dtype)

    def _shard(self, number: int) -> _Shard:
        shard = self._open.pop(number, None)
        if shard is None:
            before = number * self._shard_bytes
            size_bytes = min(self._shard_bytes, self._tokens * self._dtype.itemsize - before)
            hashes = self._hashes[blocks_in(before) * HASH_BYTES :]
            path = self._folder / shard_name(self._part, number)
            shard = _Shard(path, size_bytes, hashes)
        self._open[number] = shard
        if len(self._open) > OPEN_FILES_MAX:
            self._open.popitem(last=False)[1].close()
        return shard


class _Shard:
    """One open file."""

    def __init__(self, path: Path, size_bytes: int, hashes: memoryview) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._hashes = hashes
        self._checked = bytearray(blocks_in(size_bytes))
        self._stamp: tuple[int, int] = (-1, -1)
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise Corrupt(path, error.strerror or str(error)) from None

    def close(self) -> None:
        self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        self._notice_change()
        first, last = offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES
        for block in range(first, last + 1):
            if not self._checked[block]:
                self._check(block)
        return self._pread(offset, size)

    def _notice_change(self) -> None:
        """A file that was written to is checked anew."""
        found = os.fstat(self._file.fileno())
        stamp = (found.st_size, found.st_mtime_ns)
        if stamp != self._stamp:
            if found.st_size != self._size_bytes:
                raise Corrupt(self._path, f"has {found.st_size} bytes, not {self._size_bytes}")
            self._checked = bytearray(len(self._checked))
            self._stamp = stamp

    def _check(self, block: int) -> None:
        start = block * BLOCK_BYTES
        body = self._pread(start, min(BLOCK_BYTES, self._size_bytes - start))
        if block_hash(body) != self._hashes[block * HASH_BYTES :][:HASH_BYTES]:
            raise Corrupt(self._path, f"the block at byte {start} is not what was written")
        self._checked[block] = 1

    def _pread(self, offset: int, size: int) -> bytes:
        body = b""
        while len(body) < size:
            try:
                more = os.pread(self._file.fileno(), size - len(body), offset + len(body))
            except OSError as error:
                raise Corrupt(self._path, error.strerror or str(error)) from None
            if not more:
                raise Corrupt(self._path, "is shorter than it was")
            body = body + more if body else more
        return body


class ShardWriter:
    """Writes one part: shards, and the hashes of their blocks while at it."""

    def __init__(self, folder: Path, part: PartName, shard_bytes: int = SHARD_BYTES) -> None:
        assert shard_bytes % BLOCK_BYTES == 0
        self._folder = folder
        self._part = part
        self._shard_bytes = shard_bytes
        self._pending = bytearray()
        self._file: Any = None
        self._shards = 0
        self._room = 0
        self.hashes = bytearray()
        self.size_bytes = 0

    def write(self, body: bytes) -> None:
        self.size_bytes += len(body)
        self._pending += body
        start = 0
        while len(self._pending) - start >= BLOCK_BYTES:
            self._write_block(bytes(self._pending[start : start + BLOCK_BYTES]))
            start += BLOCK_BYTES
        del self._pending[:start]

    def finish(self) -> None:
        """Write what is left and sync. An empty part has no shard."""
        if self._pending:
            self._write_block(bytes(self._pending))
            self._pending.clear()
        self.close()

    def close(self) -> None:
        if self._file is not None:
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file = None

    def _write_block(self, block: bytes) -> None:
        if not self._room:
            self.close()
            self._file = (self._folder / shard_name(self._part, self._shards)).open("wb")
            self._shards += 1
            self._room = self._shard_bytes
        self._file.write(block)
        self.hashes += block_hash(block)
        self._room -= len(block)


def write_index(folder: Path, index: Index, hashes: bytes) -> None:
    """The last files of a folder, synced."""
    for name, body in (
        ("hashes.bin", hashes),
        ("index.json", json.dumps(asdict(index), indent=1).encode()),
    ):
        with (folder / name).open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())


def open_folder(folder: Path) -> Packed:
    """Raises Corrupt, naming the file, for all that can be seen without reading tokens; and
    FileNotFoundError if there is no index."""
    try:
        index = Index(**json.loads((folder / "index.json").read_text(encoding="utf-8")))
        np.dtype(index.dtype)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise Corrupt(folder / "index.json", str(error)) from None
    if index.layout != LAYOUT_VERSION:
        raise Corrupt(folder / "index.json", f"layout {index.layout}, not {LAYOUT_VERSION}")
    try:
        hashes = (folder / "hashes.bin").read_bytes()
    except OSError as error:
        raise Corrupt(folder / "hashes.bin", error.strerror or str(error)) from None
    if hashes_hash(hashes) != index.hashes_hash:
        raise Corrupt(folder / "hashes.bin", "is not what was written")
    split = blocks_in(index.train_tokens * np.dtype(index.dtype).itemsize) * HASH_BYTES
    for part in PARTS:
        _require_shards(folder, part, index)
    return Packed(
        folder,
        index,
        index.content_hash,
        TokenPart(folder, "train", index, hashes[:split]),
        TokenPart(folder, "held_out", index, hashes[split:]),
    )


def _require_shards(folder: Path, part: PartName, index: Index) -> None:
    left = index.tokens_of(part) * np.dtype(index.dtype).itemsize
    number = 0
    while left > 0:
        path = folder / shard_name(part, number)
        wanted = min(left, index.shard_bytes)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise Corrupt(path, error.strerror or str(error)) from None
        if size != wanted:
            raise Corrupt(path, f"has {size} bytes, not {wanted}")
        left -= wanted
        number += 1


def shard_name(part: PartName, number: int) -> str:
    return f"{part}-{number:05d}.bin"


def blocks_in(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)


def block_hash(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=HASH_BYTES, person=b"swarmd.tokens").digest()


def hashes_hash(hashes: bytes) -> str:
    return hashlib.blake2b(hashes, digest_size=32, person=b"swarmd.tokenhash").hexdigest()
