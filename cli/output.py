"""What commands print: data to standard output, talk to standard error. One object for all of it.

Commands never call print. The printer knows whether it speaks to a person or to a program: no
colour and no cursor movement unless standard output is a terminal, NO_COLOR obeyed, plain ASCII
where the locale is not UTF-8, control characters in names of other peers made harmless.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any, TextIO

ASCII = str.maketrans(
    {"·": ".", "█": "#", "░": ".", "…": "...", "×": "x", "—": "-", "–": "-", "→": "->"}
    | dict(zip("▁▂▃▄▅▆▇", "_.-=+*#", strict=True))
)
WIDTH_MIN = 40
"""Narrower terminals get lines of that width, and break them themselves."""
PIPE_WIDTH = 10_000
"""Nothing is cut for a program."""
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale says UTF-8. Python's own choice says so too often: in the C locale it
    writes UTF-8 to terminals that may not show it."""
    name = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    said = environ.get("PYTHONIOENCODING") or name.partition(".")[2]
    return said.lower().replace("-", "").startswith("utf8")


def harmless(text: str) -> str:
    """Without control characters: names come from strangers and go to a terminal."""
    return "".join("?" if unicodedata.category(letter)[0] == "C" else letter for letter in text)


def nowhere() -> TextIO:
    """Where a command writes that was started without this stream."""
    return open(os.devnull, "w", encoding="utf-8")


class OutputClosed(Exception):
    """Whoever read our output has gone. Not an OSError: click would make an exit status of that."""


class OutputFailed(Exception):
    """Standard output takes nothing more, as on a full disk: what was asked for is not there."""


class Printer:
    """Writes for one command."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._out = out or sys.stdout or nowhere()
        self._err = err or sys.stderr or nowhere()
        self._env = os.environ if environ is None else environ
        self._ascii = not is_utf8(self._env)
        self.is_json = False
        self.is_quiet = False
        self.is_verbose = False
        self.has_color = True
        self._warned: set[str] = set()

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at standard output."""
        return self._out.isatty()

    @property
    def moves_cursor(self) -> bool:
        """Whether a picture can be drawn over the last one."""
        return self.is_terminal and self._env.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """For layouts. A terminal that is narrower still breaks lines itself."""
        return max(WIDTH_MIN, self._size()[0]) if self.is_terminal else PIPE_WIDTH

    def _size(self) -> tuple[int, int]:
        """Columns and rows of the terminal; what the environment says goes first."""
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            columns, rows = 80, 24
        said = [self._env.get(name, "") for name in ("COLUMNS", "LINES")]
        given = [int(text) if text.isdigit() and int(text) > 0 else None for text in said]
        return given[0] or columns or 80, max(2, given[1] or rows or 24)

    # ----------------------------------------------------------------------------------------- data

    def line(self, text: str = "") -> None:
        """One line of data for people. Control characters only ever come from `style`."""
        self._write(self._out, text.rstrip() + "\n")

    def part(self, text: str) -> None:
        """Data for people that come piece by piece, lines and all. Harmless in a terminal."""
        self._write(self._out, "\n".join(harmless(line) for line in text.split("\n")))

    def object(self, found: Mapping[str, Any]) -> None:
        """One JSON object on one line."""
        import json

        body = json.dumps(found, allow_nan=False, ensure_ascii=self._ascii, separators=(",", ":"))
        self._write(self._out, body + "\n")

    def redraw(self, lines: list[str], previous: int) -> int:
        """Replace the `previous` lines above by these. Returns how many to replace next time."""
        shown = self.fitting(lines)
        self._write(self._out, self.repainted(shown, previous))
        return len(shown)

    def repainted(self, lines: list[str], previous: int) -> str:
        """What replaces the `previous` lines above by these, which must fit."""
        up = f"\x1b[{previous}A" if previous else ""
        text = up + "".join(f"{line.rstrip()}\x1b[K\n" for line in lines) + "\x1b[J"
        return self.plain(text)

    def fitting(self, lines: list[str]) -> list[str]:
        """What the terminal can show at once: a line that it broke, or one that has left it, could
        not be replaced."""
        from swarmd.cli.layout import clip

        columns, rows = self._size()
        return [clip(line, columns) for line in lines[: rows - 1]]

    def plain(self, text: str) -> str:
        """In the letters that this locale has."""
        return text.translate(ASCII).encode("ascii", "replace").decode() if self._ascii else text

    def style(self, text: str, *styles: str) -> str:
        """Coloured where colours can be seen. Meaning never rests on it."""
        if not (self.has_color and self.is_terminal) or "NO_COLOR" in self._env:
            return text
        if self._env.get("TERM") == "dumb":
            return text
        codes = ";".join(_STYLES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    # ----------------------------------------------------------------------------------------- talk

    def say(self, text: str) -> None:
        """Talk. Silent with --quiet."""
        if not self.is_quiet:
            self._write(self._err, text + "\n")

    def detail(self, text: str) -> None:
        """Talk that only --verbose wants."""
        if self.is_verbose:
            self._write(self._err, text + "\n")

    def warn(self, text: str) -> None:
        """Once a command, however often it is found."""
        if text not in self._warned:
            self._warned.add(text)
            self.say(f"swarmd: warning: {harmless(text)}")

    def error(self, lines: list[str]) -> None:
        """Never silent."""
        for line in lines:
            self._write(self._err, line + "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(self.plain(text))
            stream.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            if stream is self._out:
                raise OutputFailed(error.strerror or str(error)) from error
            # talk that cannot be written changes nothing
