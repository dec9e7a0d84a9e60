"""How the daemon is told to stop, and what makes sure that it does.

First SIGTERM or SIGINT: drain, up to its deadline. Second: stop now. The lifeline: whoever started
us is gone, stop now. After the deadline and the grace a watchdog thread ends the process, whatever
still blocks: trio cannot cancel what does not yield.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from swarmd import early_signals
from swarmd.daemon_spawn import LIFELINE_VARIABLE

log = logging.getLogger("swarmd.daemon")

_PR_SET_PDEATHSIG = 1


async def watch_signals(
    on_first: Callable[[int], None],
    on_second: Callable[[int], None],
    *,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """SIGTERM and SIGINT, counted together."""
    with trio.open_signal_receiver(*early_signals.NUMBERS) as signals:
        task_status.started()
        seen = 0
        for number in early_signals.take():
            seen += 1
            (on_first if seen == 1 else on_second)(number)
        async for number in signals:
            seen += 1
            (on_first if seen == 1 else on_second)(number)


async def watch_other_signals(
    on_hang_up: Callable[[], None],
    on_dump: Callable[[], Awaitable[None]],
    *,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """SIGHUP and SIGUSR1, neither of which ends anything."""
    with trio.open_signal_receiver(signal.SIGHUP, signal.SIGUSR1) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                on_hang_up()
            else:
                await on_dump()


async def watch_lifeline(on_end: Callable[[], None]) -> None:
    """Returns at once where nobody gave us one."""
    text = os.environ.pop(LIFELINE_VARIABLE, "")
    if not text.isdigit():
        return
    descriptor = int(text)
    _die_with_parent()
    os.set_blocking(descriptor, False)
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        if not os.read(descriptor, 1):
            log.warning("lifeline_ended")
            on_end()
            return


def _die_with_parent() -> None:
    """A frozen process cannot read its lifeline; on Linux the kernel can end it all the same."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Watchdog:
    """Ends the process if it has not ended by itself. One thread, started when needed."""

    def __init__(self) -> None:
        self._armed = False

    def arm(self, within_s: float, exit_code: int, last_words: Callable[[], None]) -> None:
        """After `within_s`: `last_words`, then exit, without asking anybody. First call counts."""
        if self._armed:
            return
        self._armed = True

        def wait() -> None:
            time.sleep(within_s)
            try:
                last_words()
            finally:
                os._exit(exit_code)

        threading.Thread(target=wait, name="swarmd-watchdog", daemon=True).start()
