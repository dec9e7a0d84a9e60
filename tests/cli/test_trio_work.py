"""What a command does with trio ends in order, and fails as it would by itself."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from swarmd.cli import exits
from swarmd.cli.trio_work import run_trio


async def _fails(error: Exception) -> None:
    await trio.lowlevel.checkpoint()
    raise error


def test_what_the_work_raises_comes_as_it_is() -> None:
    with pytest.raises(OSError, match="no multicast"):
        run_trio(_fails, OSError("no multicast"))


def test_sigterm_ends_the_work_in_order() -> None:
    ended = []

    async def waits() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            ended.append(True)

    with pytest.raises(exits.Terminated):
        run_trio(waits)
    assert ended
