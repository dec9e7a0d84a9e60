"""state/events.jsonl: what happened, one typed JSON object a line, numbered without gaps.

The daemon appends, rotating by size so that the file stays within the disk limit; anybody may read,
with or without a daemon. Numbers go on across restarts. A half line that a crash left behind is
closed and skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swarmd.json_record import render, to_json
from swarmd.records import Event
from swarmd.store import store_error

BYTES_MAX = 8 << 20
KEEP = 3
"""Older files, `events.jsonl.1` the newest of them."""
_TAIL_BYTES = 1 << 16


class EventLog:
    """One writer: the daemon that holds the home."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX, keep: int = KEEP) -> None:
        """Raises StoreError."""
        self.path = path
        self._bytes_max = bytes_max
        self._keep = keep
        try:
            self._file = _open_append(path)
        except OSError as error:
            raise store_error(path, error) from error
        self.seq = max(_last_seq(file) for file in (path, _older(path, 1)))

    def append(
        self,
        event: str,
        *,
        at: str,
        level: str = "info",
        peer: str | None = None,
        stage: int | None = None,
        round: int | None = None,
        code: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Number it, write it, return it as it stands in the file. Raises StoreError."""
        found = render(
            Event(
                seq=self.seq + 1,
                at=at,
                event=event,
                level=level,  # type: ignore[arg-type]
                peer=peer,
                stage=stage,
                round=round,
                code=code,
                data=data or {},
            ),
            generated_at=at,
        )
        self.seq += 1
        try:
            os.write(self._file, to_json(found).encode() + b"\n")
            if os.fstat(self._file).st_size >= self._bytes_max:
                self._rotate()
        except OSError as error:
            raise store_error(self.path, error) from error
        return found

    def close(self) -> None:
        os.close(self._file)

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            if _older(self.path, number).exists():
                _older(self.path, number).replace(_older(self.path, number + 1))
        self.path.replace(_older(self.path, 1))
        os.close(self._file)
        self._file = _open_append(self.path)


def read_events(path: Path, *, after_seq: int = 0) -> Iterator[dict[str, Any]]:
    """Oldest first, rotated files included. Lines that are no events are skipped."""
    older = sorted(path.parent.glob(path.name + ".*"), key=_number, reverse=True)
    for file in [*older, path]:
        try:
            with file.open("rb") as lines:
                for line in lines:
                    event = _event(line)
                    if event is not None and event["seq"] > after_seq:
                        yield event
        except FileNotFoundError:
            continue


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or type(found.get("seq")) is not int:
        return None
    return found


def _open_append(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor


def _last_seq(path: Path) -> int:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return 0
    events = (_event(line) for line in reversed(lines))
    return next((event["seq"] for event in events if event is not None), 0)


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _number(path: Path) -> int:
    text = path.suffix.removeprefix(".")
    return int(text) if text.isdigit() else 0
