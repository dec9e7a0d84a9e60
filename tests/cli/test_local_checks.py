"""`swarmd local`: what is checked before anything starts, and handed to every peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import swarmd

from swarmd.cli.local_swarm.conductor import Conductor
from swarmd.cli.local_swarm.plan import LocalPlan, require_memory
from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.run_file import read_run_file


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


@pytest.mark.parametrize(
    ("free_gb", "total_gb", "code"), [(8.0, 8.0, None), (1.0, 8.0, 75), (0.5, 1.0, 77)]
)
def test_peers_that_do_not_fit_into_memory_are_refused_before_any_starts(
    home: Home,
    planned: list[LocalPlan],
    tmp_path: Path,
    free_gb: float,
    total_gb: float,
    code: int | None,
) -> None:
    swarmd("local", "--peers", "4", "--stages", "2", "--dir", tmp_path / "swarm", home=home)
    (plan,) = planned
    file = tmp_path / "run.toml"
    file.write_text(plan.run_file())
    run = read_run_file(file).check()
    sizes = {"free_bytes": int(free_gb * 1e9), "total_bytes": int(total_gb * 1e9)}
    if code is None:
        require_memory(plan, run, **sizes)
        return
    with pytest.raises(UserError) as caught:
        require_memory(plan, run, **sizes)
    assert (caught.value.code, caught.value.exit_code) == ("memory_short", code)
    assert "4 peers need about 1.7 GB" in str(caught.value)


def test_memory_is_looked_at_before_a_peer_is_started(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("swarmd.machine_memory.memory_free_bytes", lambda: 10**8)
    monkeypatch.setattr("swarmd.cli.commands.local._measured_run", _unmeasured)
    found = swarmd("local", "--peers", "2", "--dir", tmp_path / "swarm", "--json", home=home)
    assert (found.code, found.error["code"]) == (75, "memory_short")
    assert not list((tmp_path / "swarm").glob("p*"))


def _unmeasured(plan: LocalPlan) -> Any:
    file = plan.dir / "run.toml"
    file.write_text(plan.run_file())
    return read_run_file(file).check()
