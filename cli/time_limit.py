"""`--timeout` for a command that works itself: from when the command began, over all its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from swarmd.cli import exits
from swarmd.cli import format as f
from swarmd.errors import UserError

SAY_EVERY_S = 3.0


class TimeLimit:
    """say: talk, for who waits."""

    def __init__(self, limit_s: float | None, say: Callable[[str], None]) -> None:
        self._limit_s, self._say = limit_s, say
        self._began_s = self._said_s = time.monotonic()

    def left_s(self) -> float | None:
        """None: any time."""
        if self._limit_s is None:
            return None
        return max(0.0, self._began_s + self._limit_s - time.monotonic())

    def check(self) -> None:
        """Raises UserError (timed_out) once it has passed."""
        if self.left_s() == 0.0:
            raise self.passed()

    def passed(self) -> UserError:
        return UserError(
            f"it was not done within {self._limit_s:g} s",
            code="timed_out",
            exit_code=exits.TIMED_OUT,
            hint="a longer --timeout, or none",
        )

    def reading(self, path: Path, bytes_read: int) -> None:
        """For who reads large files: keeps the limit, and says now and then how far it is."""
        self.check()
        if time.monotonic() - self._said_s >= SAY_EVERY_S:
            self._said_s = time.monotonic()
            self._say(f"checking {path}: {f.size(bytes_read)}")
