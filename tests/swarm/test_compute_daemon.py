"""What becomes of a worker when something happens to its daemon. The daemon is a process, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from backend_toys import TESTS_FOLDER
from process_helpers import wait_for_file, wait_until_gone

pytestmark = pytest.mark.process

CHILDREN_GONE_S = 2.0


class Daemon:
    """The running script of compute_daemon.py."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._rest = b""

    async def says(self) -> dict[str, Any]:
        """Its next line."""
        assert self.process.stdout is not None
        with trio.fail_after(60):
            while b"\n" not in self._rest:
                data = await self.process.stdout.receive_some()
                assert data, "the daemon ended"
                self._rest += bytes(data)
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


@asynccontextmanager
async def daemon(kind: str, job: str, folder: Path) -> AsyncIterator[Daemon]:
    command = [sys.executable, f"{TESTS_FOLDER}/compute_daemon.py", kind, job, str(folder)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        yield Daemon(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@pytest.mark.parametrize("job", ["idle", "hang", "hold_interpreter"])
async def test_a_killed_daemon_takes_its_worker_along(job: str, tmp_path: Path) -> None:
    """Idle; in the middle of a job; in the middle of C code that lets no other thread run."""
    async with daemon("toy", job, tmp_path) as running:
        pid = (await running.says())["pid"]
        if job != "idle":
            await wait_for_file(tmp_path / "mark")
        running.process.kill()
        await running.process.wait()
        await wait_until_gone(pid, CHILDREN_GONE_S)


async def test_a_daemon_that_was_stopped_does_not_blame_its_worker(tmp_path: Path) -> None:
    """Both stopped for longer than the silence that costs a worker its life (3 s), as when a laptop
    sleeps or a job is put into the background; the worker comes back last."""
    async with daemon("toy", "wait", tmp_path) as running:
        pid = (await running.says())["pid"]
        await wait_for_file(tmp_path / "mark")
        os.kill(pid, signal.SIGSTOP)
        running.process.send_signal(signal.SIGSTOP)
        await trio.sleep(4)
        running.process.send_signal(signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "until").touch()
        assert "data" in await running.says()


async def test_a_daemon_that_trains_has_no_torch_in_it(tmp_path: Path) -> None:
    async with daemon("stage", "info", tmp_path) as running:
        await running.says()
        said = await running.says()
        assert said["info"]["torch_version"]
        assert said["info"]["parameters"] > 0
        assert said["has_torch"] is False
