"""Signals before the daemon's loop runs are noted, not raised, and found by it first."""

from __future__ import annotations

import os
import signal

import trio

from swarmd import early_signals
from swarmd.node.stopping import watch_signals


async def test_signal_that_came_early_is_the_loops_first() -> None:
    before = signal.getsignal(signal.SIGTERM)
    told: list[tuple[str, int]] = []
    with early_signals.noted():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert early_signals.were_seen()
        async with trio.open_nursery() as nursery:
            await nursery.start(
                watch_signals,
                lambda number: told.append(("first", number)),
                lambda number: told.append(("second", number)),
            )
            nursery.cancel_scope.cancel()
    assert told == [("first", signal.SIGTERM), ("second", signal.SIGINT)]
    assert signal.getsignal(signal.SIGTERM) is before
    assert not early_signals.were_seen()
