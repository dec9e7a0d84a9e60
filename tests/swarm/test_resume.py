"""Real daemons, all killed at once and started again (STATE-06); their model is taken away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from daemons import answer_of
from free_ports import free_ports

from swarmd.checkpoints import CheckpointFolder
from swarmd.errors import SwarmdError
from swarmd.home import home_at
from swarmd.home_files import known_runs, read_last_exit
from swarmd.local_api.client import Client

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

LIMIT_S = 150.0
"""Nothing here takes long; a hang must end some time."""
swarmd = partial(answer_of, limit_s=LIMIT_S)
RUN = """
[run]
name = "resumed"
preset = "tiny"
stages = 2
inner_steps = 4
total_steps = 48
seed = 7
peers_min = 3
time_scale = "local"

[test]
allow_injection = true
"""


ROUNDS = 12


class Peers:
    """Three daemons: stage 0 once, stage 1 twice. Each keeps its address over its lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_file = folder / "run.toml"
        self.run_file.write_text(RUN, encoding="utf-8")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ports = free_ports(3)

    def home(self, number: int) -> Path:
        return self.folder / f"p{number}"

    def start(self, number: int, *words: str) -> None:
        command = [sys.executable, "-m", "swarmd", "--home", str(self.home(number)), "join"]
        command += [*words, "--listen", f"127.0.0.1:{self.ports[number]}", "--threads", "1"]
        command += ["--device", "cpu", "--lan-discovery", "off", "--no-input", "--stay"]
        with (self.folder / f"p{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def status(self, number: int) -> dict[str, Any]:
        try:
            return Client(home_at(self.home(number)), timeout_s=2.0).ask("status")
        except (SwarmdError, OSError):
            return {}

    def run_id(self, number: int) -> str:
        (known,) = known_runs(home_at(self.home(number)))
        return known.config.run_id

    def round(self, number: int) -> int:
        return int((self.status(number).get("progress") or {}).get("outer_round") or 0)

    def events(self, number: int, name: str) -> list[dict[str, Any]]:
        path = home_at(self.home(number)).events_file
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if found := condition():
            return found
        time.sleep(0.2)
    pytest.fail(f"never: {what}")


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = Peers(tmp_path)
    yield made
    made.kill_all()
    left = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(tmp_path) in word for word in process.info["cmdline"] or [])
        and process.pid != os.getpid()
    ]
    assert not left


def the_disk_of_one_is_full_for_a_while(peers: Peers, number: int) -> None:
    """RES-04: it says so, trains on, keeps what it had, and goes on when there is room."""
    home = str(peers.home(number))
    swarmd("--home", home, "debug", "inject", "disk_full")

    def complaints() -> list[str]:
        health = peers.status(number).get("health") or {}
        return [item["code"] for item in health.get("items", [])]

    wait_for(lambda: "disk_full" in complaints(), "a full disk is told")
    failed = peers.events(number, "checkpoint_failed")[-1]
    assert failed["level"] == "warning"
    assert failed["code"] == "disk_full"
    kept = CheckpointFolder(home_at(peers.home(number)).checkpoints, peers.run_id(number))
    assert kept.find()[0], "those before are whole"
    swarmd("--home", home, "debug", "inject", "--clear")
    wait_for(lambda: "disk_full" not in complaints(), "there is room again")
    last = max(kept.find()[0], key=lambda checkpoint: checkpoint.round)
    assert last.round > failed["round"]


def test_a_swarm_that_was_killed_whole_goes_on_and_its_model_can_be_taken_away(
    peers: Peers,
) -> None:
    peers.start(0, str(peers.run_file), "--first", "--stage", "0")
    link = wait_for(lambda: (peers.status(0).get("run") or {}).get("link"), "a link")
    peers.start(1, link, "--stage", "1")
    peers.start(2, link, "--stage", "1")
    wait_for(lambda: all(peers.round(n) >= 3 for n in range(3)), "three rounds")
    before = max(peers.round(n) for n in range(3))
    peers.kill_all()

    for number in (2, 0, 1):
        peers.start(number)
    wait_for(lambda: all(peers.events(n, "state_restored") for n in range(3)), "all are back")
    for number in range(3):
        restored = peers.events(number, "state_restored")[-1]
        assert restored["round"] >= before - 1
        assert restored["data"]["rounds_lost"] <= 1
    the_disk_of_one_is_full_for_a_while(peers, 1)
    wait_for(lambda: all(peers.round(n) >= ROUNDS for n in range(3)), "the end of the run")
    audit = swarmd("--home", str(peers.home(1)), "data", "audit")
    assert audit["clean"]
    for process in peers.processes.values():
        process.send_signal(signal.SIGTERM)
    for number, process in peers.processes.items():
        assert process.wait(LIMIT_S) == 0, read_last_exit(home_at(peers.home(number)))

    home = ("--home", str(peers.home(0)))
    told = swarmd(*home, "eval", "--from", str(peers.folder), "--threads", "1")
    assert told["round"] == ROUNDS
    assert told["loss"] < 5.0, "what was learnt before is not lost"
    target = peers.folder / "hf"
    made = swarmd(
        *home, "export", "--to", "hf-safetensors", str(target), "--from", str(peers.folder)
    )
    assert made["complete"]
    assert {path.name for path in target.iterdir()} == {file["name"] for file in made["files"]}
    again = swarmd(*home, "eval", "--from", str(target), "--threads", "1")
    text = swarmd(*home, "generate", "--from", str(target), "--prompt", "def ", "--tokens", "8")
    assert text["data"]["round"] == ROUNDS
    assert again["loss"] == pytest.approx(told["loss"], rel=1e-4)
