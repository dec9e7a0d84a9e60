"""A picture that stays at the bottom of the terminal while lines are said above it.

For a daemon in the foreground: it must never wait for a terminal, so everything goes out as whole
texts through a writer that drops what nobody takes (drop_writer.py). Standard error and standard
output are the same terminal here; where they are not, there is no picture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from swarmd.cli.live_view import Course, live_lines
from swarmd.cli.output import Printer
from swarmd.peers_record import Peers
from swarmd.status import Status


class LivePicture:
    """write: takes text as it is to go out."""

    def __init__(self, printer: Printer, write: Callable[[str], None]) -> None:
        self._printer = printer
        self._write = write
        self._course = Course()
        self._lines: list[str] = []

    @staticmethod
    def is_possible(printer: Printer) -> bool:
        """A terminal that can move its cursor, on both streams, and nobody who wants quiet."""
        talks = not (printer.is_json or printer.is_quiet or printer.is_verbose)
        return talks and printer.moves_cursor and sys.stderr is not None and sys.stderr.isatty()

    def say(self, line: str) -> None:
        """One line above the picture."""
        self._write(self._printer.repainted([line], len(self._lines)))
        self._write(self._printer.repainted(self._lines, 0))

    def show(self, status: Status, peers: Peers) -> None:
        """The present picture, in place of the last one."""
        self._course.add(status)
        before = len(self._lines)
        self._lines = self._printer.fitting(
            live_lines(status, peers.peers, self._course, self._printer)
        )
        self._write(self._printer.repainted(self._lines, before))
