"""What share of the time the peers' processes stood in line for a processor.

A swarm that makes no step on a machine that gives it no time is not stuck. Linux keeps the account:
/proc/PID/schedstat has the nanoseconds that the first thread ran, and those that it was ready to
run and did not. Where there is no such file, nobody is known to starve.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil

SHARE_MAX = 0.95
"""However crowded: a twentieth of the time counts, so that a standstill comes to an end."""


class Starvation:
    """From its making on, over these daemons and their workers, also those that come later."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._since_s = time.monotonic()
        self._pids = list(pids)
        self._waited_s = {pid: waited_s(pid) for pid in _with_children(self._pids)}

    def share(self) -> float:
        """0..SHARE_MAX, of the process that had to wait longest."""
        spent_s = time.monotonic() - self._since_s
        if spent_s <= 0.0:
            return 0.0
        before_s = self._waited_s
        waits = [waited_s(p) - before_s.get(p, 0.0) for p in _with_children(self._pids)]
        return min(SHARE_MAX, max([0.0, *waits]) / spent_s)


def waited_s(pid: int) -> float:
    """Of the first thread of a process, since its start. 0: not known, or it is gone."""
    try:
        fields = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(fields[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _with_children(pids: Iterable[int]) -> list[int]:
    found = []
    for pid in pids:
        found.append(pid)
        try:
            found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            continue
    return found
