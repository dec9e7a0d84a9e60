"""What `swarmd local` says at its end, and when it gives up: a starved swarm is not a stuck one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import swarmd

from swarmd.cli.local_swarm import conductor, render, starvation
from swarmd.cli.local_swarm.conductor import SILENT_S_MIN, STALL_S, START_S_MAX, Conductor
from swarmd.cli.local_swarm.plan import LocalPlan
from swarmd.cli.local_swarm.starvation import SHARE_MAX, Starvation
from swarmd.home import Home
from swarmd.result_records import Local


def failed(**known: Any) -> list[str]:
    usual: dict[str, Any] = {"exit_code": 12, "seed": 7, "command": "swarmd local", "dir": "/x"}
    return render.result_lines(Local(outcome="peer_crashed", wall_s=3.0, **(usual | known)))


def test_what_was_never_measured_is_a_dash_and_nothing_else() -> None:
    text = "\n".join(failed(baseline_loss=2.0))
    assert "None" not in text
    assert "-x" not in text
    assert "audit samples=- gaps=- repeats=-" in text
    assert "gap=- " in text
    assert "ratio=-" in text
    assert "ratio=6.7x" in "\n".join(failed(compression_ratio=6.7))


def test_starvation_is_the_share_of_whoever_had_to_wait_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited, now_s, workers = {11: 5.0, 12: 1.0, 13: 0.0}, [100.0], list[int]()
    monkeypatch.setattr(starvation, "_with_children", lambda pids: [*pids, *workers])
    monkeypatch.setattr(starvation, "waited_s", lambda pid: waited[pid])
    monkeypatch.setattr(starvation.time, "monotonic", lambda: now_s[0])
    found = Starvation([11, 12])
    now_s[0] += 10.0
    assert found.share() == 0.0
    waited[12] += 8.0
    assert found.share() == 0.8
    workers.append(13)
    waited[13] = 9.0
    assert found.share() == 0.9, "a worker that was started later"
    waited[11] += 30.0
    assert found.share() == SHARE_MAX


def test_time_that_this_process_waited_is_told_by_the_system() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("no such account here")
    assert starvation.waited_s(1 << 30) == 0.0
    assert starvation.waited_s(int(Path("/proc/self").resolve().name)) >= 0.0


class _Starves:
    def __init__(self, pids: Any) -> None:
        list(pids)

    def share(self) -> float:
        return 0.9


@pytest.fixture
def swarm(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conductor:
    """Of two peers, not started."""
    plans: list[LocalPlan] = []

    def run(plan: LocalPlan, show: Any) -> Any:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("swarmd.cli.commands.local._run", run)
    swarmd("local", "--peers", "2", "--dir", tmp_path / "swarm", home=home)
    return Conductor(plans[0], lambda at_s, line: None, lambda at_s, view: None)


def test_swarm_has_longer_for_its_first_step_than_for_the_next(swarm: Conductor) -> None:
    assert swarm._patience_s == START_S_MAX
    swarm._last_step = 0
    assert swarm._patience_s == START_S_MAX, "it was looked at, and nothing is done yet"
    swarm._last_step = 1
    assert swarm._patience_s == STALL_S


@pytest.mark.process
def test_peer_that_does_not_answer_is_named_for_it(swarm: Conductor) -> None:
    peer = swarm._add_peer()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        peer.process = process
        swarm._look_at(peer)
        assert swarm._waiting_for(0) == "", "it may be about to"
        swarm.started_s -= SILENT_S_MIN
        swarm._look_at(peer)
        assert swarm._waiting_for(0) == "has not answered for 5 s"
        process.communicate()
    swarm._look_at(peer)
    assert swarm._waiting_for(0) == "", "it has ended, which is told elsewhere"


def test_swarm_on_a_machine_that_gives_it_no_time_is_not_called_stuck(
    swarm: Conductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.started_s -= STALL_S + 1.0
    assert swarm._stood_still_s() >= STALL_S
    swarm._move()
    swarm.started_s -= STALL_S + 1.0
    monkeypatch.setattr(conductor, "Starvation", _Starves)
    assert swarm._stood_still_s() < STALL_S / 5
