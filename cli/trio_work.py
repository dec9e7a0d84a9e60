"""What a command does with trio, ended in order by SIGTERM, too.

A signal handler that raised in the middle of trio's loop would break it: what runs is cancelled
instead, so that its children end and its files close, and the signal is told of afterwards. Ctrl-C
is trio's own business.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from swarmd.cli import exits

_T = TypeVar("_T")


def run_trio(work: Callable[..., Awaitable[_T]], *args: Any) -> _T:
    """As trio.run: what `work` raises comes as it is. Raises exits.Terminated after a SIGTERM."""
    found: list[_T] = []
    failed: list[Exception] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(_cancel_at_sigterm, nursery.cancel_scope)
            try:
                found.append(await work(*args))
            except Exception as error:  # the nursery would put it into a group
                failed.append(error)
            nursery.cancel_scope.cancel()

    trio.run(main)
    if failed:
        raise failed[0]
    if not found:
        raise exits.Terminated
    return found[0]


async def _cancel_at_sigterm(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()
            return
