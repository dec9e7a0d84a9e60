"""`swarmd local` end to end: real processes, real libp2p, a model that learns real text.

Waits are for conditions, never for times; how long things take is the business of benchmarks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmd.errors import SwarmdError
from swarmd.home import home_at
from swarmd.local_api.client import Client

pytestmark = [pytest.mark.process, pytest.mark.swarm]

LIMIT_S = 240.0
"""Nothing here takes long; a hang must end some time."""


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "swarmd", "local", "--dir", str(folder), *words]


def run_local(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """(exit status, the `swarmd.local` object)."""
    done = subprocess.run(
        command(folder, "--json", *words), capture_output=True, text=True, timeout=LIMIT_S
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "{}"
    found: dict[str, Any] = json.loads(last)
    assert found.get("schema") == "swarmd.local", done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode, found


def status_of(home: Path) -> dict[str, Any] | None:
    try:
        return Client(home_at(home), timeout_s=1.0).ask("status")
    except (SwarmdError, OSError):
        return None


def processes_below(folder: Path) -> list[psutil.Process]:
    """Every living process whose command line names the folder."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = process.info["cmdline"] or []
        if any(str(folder) in word for word in line) and process.pid != os.getpid():
            found.append(process)
    return found


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Compute workers that it has started, by way of its daemons."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "swarmd.compute.child" in child.cmdline():
                found.append(child)
    return found


def wait_for(condition: Any, what: str) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    pytest.fail(f"never: {what}")


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Any]:
    """Start `swarmd local` and go on; what is left of it is ended by pid at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(tmp_path / "swarm", *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A test run that was sent to the background ignores it, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for left in processes_below(tmp_path):
        left.kill()


def test_four_peers_on_two_stages_learn_and_lose_a_replica(tmp_path: Path) -> None:
    """Training goes on without the dead one, and each index of each round ends exactly once."""
    code, found = run_local(
        tmp_path / "swarm",
        *("--peers", "4", "--stages", "2", "--steps", "8", "--inner-steps", "4"),
        *("--event", "step=2 kill p3"),
    )
    assert code == 0, found["failed_conditions"]
    assert found["outcome"] == "target_reached"
    assert found["steps"] == 8
    assert found["loss_last"] < found["loss_first"]
    assert found["audit"] == {"samples": 8 * 32, "gaps": 0, "repeats": 0}
    assert found["lost_micro_batches"] == 0
    assert found["events"][0]["outcome"] == "done"
    assert found["boundary"]["compression_ratio"] >= 5.0
    assert found["boundary"]["raw_bytes_per_token"] == 256
    assert {peer["name"]: peer["exit_code"] for peer in found["peers"]} == {
        "p0": 0,
        "p1": 0,
        "p2": 0,
        "p3": -signal.SIGKILL,
    }
    assert not processes_below(tmp_path)


@pytest.mark.slow
def test_a_stage_without_peers_is_the_reason_and_the_end(tmp_path: Path, background: Any) -> None:
    """The only peer of a stage is killed: its neighbours name the stage, `local` ends with 11."""
    process = background(
        *("--peers", "3", "--stages", "3", "--steps", "60", "--plain"),
        *("--event", "step=2 kill p1"),
    )
    homes = [tmp_path / "swarm" / name for name in ("p0", "p2")]

    def names_the_stage() -> bool:
        told = [status_of(home) for home in homes]
        return all(
            status is not None
            and status["reason"]["code"] == "waiting_for_stage"
            and status["reason"]["subject"]["stage"] == 1
            for status in told
        )

    wait_for(names_the_stage, "both neighbours say waiting_for_stage 1")
    for home in homes:
        status = status_of(home)
        assert status is not None
        by_reason = status["time"]["by_reason"]
        assert sum(by_reason.values()) == pytest.approx(status["time"]["uptime_s"], abs=1.0)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 11, output
    assert "stage 1 stopped at step" in output
    assert "Traceback" not in output
    for home in homes:
        assert "Traceback" not in (home / "output.log").read_text()
    assert not processes_below(tmp_path)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_however_the_command_ends_nothing_is_left(
    how: signal.Signals, tmp_path: Path, background: Any
) -> None:
    process = background("--peers", "2", "--stages", "2", "--steps", "500", "--plain")
    began: list[psutil.Process] = wait_for(
        lambda: len(workers_of(process)) == 2 and psutil.Process(process.pid).children(True),
        "two daemons, each with its worker",
    )
    process.send_signal(how)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == (-9 if how == signal.SIGKILL else 143)
    wait_for(lambda: not any(one.is_running() for one in began), "each of them is gone")
    wait_for(lambda: not processes_below(tmp_path), "and nothing else is there")
    assert status_of(tmp_path / "swarm" / "p0") is None
