"""What a source gives: documents, normalised, so that everything after them may rely on it.

A document is valid UTF-8 (what is not becomes U+FFFD), has no byte order mark, no zero byte (it
separates documents; also U+FFFD), is at most DOCUMENT_BYTES_MAX long (longer texts are cut after a
line, or between characters where there is none), and is never empty. Texts are read as streams: a
line of any length needs no more memory than a short one.

The content hash covers names, lengths and bytes of all documents in order.
"""

from __future__ import annotations

import codecs
import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from swarmd.errors import UserError

DOCUMENT_BYTES_MAX = 32 * 1024
"""Small, so that a handful of large files still gives enough documents to hold some out."""

READ_BYTES = 256 * 1024
EXIT_BAD_CONFIG = 78
REPLACEMENT = "\ufffd".encode()


class DataMissing(UserError):
    """The data are not there, not readable, damaged, or not the run's.

    `code` is the reason code data_missing; `path` is the file or pattern that is to blame.
    """

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(
            message,
            code="data_missing",
            exit_code=EXIT_BAD_CONFIG,
            hint=hint,
            details={"path": path},
        )
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


class ContentDigest:
    """The content hash, document by document, from the documents' own digests."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=32, person=b"swarmd.corpus.1")

    def add(self, document_digest: bytes) -> None:
        self._digest.update(document_digest)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def pieces(name: str, stream: BinaryIO, path: Path) -> Iterator[Document]:
    """Normalise a text and cut it into documents. What one holds depends on the text alone.

    Raises DataMissing, naming `path`, if the stream breaks off.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pending = bytearray()
    number, at_start, at_end = 0, True, False
    while not at_end:
        chunk = read_guarded(lambda: stream.read(READ_BYTES), path)
        at_end = not chunk
        text = decoder.decode(chunk, final=at_end)
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        pending += text.encode().replace(b"\0", REPLACEMENT)
        start = 0
        while len(pending) - start > DOCUMENT_BYTES_MAX or (at_end and start < len(pending)):
            end = _cut(pending, start)
            yield Document(f"{name}#{number}" if number else name, bytes(pending[start:end]))
            start = end
            number += 1
        del pending[:start]


def pieces_of_text(name: str, text: str) -> Iterator[Document]:
    """The same for a text that is in memory anyway."""
    body = text.removeprefix("\ufeff").encode("utf-8", "replace").replace(b"\0", REPLACEMENT)
    start = number = 0
    while start < len(body):
        end = _cut(body, start)
        yield Document(f"{name}#{number}" if number else name, body[start:end])
        start = end
        number += 1


def read_guarded(read: Callable[[], bytes], path: Path) -> bytes:
    """What `read` gives. Raises DataMissing, naming `path`, where it fails as files and their
    decompressors do."""
    try:
        return read()
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
    except Exception as error:
        # The package need not be there, so its class is known by name.
        if type(error).__name__ == "ZstdError":
            raise unreadable(path, error) from None
        raise


def unreadable(path: Path, error: Exception) -> DataMissing:
    if isinstance(error, OSError) and error.strerror:
        return DataMissing(f"cannot read {path}: {error.strerror}", path=str(path))
    return DataMissing(f"{path} is cut short or damaged: {error}", path=str(path))


def _cut(text: bytes | bytearray, start: int) -> int:
    """Where the document that begins at `start` ends: with the text, after the last line that it
    has room for, or between two characters."""
    limit = start + DOCUMENT_BYTES_MAX
    if len(text) <= limit:
        return len(text)
    line_end = text.rfind(b"\n", start, limit) + 1
    if line_end:
        return line_end
    while text[limit] & 0xC0 == 0x80:
        limit -= 1
    return limit
