"""Documents, in the same order and with the same bytes on every machine that has the same data.

A source is named `KIND:WHAT`, as in a run file:

    builtin:python        the standard library of the running interpreter (its own .py files)
    builtin:python:N      the same, of which N samples are trained on
    text:GLOB             text files, .gz as well, and .zst where `zstandard` is installed
    jsonl:GLOB#FIELD      one JSON object a line; the text is in FIELD

Documents are normalised, so that everything after this file may rely on it: valid UTF-8 (what is
not becomes U+FFFD), no byte order mark, no zero byte (it separates documents; also U+FFFD), at most
DOCUMENT_BYTES_MAX long (longer texts are cut after a line), never empty. A source is read as a
stream: one document is in memory at a time.

Names are relative to the part of GLOB without wildcards, with "/" everywhere, so that two machines
may keep the same data in different places. The content hash covers names, lengths and bytes.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import hashlib
import io
import json
import os
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from swarmd.errors import UserError

DOCUMENT_BYTES_MAX = 32 * 1024
"""Small, so that a handful of large files still gives enough documents to hold some out."""

READ_BYTES = 256 * 1024
EXIT_BAD_CONFIG = 78
REPLACEMENT = "\ufffd".encode()

EXCLUDED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload")
)
"""Not the interpreter's own, or large and unlike other sources."""

GENERATED_PREFIXES = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustomize")
"""Written when Python is built or by the distribution: different on every platform."""


class DataMissing(UserError):
    """The data are not there, not readable, damaged, or not the run's.

    `code` is the reason code data_missing; `path` is the file or pattern that is to blame.
    """

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(message, code="data_missing", exit_code=EXIT_BAD_CONFIG, hint=hint)
        self.path = path


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    content: bytes

    def digest(self) -> bytes:
        """32 bytes over name, length and content; what decides whether it is held out."""
        name = self.name.encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(digest_size=32, person=b"swarmd.document")
        digest.update(len(name).to_bytes(8, "little") + name)
        digest.update(len(self.content).to_bytes(8, "little") + self.content)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed source: `documents()` starts again from the beginning each time."""

    spec: str
    documents: Callable[[], Iterator[Document]]
    samples_max: int = 0
    """Train on that many samples only; 0: on all."""


def parse_source(spec: str) -> Source:
    """Understand `KIND:WHAT`. Raises UserError (bad_config) without looking at any file."""
    kind, _, what = spec.partition(":")
    if kind == "builtin":
        name, _, count = what.partition(":")
        if name != "python" or (count and not (count.isdecimal() and int(count) > 0)):
            raise _bad_source(spec, "built in are builtin:python and builtin:python:N")
        return Source(spec, _python_documents, samples_max=int(count or 0))
    if kind == "text" and what:
        return Source(spec, lambda: _text_documents(what))
    if kind == "jsonl" and what:
        pattern, _, field = what.rpartition("#")
        if not pattern or not field:
            raise _bad_source(spec, "write jsonl:GLOB#FIELD, with the field that holds the text")
        return Source(spec, lambda: _jsonl_documents(pattern, field))
    raise _bad_source(spec, "known are builtin:python, text:GLOB and jsonl:GLOB#FIELD")


def content_hash(source: Source) -> str:
    """64 hexadecimal digits: BLAKE2b-256 over every document in order. Reads the whole source.

    Raises DataMissing.
    """
    digest = ContentDigest()
    for document in source.documents():
        digest.add(document.digest())
    return digest.hexdigest()


class ContentDigest:
    """The content hash, document by document, from the documents' own digests."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=32, person=b"swarmd.corpus.1")

    def add(self, document_digest: bytes) -> None:
        self._digest.update(document_digest)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


# ------------------------------------------------------------------------------------------- kinds


def _python_documents() -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(_python_files(root))
    if not names:
        raise DataMissing(
            f"no Python sources in {root}",
            path=str(root),
            hint="this interpreter comes without its library's sources; use text:GLOB",
        )
    for name in names:
        yield from _text_file(name, root / name)


def _python_files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in EXCLUDED_FOLDERS and not name.startswith("config-")
        ]
        for name in files:
            if name.endswith(".py") and not name.startswith(GENERATED_PREFIXES):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _text_documents(pattern: str) -> Iterator[Document]:
    for name, path in _matching_files(pattern):
        yield from _text_file(name, path)


def _jsonl_documents(pattern: str, field: str) -> Iterator[Document]:
    for name, path in _matching_files(pattern):
        with _opened(path) as stream:
            lines = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="\n")
            for number, line in enumerate(_read_guarded(lines, path), start=1):
                if not line.strip():
                    continue
                text = _field_of(line, field, f"{path}, line {number}")
                body = io.BytesIO(text.encode("utf-8", "replace"))
                yield from _pieces(f"{name}:{number}", body, path)


def _field_of(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataMissing(f"{where} is not JSON: {error}", path=where) from None
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataMissing(f"{where} has no text in the field {field!r}", path=where)
    return text


# ------------------------------------------------------------------------------------------- files


def _matching_files(pattern: str) -> list[tuple[str, Path]]:
    """(canonical name, path) of every file that matches, sorted by name."""
    expanded = os.path.expanduser(pattern)
    base = _folder_without_wildcards(expanded)
    found = [Path(match) for match in glob.glob(expanded, recursive=True)]
    files = sorted((path.relative_to(base).as_posix(), path) for path in found if path.is_file())
    if not files:
        raise DataMissing(
            f"no file matches {pattern}",
            path=pattern,
            hint="quote the pattern, so that the shell leaves it alone; ** goes into folders",
        )
    return files


def _folder_without_wildcards(pattern: str) -> Path:
    parts = Path(pattern).parts
    fixed = [*parts[:-1]]
    for index, part in enumerate(fixed):
        if glob.has_magic(part):
            fixed = fixed[:index]
            break
    return Path(*fixed)


def _text_file(name: str, path: Path) -> Iterator[Document]:
    with _opened(path) as stream:
        yield from _pieces(name, stream, path)


def _opened(path: Path) -> BinaryIO:
    try:
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        if path.suffix == ".zst":
            return _opened_zst(path)
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _opened_zst(path: Path) -> BinaryIO:
    try:
        import zstandard  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise DataMissing(
            f"{path} is compressed with zstd, which this Python cannot read",
            path=str(path),
            hint="pip install zstandard, or unpack the file",
        ) from None
    return cast(BinaryIO, zstandard.open(path, "rb"))


def _read_guarded(lines: io.TextIOWrapper, path: Path) -> Iterator[str]:
    try:
        yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _pieces(name: str, stream: BinaryIO, path: Path) -> Iterator[Document]:
    """Normalise a text and cut it into documents. What one holds depends on the text alone."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pending = bytearray()
    number, at_start, at_end = 0, True, False
    while not at_end:
        try:
            chunk = stream.read(READ_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from None
        at_end = not chunk
        text = decoder.decode(chunk, final=at_end)
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        pending += text.encode().replace(b"\0", REPLACEMENT)
        while len(pending) > DOCUMENT_BYTES_MAX or (at_end and pending):
            size = _cut(pending)
            yield Document(f"{name}#{number}" if number else name, bytes(pending[:size]))
            del pending[:size]
            number += 1


def _cut(text: bytearray) -> int:
    """How many bytes the next document takes: to the last line's end, or between characters."""
    if len(text) <= DOCUMENT_BYTES_MAX:
        return len(text)
    line_end = text.rfind(b"\n", 0, DOCUMENT_BYTES_MAX) + 1
    if line_end:
        return line_end
    size = DOCUMENT_BYTES_MAX
    while text[size] & 0xC0 == 0x80:
        size -= 1
    return size


def _unreadable(path: Path, error: Exception) -> DataMissing:
    if isinstance(error, OSError) and error.strerror:
        return DataMissing(f"cannot read {path}: {error.strerror}", path=str(path))
    return DataMissing(f"{path} is cut short or damaged: {error}", path=str(path))


def _bad_source(spec: str, hint: str) -> UserError:
    return UserError(
        f"cannot use {spec!r} as data", code="bad_config", exit_code=EXIT_BAD_CONFIG, hint=hint
    )
