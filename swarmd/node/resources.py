"""What the daemon and its children use of the machine, read when somebody asks."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Used:
    rss_bytes: int
    cpu_share: float | None
    """In cores, over the last ten seconds; None at first."""
    threads: int
    open_fds: int
    sockets: int | None
    """Of the daemon, which alone has any but pipes to it; None where the system does not tell."""


class ResourceMeter:
    """Of one process and its children, but for those of `left_out()` and theirs."""

    def __init__(self, pid: int, left_out: Callable[[], Collection[int]] = tuple) -> None:
        self._process = psutil.Process(pid)
        self._left_out = left_out
        self._cpu: deque[tuple[float, float]] = deque()

    def read(self) -> Used:
        rss, cpu_s, threads = 0, 0.0, 0
        for process in [self._process, *self._children()]:
            try:
                with process.oneshot():
                    rss += process.memory_info().rss
                    times = process.cpu_times()
                    cpu_s += times.user + times.system
                    threads += process.num_threads()
            except psutil.NoSuchProcess:
                continue
        share, fds = self._share(cpu_s), self._process.num_fds()
        return Used(rss, share, threads, fds, _sockets(self._process.pid))

    def _children(self) -> Iterator[psutil.Process]:
        others = self._left_out()
        for child in self._process.children():
            if child.pid not in others:
                yield child
                with suppress(psutil.NoSuchProcess):
                    yield from child.children(recursive=True)

    def _share(self, cpu_s: float) -> float | None:
        now_s = time.monotonic()
        self._cpu.append((now_s, cpu_s))
        while len(self._cpu) > 2 and now_s - self._cpu[1][0] >= WINDOW_S:
            self._cpu.popleft()
        since_s, before_s = self._cpu[0]
        if now_s - since_s < 1.0 or cpu_s < before_s:
            return None
        return round((cpu_s - before_s) / (now_s - since_s), 3)


def _sockets(pid: int) -> int | None:
    """By what /proc says its descriptors are: psutil would look for each one's address, too."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return sum(_is_socket(entry.path) for entry in entries)
    except OSError:
        return None


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:
        return False  # closed since it was listed
