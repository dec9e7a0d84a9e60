"""Where the log goes: state/swarmd.log (rotated) and standard error, as text or JSON lines.

The same line is written at most once in `log_repeat_s`; the next one after that says how often it
was held back. Standard error is written by a thread (drop_writer.py), so that a reader that stops
reading never stops the daemon. Called once, by the daemon.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import time
from collections import OrderedDict
from typing import Any, Literal

from swarmd.drop_writer import DropWriter
from swarmd.home import Home
from swarmd.json_record import to_json, utc

FILE_BYTES_MAX = 8 << 20
FILES_KEPT = 3
REMEMBERED_LINES = 512


class RepeatFilter(logging.Filter):
    """Lets the same line through once in `repeat_s`. Remembers a bounded number of lines."""

    def __init__(self, repeat_s: float) -> None:
        super().__init__()
        self._repeat_s = repeat_s
        self._lines: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        key = (record.name, record.levelno, record.getMessage())
        now_s = time.monotonic()
        since_s, held_back = self._lines.pop(key, (None, 0))
        if since_s is not None and now_s - since_s < self._repeat_s:
            self._lines[key] = (since_s, held_back + 1)
            return False
        if held_back:
            record.msg, record.args = f"{key[2]} (repeated {held_back} times)", None
        self._lines[key] = (now_s, 0)
        if len(self._lines) > REMEMBERED_LINES:
            self._lines.popitem(last=False)
        return True


class TextFormatter(logging.Formatter):
    """`2026-11-30T12:00:00.000Z INFO swarmd.node message`."""

    def __init__(self) -> None:
        super().__init__("%(at)s %(levelname)-7s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.at = utc(record.created)
        return super().format(record)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return to_json(line)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """Mode 0600, whatever the umask."""

    def _open(self) -> Any:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)


class _Tee(logging.Handler):
    """One decision about a record (its filters), then every place."""

    def __init__(self, places: list[logging.Handler]) -> None:
        super().__init__()
        self._places = places

    def emit(self, record: logging.LogRecord) -> None:
        for place in self._places:
            place.handle(record)

    def close(self) -> None:
        for place in self._places:
            place.close()
        super().close()


class _LineHandler(logging.Handler):
    def __init__(self, writer: DropWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write_line(self.format(record))

    def close(self) -> None:
        self._writer.close()
        super().close()


def start_logging(
    home: Home,
    *,
    log_format: Literal["text", "json"] = "text",
    repeat_s: float,
    to_stderr: bool = True,
    is_verbose: bool = False,
) -> logging.Handler:
    """Send the log of this process to the home's file, and to standard error if asked for.

    Returns what `stop_logging` takes.
    """
    places: list[logging.Handler] = [
        _PrivateFile(
            home.log_file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8"
        )
    ]
    if to_stderr:
        places.append(_LineHandler(DropWriter(sys.stderr.fileno())))
    for place in places:
        place.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    tee = _Tee(places)
    tee.addFilter(RepeatFilter(repeat_s))
    root = logging.getLogger()
    root.setLevel(logging.DEBUG if is_verbose else logging.INFO)
    root.addHandler(tee)
    for noisy in ("libp2p", "asyncio", "multiaddr", "async_service"):
        logging.getLogger(noisy).setLevel(logging.DEBUG if is_verbose else logging.WARNING)
    logging.raiseExceptions = False  # a full disk must not print tracebacks from inside logging
    return tee


def stop_logging(handler: logging.Handler) -> None:
    """Give what is queued a moment to get out, and let go of the files."""
    logging.getLogger().removeHandler(handler)
    handler.close()
