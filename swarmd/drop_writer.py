"""Lines to a pipe that nobody may be reading. What nobody reads is dropped.

A full pipe blocks whoever writes to it, and a daemon must not stop because somebody's `less` does.
So a thread of its own writes, from a bounded queue; when the queue is full the line is lost and
counted, when the pipe is closed all further ones are.
"""

from __future__ import annotations

import os
import queue
import threading

LINES_MAX = 1024
CLOSE_S = 1.0


class DropWriter:
    """Writes lines to a file descriptor, which stays the caller's."""

    def __init__(self, descriptor: int, *, lines_max: int = LINES_MAX) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(lines_max)
        self.dropped = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="drop-writer", daemon=True)
        self._thread.start()

    def write_line(self, text: str) -> None:
        """Never blocks, never raises for what is at the other end."""
        self.write(text + "\n")

    def write(self, text: str) -> None:
        """As it is, and whole or not at all."""
        if self._is_closed:
            self.dropped += 1
            return
        try:
            self._lines.put_nowait(text.encode("utf-8", "backslashreplace"))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Give what is queued CLOSE_S to get out."""
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # closed at the other end, or here: nobody will read any more
                self._is_closed = True
                return
