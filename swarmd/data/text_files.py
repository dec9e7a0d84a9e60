"""Text on disk: which files a pattern means, in what order, and what is inside them.

Names are relative to the part of the pattern without wildcards, with "/" everywhere, so that two
machines may keep the same data in different places. Order is that of the names.
"""

from __future__ import annotations

import glob
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from swarmd.data import INSTALL_HINT
from swarmd.data.documents import (
    READ_BYTES,
    DataMissing,
    Document,
    pieces,
    pieces_of_text,
    read_guarded,
    unreadable,
)
from swarmd.data.reading import Reading

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Of one JSON object. It has to be read whole, so a longer one is refused, by name."""


def matching_files(pattern: str) -> list[tuple[str, Path]]:
    """(canonical name, path) of every file that matches, sorted by name. Raises DataMissing."""
    expanded = os.path.expanduser(pattern)
    base = _folder_without_wildcards(expanded)
    found = dict.fromkeys(map(Path, _matches(expanded)))
    files = sorted((path.relative_to(base).as_posix(), path) for path in found if path.is_file())
    lost = sorted(path for path in found if path.is_symlink() and not path.exists())
    if lost:
        raise DataMissing(
            f"{lost[0]} is a link that leads nowhere",
            path=str(lost[0]),
            hint="remove it, or choose a pattern that does not match it",
        )
    if not files:
        hint = _why_none(pattern, expanded)
        raise DataMissing(f"no file matches {pattern}", path=pattern, hint=hint)
    return files


def _why_none(pattern: str, expanded: str) -> str:
    if os.path.isdir(expanded):
        return f"{pattern} is a folder; {expanded}/**/* is all that lies in it"
    if os.path.exists(expanded):
        return f"{pattern} is a pipe, a socket or a device; only files can be read again"
    return "quote the pattern, so that the shell leaves it alone; ** goes into folders"


def _matches(pattern: str) -> Iterator[str]:
    """As `glob` does it, but `**` enters no folder from within itself: a link that leads back up
    would make as many paths as there are ways through it."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    at = parts.index("**")
    after = os.path.join("", *parts[at + 1 :]) or "*"
    for start in glob.iglob(os.path.join(*parts[:at])) if at else ("",):
        for folder in _folders_below(start, ()):
            yield from _matches(os.path.join(glob.escape(folder), after))


def _folders_below(folder: str, inside: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """The folder and those in it, links followed, none whose name begins with a dot. inside: the
    folders that it lies in, by device and number."""
    try:
        status = os.stat(folder or ".")
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:  # no folder, or one that may not be looked into: nothing matches, as with glob
        return
    place = (status.st_dev, status.st_ino)
    if place in inside:
        return
    yield folder
    for entry in entries:
        path = os.path.join(folder, entry.name)
        if os.path.isdir(path) and not entry.name.startswith("."):
            yield from _folders_below(path, (*inside, place))


def text_documents(pattern: str, reading: Reading) -> Iterator[Document]:
    """Every file is a text, cut into documents. Empty ones are left out."""
    for name, path in reading.files(matching_files(pattern)):
        yield from text_file(name, path, reading)


def text_file(name: str, path: Path, reading: Reading) -> Iterator[Document]:
    is_empty = True
    with opened(path, reading) as stream:
        for document in pieces(name, stream, path):
            is_empty = False
            yield document
    reading.empty_texts += is_empty


def jsonl_documents(pattern: str, field: str, reading: Reading) -> Iterator[Document]:
    """Every line is an object; its text is in `field`. Empty lines and texts are left out."""
    for name, path in reading.files(matching_files(pattern)):
        with opened(path, reading) as stream:
            for number, line in enumerate(_lines(stream, path), start=1):
                if line.strip():
                    text = _field_of(line, field, f"{path}, line {number}")
                    reading.empty_texts += not text
                    yield from pieces_of_text(f"{name}:{number}", text)


def opened(path: Path, reading: Reading) -> BinaryIO:
    """The text inside: unpacked if the name ends in .gz or .zst. Raises DataMissing."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    reading.place = file.tell
    if path.suffix == ".gz":
        return cast(BinaryIO, _Gzip(file))
    return _opened_zst(path, file) if path.suffix == ".zst" else file


def needs_package(what: str, package: str, path: str) -> DataMissing:
    """What to say where an optional package is not installed."""
    return DataMissing(
        f"{what} needs the package {package}, which is not installed",
        path=path,
        hint=INSTALL_HINT,
    )


class _Gzip(gzip.GzipFile):
    """Closes the file with itself."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file, mode="rb")
        self.myfileobj = file


def _opened_zst(path: Path, file: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        file.close()
        raise needs_package(f"{path} (zstd)", "zstandard", str(path)) from None
    frames = _ZstFrames(file, lambda: zstandard.ZstdDecompressor().decompressobj())
    return cast(BinaryIO, io.BufferedReader(frames, READ_BYTES))


class _ZstFrames(io.RawIOBase):
    """The text of a .zst file. A frame that is cut short is an error here, as it is with gzip; the
    library's own reader takes it for the end."""

    def __init__(self, file: BinaryIO, new_frame: Callable[[], Any]) -> None:
        self._file = file
        self._new_frame = new_frame
        self._frame: Any = None
        self._packed = b""
        self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            self._packed = self._packed or self._file.read(READ_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or self._new_frame()
            self._text = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._text))
        buffer[:size] = self._text[:size]
        self._text = self._text[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    number = 0
    while line := read_guarded(lambda: stream.readline(LINE_BYTES_MAX + 1), path):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            where = f"{path}, line {number}"
            raise DataMissing(
                f"{where} is longer than {LINE_BYTES_MAX >> 20} MiB",
                path=where,
                hint="an object is read whole; cut it, or give plain text, whose lines may be long",
            )
        text = line.decode("utf-8", "replace")
        yield text.removeprefix("\ufeff") if number == 1 else text


def _field_of(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataMissing(f"{where} is not JSON: {error}", path=where) from None
    except ValueError:  # Python turns no more than some thousand digits into a number
        raise DataMissing(f"{where} has a number of too many digits", path=where) from None
    except RecursionError:
        raise DataMissing(f"{where} is nested too deeply", path=where) from None
    row = value if isinstance(value, dict) else {}
    if field not in row or not isinstance(row[field], str | None):
        raise DataMissing(f"{where} has no text in the field {field!r}", path=where)
    return row[field] or ""


def _folder_without_wildcards(pattern: str) -> Path:
    parts = Path(pattern).parts
    fixed = [*parts[:-1]]
    for index, part in enumerate(fixed):
        if glob.has_magic(part):
            fixed = fixed[:index]
            break
    return Path(*fixed)
