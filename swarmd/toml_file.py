"""TOML files with the line of every key, so that an error can name file, line and key.

The standard library's parser tells lines only for broken syntax. `Document.where` finds the line of
a key by its own scan of headers and `key =` at line beginnings, which knows strings and brackets
that span lines. It is used for messages and for editing one value in place; values come from the
parser alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.errors import StoreError, UserError
from swarmd.store import read_bytes

FILE_BYTES_MAX = 1 << 20

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$| \(at end of document\)$")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file."""

    path: Path
    text: str
    values: dict[str, Any]

    def where(self, key: str) -> str:
        """`FILE:LINE`, or `FILE` if the key (dotted) does not stand there itself."""
        line = line_of(self.text, key)
        return str(self.path) if line is None else f"{self.path}:{line}"


def bad_config(where: str, text: str, hint: str = "") -> UserError:
    """Exit 78: a config or run file is invalid."""
    return UserError(f"{where}: {text}", code="bad_config", exit_code=78, hint=hint)


def read_toml(path: Path) -> Document | None:
    """None if there is no such file. Raises UserError (exit 78) naming file and line."""
    try:
        body = read_bytes(path, bytes_max=FILE_BYTES_MAX)
    except StoreError as error:
        raise bad_config(str(path), error.text) from error
    return None if body is None else parse_toml(path, body)


def parse_toml(path: Path, body: bytes) -> Document:
    """Raises UserError (exit 78) naming file and line. A byte order mark in front is no text."""
    try:
        text = body.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise bad_config(f"{path}:{line}", "is not UTF-8") from None
    try:
        return Document(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = _AT_LINE.search(message)
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        raise bad_config(f"{path}:{line}", _AT_LINE.sub("", message)) from None


def line_of(text: str, key: str) -> int | None:
    """The line (from 1) on which `section.key` or `[section]` stands."""
    for line, found in _keys(text):
        if found == key:
            return line
    return None


def set_value(text: str, section: str, key: str, literal: str) -> str:
    """The text with `key = literal` in `[section]`; everything else stays, comments included.

    A value that spans lines is not replaced but refused with ValueError.
    """
    lines = text.splitlines()
    line = line_of(text, f"{section}.{key}")
    if line is not None:
        old = lines[line - 1]
        try:
            tomllib.loads(old)
        except tomllib.TOMLDecodeError:
            raise ValueError(f"line {line} is not a value of one line") from None
        comment = _comment_of(old)
        lines[line - 1] = f"{key} = {literal}" + (f"  {comment}" if comment else "")
    else:
        header = line_of(text, section)
        if header is None:
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
            header = len(lines)
        lines.insert(header, f"{key} = {literal}")
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """A value as TOML. Raises ValueError for what TOML cannot say."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {literal(item)}" for key, item in value.items())
        return "{ " + inner + " }" if inner else "{}"
    raise ValueError(f"{value!r} has no form in TOML")


def render_toml(sections: dict[str, dict[str, Any]]) -> str:
    """Sections of plain values, in the given order; None is left out."""
    blocks = []
    for section, values in sections.items():
        lines = [f"{key} = {literal(value)}" for key, value in values.items() if value is not None]
        if lines:
            blocks.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """(line, dotted key) of every header and key."""
    section = ""
    open_string, depth = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not open_string and depth == 0:
            header = _HEADER.fullmatch(line)
            key = None if header else _KEY.match(line)
            if header:
                section = _plain_key(header[1])
                yield number, section
            elif key:
                name = _plain_key(key[1])
                yield number, f"{section}.{name}" if section else name
                yield from ((number, f"{section}.{name}.{inner}") for inner in _inline(line))
        open_string, depth = _scan(line, open_string, depth)


def _inline(line: str) -> list[str]:
    """Keys inside an inline table on this line."""
    return re.findall(r"[{,]\s*([A-Za-z0-9_-]+)\s*=", line)


def _plain_key(text: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in text.split("."))


def _scan(line: str, open_string: str, depth: int) -> tuple[str, int]:
    """What is still open after the line: the delimiter of a long string, and brackets of values."""
    position = 0
    if not open_string and depth == 0 and _HEADER.fullmatch(line):
        return "", 0
    while position < len(line):
        if open_string:
            end = line.find(open_string, position)
            if end < 0:
                return open_string, depth
            position, open_string = end + 3, ""
            continue
        letter = line[position]
        if line.startswith(('"""', "'''"), position):
            open_string, position = line[position : position + 3], position + 3
        elif letter in "\"'":
            position = _string_end(line, position)
        elif letter == "#":
            break
        else:
            depth += (letter in "[{") - (letter in "]}")
            position += 1
    return open_string, max(0, depth)


def _string_end(line: str, start: int) -> int:
    """After the closing quote of a string of one line."""
    quote, position = line[start], start + 1
    while position < len(line) and line[position] != quote:
        position += 2 if line[position] == "\\" and quote == '"' else 1
    return position + 1


def _comment_of(line: str) -> str:
    position = 0
    while position < len(line):
        if line[position] in "\"'":
            position = _string_end(line, position)
        elif line[position] == "#":
            return line[position:]
        else:
            position += 1
    return ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(_escape(letter) for letter in escaped) + '"'


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 32 or ord(letter) == 127 else letter
