"""A newcomer beside real replicas: what it fetches, from whom, and when it first counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from daemons import Daemons, daemons

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

JOINED_S_MAX = 20.0
"""The promise, on a machine that is not busy with other things. Here it is only told."""


def transfer_of(swarm: Daemons, name: str) -> dict[str, Any]:
    found: dict[str, Any] = swarm.status(name).get("state_transfer") or {}
    return found


def test_a_newcomer_takes_its_state_from_both_replicas_and_is_soon_counted(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1, peers_min=2, inner_steps=5, total_steps=4000) as swarm:
        swarm.start("p0", first=True)
        swarm.start("p1", via="p0")
        both = ("p0", "p1")
        swarm.wait(
            "the two are in their third round",
            lambda: all(swarm.status(n)["progress"]["outer_round"] >= 3 for n in both),
        )
        swarm.start("p2", via="p0")
        swarm.wait("the state is there", lambda: transfer_of(swarm, "p2")["verified"])
        found = transfer_of(swarm, "p2")
        assert found["bytes_done"] == found["bytes_total"] > 0
        assert found["bytes_refetched"] == 0
        gave = {donor["peer"]: donor["bytes"] for donor in found["donors"]}
        assert set(gave) == {swarm.id("p0"), swarm.id("p1")}
        assert sum(gave.values()) == found["bytes_total"], "no byte came twice"
        first_s = swarm.wait(
            "it is counted", lambda: swarm.status("p2")["join"]["first_contribution_s"]
        )
        uptime_s = swarm.status("p2")["time"]["uptime_s"]
        assert 0.0 < first_s <= uptime_s
        print(f"first contribution {first_s:.1f} s after the start; promised {JOINED_S_MAX:.0f} s")
        print(f"seconds by reason: {swarm.status('p2')['time']['by_reason']}")
        swarm.wait(
            "a round is committed with all three",
            lambda: len(swarm.status("p2")["last_round"]["included"]) == 3,
        )
