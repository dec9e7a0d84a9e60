"""`swarmd local --shape`: checked before anything starts, and handed to every peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import swarmd

from swarmd.cli.local_swarm.conductor import Conductor
from swarmd.cli.local_swarm.plan import LocalPlan
from swarmd.home import Home


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[LocalPlan]:
    """The plans of the command; nothing is started."""
    plans: list[LocalPlan] = []

    def run(plan: LocalPlan, show: Any) -> Any:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("swarmd.cli.commands.local._run", run)
    return plans


def test_every_peer_gets_the_shape(home: Home, planned: list[LocalPlan], tmp_path: Path) -> None:
    swarmd(
        "local",
        "--peers",
        "2",
        "--shape",
        "20mbit,60ms,5ms",
        "--dir",
        tmp_path / "swarm",
        home=home,
    )
    (plan,) = planned
    conductor = Conductor(plan, lambda at_s, line: None, lambda at_s, view: None)
    for _ in range(plan.peers):
        arguments = conductor._add_peer().arguments
        assert arguments[arguments.index("--shape") + 1] == "20mbit,60ms,5ms"


@pytest.mark.parametrize("shape", ["fast", "20mbit,soon", "20mbit,1ms,2ms", "1mbit,1s,1s,1s", ""])
def test_a_wrong_shape_is_exit_2_and_named(
    home: Home, planned: list[LocalPlan], shape: str, tmp_path: Path
) -> None:
    found = swarmd("local", "--shape", shape, "--dir", tmp_path / "swarm", home=home)
    assert found.code == 2
    assert "--shape" in found.err
    assert planned == []
    assert not (tmp_path / "swarm").exists()
