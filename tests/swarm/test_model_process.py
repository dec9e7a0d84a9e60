"""A command that has a model in a process of its own ends with it, and it with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_helpers import wait_until_gone
from saved_state_helpers import bytes_run, write_home

from swarmd.cli.process_tree import tree_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

GONE_S = 5.0
"""children_gone_s, at most."""


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`swarmd generate` that has begun to write, in a group of its own, and has hours to go."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job's is ignored
    home = write_home(tmp_path / "home", bytes_run("subspace"), [0, 1], [4])
    words = ["--home", str(home), "generate", "--prompt", "x", "--tokens", "100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "swarmd", *words, "--temperature", "1", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "is_for_group", "status", "said"),
    [
        (signal.SIGKILL, False, -signal.SIGKILL, b""),
        (signal.SIGTERM, False, 143, b"swarmd: error: terminated (terminated)\n"),
        # below the ^C that a terminal shows
        (signal.SIGINT, True, 130, b"\nswarmd: error: interrupted (interrupted)\n"),
    ],
)
async def test_however_the_command_ends_its_process_goes_with_it(
    talking: subprocess.Popen[bytes],
    number: signal.Signals,
    is_for_group: bool,
    status: int,
    said: bytes,
) -> None:
    _, *children = tree_of(talking.pid)
    assert len(children) == 1
    if is_for_group:  # as a terminal's Ctrl-C
        os.killpg(talking.pid, number)
    else:
        talking.send_signal(number)
    _, errors = talking.communicate(timeout=GONE_S)
    assert (talking.returncode, errors) == (status, said)
    print(f"gone after {await wait_until_gone(children[0], GONE_S):.3f} s")
