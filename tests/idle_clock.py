"""A clock for swarms in one process: time passes only while everybody waits.

Such a swarm does its work, torch included, between two waits of one event loop. By the wall a slow
or crowded machine would then be late at deadlines that it keeps on any other day, and a pause of it
would look like the silence of all. By this clock work takes no time, and a wait takes no longer
than up to the next deadline: what a swarm does in time is its own doing, on every machine. What
shall take time sleeps.
"""

from __future__ import annotations

import time

from trio.abc import Clock, Instrument

HANG_S = 900.0
"""By the wall: a loop that never waits must fail its test some time."""


class IdleClock(Clock, Instrument):
    """Given to a test as an argument, it is the clock of that test's loop and sees its waits."""

    def __init__(self) -> None:
        self._idle_s = 0.0
        self._started_s = self._waits_since_s = 0.0

    def start_clock(self) -> None:
        self._started_s = time.perf_counter()

    def current_time(self) -> float:
        """Once the test hangs, a time at which all deadlines are over."""
        hangs = time.perf_counter() - self._started_s > HANG_S
        return self._idle_s + (HANG_S if hangs else 0.0)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def before_io_wait(self, timeout: float) -> None:
        self._waits_since_s = time.perf_counter()

    def after_io_wait(self, timeout: float) -> None:
        self._idle_s += min(timeout, time.perf_counter() - self._waits_since_s)
