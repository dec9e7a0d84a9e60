"""One command, several devices: a peer for each, and the first one speaks for all of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from daemons import Daemons, answer_of, daemons

pytestmark = [pytest.mark.process, pytest.mark.swarm]

ONE_MORE = ("--device", "cpu")
"""Beside the one that every daemon of these tests is given."""


def slots(swarm: Daemons) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = swarm.status("p0")["slots"]
    return found


def states(swarm: Daemons) -> list[str]:
    return [slot["state"] for slot in slots(swarm)]


def daemon_of(home: str) -> psutil.Process:
    """The process that holds this home's lock."""
    (pid,) = [row["pid"] for row in answer_of("ps")["daemons"] if row["home"] == home]
    return psutil.Process(pid)


@pytest.mark.slow
def test_two_devices_hold_two_stages_and_are_told_and_ended_as_one(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=2, peers_min=2, inner_steps=2) as swarm:
        swarm.start("p0", *ONE_MORE, first=True)
        swarm.wait("both train", lambda: states(swarm) == ["training", "training"])
        ours, other = slots(swarm)
        assert {ours["stage"], other["stage"]} == {0, 1}
        assert (ours["peer"], ours["home"]) == (None, None)
        assert other["home"] == str(swarm.peers["p0"].home / "data" / "devices" / "2")
        assert other["peer"] in swarm.entries("p0")
        rows = answer_of("--home", other["home"], "config", "show")["values"]
        assert rows["net.name"]["value"] == "p0-2"

        swarm.tell("p0", "pause")
        swarm.wait("both are paused", lambda: states(swarm) == ["paused", "paused"])
        swarm.tell("p0", "resume")
        swarm.wait("both train again", lambda: states(swarm) == ["training", "training"])

        swarm.wait("a round is kept", lambda: swarm.status("p0")["progress"]["outer_round"] >= 1)
        kept = Path(other["home"]) / "data" / "checkpoints"
        swarm.wait("the other keeps it too", lambda: list(kept.glob("*/stage-*")))
        companion = daemon_of(other["home"])
        companion.kill()
        swarm.wait("it has ended", lambda: states(swarm)[1] == "failed")
        swarm.wait("it was started again", lambda: states(swarm) == ["training", "training"])
        assert slots(swarm)[1]["peer"] == other["peer"], "the same peer"

        companion = daemon_of(other["home"])
        swarm.peers["p0"].process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        code, said = swarm.peers["p0"].ended()
        assert code == 0, said
        assert not companion.is_running()
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_device_goes_with_the_first_ones_daemon_however_that_ends(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1) as swarm:
        swarm.start("p0", *ONE_MORE, first=True)
        swarm.wait("it answers", lambda: slots(swarm)[-1]["peer"])
        companion = daemon_of(slots(swarm)[-1]["home"])
        process = swarm.peers["p0"].process
        assert process is not None
        process.kill()
        swarm.wait("it is gone", lambda: not companion.is_running())
