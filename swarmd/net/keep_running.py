"""A service that ends by an error is started again: nothing a library task raises ends the peer."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

log = logging.getLogger("swarmd.net")

PAUSE_S = 0.2
FAILURES_MAX = 5
WINDOW_S = 60.0
"""More failures than that in this time are no accident, and somebody has to know."""


class _StartedOnce:
    """Hands the first start on to whoever waits for it."""

    def __init__(self, task_status: Any) -> None:
        self._task_status = task_status
        self.is_started = False

    def started(self) -> None:
        if not self.is_started:
            self.is_started = True
            self._task_status.started()


async def keep_running(
    name: str,
    service: Callable[[Any], Awaitable[None]],
    counts: Counter[str],
    *,
    on_restart: Callable[[str], None] = lambda name: None,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `service(task_status)` until it returns. Raises what it raised at its first start, or
    what it raised last if it fails again and again; else failures are logged and counted."""
    start = _StartedOnce(task_status)
    failed_s: deque[float] = deque(maxlen=FAILURES_MAX)
    while True:
        try:
            await service(start)
            return
        except Exception as error:
            now_s = trio.current_time()
            often = len(failed_s) == FAILURES_MAX and now_s - failed_s[0] < WINDOW_S
            if often or not start.is_started:
                raise
            failed_s.append(now_s)
            counts[f"{name}_restarted"] += 1
            log.error("service_restarted name=%s error=%r", name, error, exc_info=error)
            on_restart(name)
        await trio.sleep(PAUSE_S)
