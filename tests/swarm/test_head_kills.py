"""DATA-01 with real daemons: of two heads one is killed ten times, at random, and comes back each
time; everybody proves afterwards that each sample was counted once, and what was done twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from daemons import Daemons, daemons

from swarmd.home import home_at

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

SEED = 20
KILLS = 10
HEADS, OTHERS = ("h0", "h1"), ("t0", "t1")
NAMES = (*HEADS, *OTHERS)
LIMIT_S = 1200.0
"""For anything. What takes seconds on a free machine takes minutes on one that starves."""
SHAPE = "100mbit,300ms"
"""Links on which the peers wait more than they compute: who comes back needs the processor."""


def start(swarm: Daemons, name: str, **how: Any) -> None:
    stage = "0" if name in HEADS else "1"
    swarm.start(name, "--stage", stage, "--shape", SHAPE, **how)


def first_s(swarm: Daemons, name: str) -> float | None:
    """From its present start to the first micro-batch that it did; None before."""
    found: float | None = swarm.status(name).get("join", {}).get("first_contribution_s")
    return found


def seconds_by_reason(swarm: Daemons, name: str) -> dict[str, float]:
    """What its present life was spent on, as far as it took a second."""
    found = swarm.status(name)["time"]["by_reason"]
    return {reason: round(seconds, 1) for reason, seconds in found.items() if seconds >= 1.0}


def is_busy(swarm: Daemons, name: str) -> bool:
    """A head that has led in this life, and is in the middle of something."""
    return first_s(swarm, name) is not None and swarm.status(name)["data"]["leases_held"] > 0


class Progress:
    """What one who is never killed has counted, and how long that stood still."""

    def __init__(self, swarm: Daemons, witness: str) -> None:
        self._swarm, self._witness = swarm, witness
        self._moved_s = time.monotonic()
        self.samples = 0
        self.still_s = 0.0
        """The longest since it was set to 0."""

    def look(self) -> int:
        samples = audit(self._swarm, self._witness)["samples_completed"]
        now_s = time.monotonic()
        self.still_s = max(self.still_s, now_s - self._moved_s)
        if samples > self.samples:
            self.samples, self._moved_s = samples, now_s
        return self.samples


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
    with daemons(tmp_path, stages=2, peers_min=4, inner_steps=8, total_steps=100_000) as swarm:
        start(swarm, "h0", first=True)
        for name in NAMES[1:]:
            start(swarm, name, via="h0")
        progress = Progress(swarm, OTHERS[0])
        swarm.wait("every home holds a state", lambda: all_have_saved(swarm), LIMIT_S)
        for number in range(KILLS):
            kill_one(swarm, rng, progress, number)
        for name in HEADS:
            swarm.wait(f"{name} leads again", lambda name=name: is_busy(swarm, name), LIMIT_S)
        reached = progress.look()
        for name in NAMES:
            swarm.wait(
                f"{name} knows that all of that is done",
                lambda name=name: audit(swarm, name)["covered_until"] >= reached,
                LIMIT_S,
            )
        check(swarm, tmp_path)


def all_have_saved(swarm: Daemons) -> bool:
    """Before that, a stage that loses all its peers at once is lost."""
    homes = [home_at(swarm.peers[name].home) for name in NAMES]
    return all(any(home.checkpoints.glob("*/stage-*")) for home in homes)


def kill_one(swarm: Daemons, rng: random.Random, progress: Progress, number: int) -> None:
    """Once both heads together have done a little more. The one killed before may still be on its
    way back: then there is no head for a moment."""
    name, more = rng.choice(HEADS), rng.randint(1, 6)
    size = swarm.status(OTHERS[0])["data"]["batch_samples_global"]
    until = progress.look() + more * size
    progress.still_s = 0.0
    swarm.wait(
        f"{name} is in the middle of something before kill {number}",
        lambda: progress.look() >= until and is_busy(swarm, name),
        LIMIT_S,
    )
    back_s = first_s(swarm, name)
    by_reason = seconds_by_reason(swarm, name)
    (other,) = set(HEADS) - {name}
    is_alone = first_s(swarm, other) is None
    swarm.kill(name)
    start(swarm, name)
    print(
        f"kill {number}: {name} at sample {progress.samples}, {back_s} s after its start to its "
        f"first; without progress for {progress.still_s:.1f} s at most since the kill before"
        f"{f'; {other} was not back yet' if is_alone else ''}; {by_reason}",
        flush=True,
    )


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
        if name in HEADS:
            own = swarm.status(name)["contribution"]["micro_batches"]
            assert own >= led_by[swarm.id(name)]["micro_batches"], "of all its lives"
        told = audit(swarm, name)
        assert told["clean"]
        assert told["processed_twice"] >= proved["processed_twice"]
