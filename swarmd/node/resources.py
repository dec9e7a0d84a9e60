"""What the daemon and its children use of the machine, read when somebody asks."""

from __future__ import annotations

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
        return Used(rss, self._share(cpu_s), threads, self._process.num_fds())

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
