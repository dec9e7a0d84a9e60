"""DATA-01 with real daemons: of two heads one is killed ten times, at random, and comes back each
time; everybody proves afterwards that each sample was counted once, and what was done twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemons import Daemons, daemons

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

SEED = 20
KILLS = 10
HEADS, OTHERS = ("h0", "h1"), ("t0", "t1")
NAMES = (*HEADS, *OTHERS)
LIMIT_S = 300.0


SHAPE = "100mbit,300ms"
"""Links on which the peers wait more than they compute: who comes back needs the processor."""


def start(swarm: Daemons, name: str, **how: Any) -> None:
    stage = "0" if name in HEADS else "1"
    swarm.start(name, "--stage", stage, "--shape", SHAPE, **how)


def led(swarm: Daemons, name: str) -> int:
    """Micro-batches that a head has led over all its lives, as it knows by now."""
    return int(swarm.status(name)["contribution"]["micro_batches"])


def known_of(swarm: Daemons, name: str) -> int:
    """The same as the others know it: what it had not told them dies with a head."""
    found = (swarm.peers[OTHERS[0]].ask("contributions") or {}).get("peers", [])
    of_head = [peer["micro_batches"] for peer in found if peer["name"] == name]
    return max(of_head, default=0)


def audit(swarm: Daemons, name: str) -> dict[str, Any]:
    return swarm.peers[name].ask("audit") or {}


def offline(swarm: Daemons, name: str, *words: str) -> dict[str, Any]:
    """A command about a ledger on paper, of which it prints one object."""
    command = [sys.executable, "-m", "swarmd", "--home", str(swarm.peers[name].home)]
    done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_ten_kills_of_heads_leave_every_sample_counted_once(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    with daemons(tmp_path, stages=2, peers_min=4, inner_steps=4, total_steps=100_000) as swarm:
        start(swarm, "h0", first=True)
        for name in NAMES[1:]:
            start(swarm, name, via="h0")
        for name in HEADS:
            swarm.wait(f"{name} leads", lambda name=name: led(swarm, name) >= 3, LIMIT_S)
        for number in range(KILLS):
            name = rng.choice(HEADS)
            until = led(swarm, name) + rng.randint(1, 4)
            swarm.wait(
                f"{name} is in the middle of something before kill {number}",
                lambda name=name, until=until: led(swarm, name) >= until,
                LIMIT_S,
            )
            swarm.kill(name)
            before = known_of(swarm, name)
            start(swarm, name)
            swarm.wait(
                f"{name} leads again after kill {number}",
                lambda name=name, before=before: led(swarm, name) > before,
                LIMIT_S,
            )
            print(f"kill {number}: {name} at {until}, back with {before}", flush=True)
        reached = max(audit(swarm, name)["samples_completed"] for name in OTHERS)
        for name in NAMES:
            swarm.wait(
                f"{name} knows that all of that is done",
                lambda name=name: audit(swarm, name)["covered_until"] > reached,
                LIMIT_S,
            )
        check(swarm, tmp_path)


def check(swarm: Daemons, folder: Path) -> None:
    """Every peer's proof, its own and from paper."""
    for name in NAMES:
        file = str(folder / f"{name}.ledger")
        assert offline(swarm, name, "data", "ledger", file)["outcome"] == "done"
        proved = offline(swarm, name, "data", "audit", "--ledger", file)
        shown = offline(swarm, name, "contributions", "--ledger", file)["peers"]
        print(name, {key: proved[key] for key in ("samples_completed", "processed_twice")})
        assert proved["clean"], proved
        assert proved["gaps"] == proved["repeats"] == []
        assert proved["covered_until"] <= proved["samples_completed"]
        heads = {swarm.id(head) for head in HEADS}
        led_by = {peer["id"]: peer for peer in shown if peer["id"] in heads}
        assert set(led_by) == heads
        in_all = proved["samples_completed"] + proved["processed_twice"]
        sequences = sum(peer["tokens"] for peer in led_by.values()) / in_all
        assert sequences == int(sequences), "each sample that was worked on is in somebody's name"
        told = audit(swarm, name)
        assert told["clean"]
        assert told["processed_twice"] >= proved["processed_twice"]
