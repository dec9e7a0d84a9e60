"""`swarmd logs`: the log for people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from swarmd.cli import exits
from swarmd.cli.framework import DURATION, Session, command, option
from swarmd.errors import UserError

POLL_S = 0.25
LINES = 200
"""Shown where nothing else is asked for."""


@command(section="Looking")
@option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@option("--since", type=DURATION, help="Only the last DUR.")
@option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    help=f"Only the last N; default {LINES}, or all with --since.",
)
def logs(session: Session, follow: bool, since: float | None, lines: int | None) -> None:
    """The daemon's log. Needs no daemon."""
    file = session.home.log_file
    if not file.exists() and not follow:
        raise UserError(
            f"there is no log at {file}",
            code="no_log",
            exit_code=1,
            hint="no daemon has run in this home yet",
        )
    found = list(_history(file))
    if since is not None:
        found = _newer(found, time.time() - since)
    count = lines if lines is not None else (None if since is not None else LINES)
    for line in found if count is None else found[max(0, len(found) - count) :]:
        _show(session, line)
    if follow:
        with exits.until_ctrl_c():
            for line in _tail(file):
                _show(session, line)


def _show(session: Session, line: str) -> None:
    if session.is_json:
        session.done("", _fields(line))
    else:
        session.printer.line(line)


def _fields(line: str) -> dict[str, Any]:
    """A line of either format, as data."""
    try:
        found = json.loads(line)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    at, _, rest = line.partition(" ")
    level, _, rest = rest.strip().partition(" ")
    logger, _, message = rest.strip().partition(" ")
    return {"at": at, "level": level.lower(), "logger": logger, "message": message}


def _history(file: Path) -> Iterator[str]:
    older = sorted(file.parent.glob(file.name + ".*"), key=lambda path: path.suffix, reverse=True)
    for path in [*older, file]:
        try:
            with path.open(encoding="utf-8", errors="replace") as text:
                yield from (line.rstrip("\n") for line in text)
        except FileNotFoundError:
            continue


def _newer(lines: list[str], oldest_s: float) -> list[str]:
    """From the first line that is young enough; lines without a time belong to the one before."""
    from swarmd.json_record import unix_s

    for index, line in enumerate(lines):
        try:
            if unix_s(str(_fields(line)["at"])) >= oldest_s:
                return lines[index:]
        except (ValueError, KeyError):
            continue
    return []


def _tail(file: Path) -> Iterator[str]:
    """What is appended from now on, across rotation. Never ends."""
    position = file.stat().st_size if file.exists() else 0
    inode = file.stat().st_ino if file.exists() else None
    half = ""
    while True:
        try:
            with file.open(encoding="utf-8", errors="replace") as text:
                if file.stat().st_ino != inode:  # rotated: the new one from its beginning
                    inode, position = file.stat().st_ino, 0
                text.seek(position)
                body = text.read()
                position = text.tell()
        except FileNotFoundError:
            body = ""
        *whole, half = (half + body).split("\n")
        yield from whole
        time.sleep(POLL_S)
