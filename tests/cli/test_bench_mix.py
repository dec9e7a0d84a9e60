"""`swarmd bench mix`: what is counted, who is struck, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import swarmd

from swarmd.cli.bench_mix import OUTERS, _Watch, run_of, systems_of
from swarmd.cli.mix_group import MixGroup
from swarmd.cli.process_tree import TreeSize, signal_tree, size_of, tree_of
from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.partition import stage_parameters

NEST = "import subprocess, sys; print('up', flush=True); subprocess.run([sys.executable, '-c', {}])"
SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def nest() -> Iterator[subprocess.Popen[str]]:
    """A process with a child of its own; both have said that they are up."""
    words = [sys.executable, "-c", NEST.format(repr(SLEEPER))]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "up\n"
        yield process
        signal_tree(process.pid, signal.SIGKILL)


@pytest.mark.process
def test_a_tree_is_a_process_and_its_children(nest: subprocess.Popen[str]) -> None:
    root, child = tree_of(nest.pid)
    assert root == nest.pid
    size = size_of(nest.pid)
    assert size.processes == 2
    assert size.rss_bytes is not None
    assert size.rss_bytes > 2 * 4_000_000, "two interpreters"
    signal_tree(nest.pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + 20.0
    while any(state_of(pid) != "T" for pid in (root, child)):
        assert time.monotonic() < deadline_s, "both are stopped"
        os.sched_yield()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("floats", [100_000, 10_000_000, 50_000_000])
def test_a_vector_is_about_as_long_as_it_should_be(floats: int, tmp_path: Path) -> None:
    run = run_of(floats, 4, 9, OUTERS["swarmd"], tmp_path)
    assert stage_parameters(run, 0) == pytest.approx(floats, rel=2e-3)
    assert run.rounds == 9
    assert run.micro_batches_per_step == 4, "one for each peer"


def test_all_systems_are_those_that_there_are() -> None:
    assert list(systems_of(["all"], None)) == ["swarmd", "swarmd_one_mix"]
    assert list(systems_of(["all"], "python")) == ["swarmd", "swarmd_one_mix", "hivemind"]


class ToldGroup:
    """A group whose peers say what is written here; time is when they say it."""

    def __init__(self, lines: list[tuple[int, dict[str, Any]]], peers: int) -> None:
        self._lines = lines
        self._peers = peers
        self.struck: list[tuple[int, signal.Signals]] = []

    def __len__(self) -> int:
        return self._peers

    def say(self, number: int, **fields: Any) -> None:
        assert fields == {"go": True}

    def hear(self, until_s: float | None = None) -> tuple[int, dict[str, Any]] | None:
        return None if until_s is not None else self._lines.pop(0)

    def sizes(self) -> list[TreeSize]:
        return [TreeSize(2, 100), TreeSize(2, 300), TreeSize(2, 200)]

    def strike(self, number: int, what: signal.Signals) -> None:
        self.struck.append((number, what))


def ends(times_s: list[float], peers: range, outcome: str = "committed") -> Any:
    return [(peer, {"round": 0, "outcome": outcome, "at_s": t}) for t in times_s for peer in peers]


def test_a_fault_is_measured_by_the_longest_round_and_by_those_after_it() -> None:
    lines = [
        *ends([10.0, 11.0, 12.0], range(3)),
        *ends([15.0], range(2), "skipped"),
        *ends([16.5], range(2), "partial"),
        *ends([18.0], range(2)),
        (0, {"digest": "a"}),
        (1, {"digest": "b"}),
    ]
    group = ToldGroup(lines, 3)
    watch = _Watch(group, "frozen", 3, 6)  # type: ignore[arg-type]
    watch.run()
    row = watch.row("swarmd", 1_000)
    assert group.struck == [(2, signal.SIGSTOP)]
    assert (row.seconds_per_round, row.seconds_per_round_after) == (3.0, 1.5)
    assert (row.rounds_failed, row.rounds_partial) == (2, 2)
    assert (row.processes_per_peer, row.rss_bytes_per_peer) == (2, 200)
    assert row.survivors_agree is False


def test_a_healthy_round_is_the_median() -> None:
    lines = [*ends([10.0, 11.0, 12.5, 13.5], range(3)), *((n, {"digest": "a"}) for n in range(3))]
    watch = _Watch(ToldGroup(lines, 3), "healthy", 3, 4)  # type: ignore[arg-type]
    watch.run()
    row = watch.row("swarmd", 1_000)
    assert (row.seconds_per_round, row.seconds_per_round_after) == (1.0, None)
    assert row.survivors_agree is True


@pytest.mark.process
def test_a_peer_that_ends_by_itself_is_named(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; sys.exit('no such thing')"]
    with MixGroup([words], tmp_path, 60.0) as group:
        group.start(0)
        with pytest.raises(UserError, match="peer 0: has ended") as raised:
            group.hear_all("ready")
    assert raised.value.hint == "no such thing"


def test_hivemind_without_its_interpreter_is_refused(home: Home) -> None:
    done = swarmd("bench", "mix", "--system", "hivemind", home=home)
    assert done.code == 2
    assert "--hivemind-python" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--system hivemind --hivemind-python /nowhere/python", "/nowhere/python is no program"),
        ("--system swarmd --floats 1000000000000000", "--floats 1000000000000000 is more than"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(home: Home, words: str, says: str) -> None:
    done = swarmd(*f"bench mix {words}".split(), home=home)
    assert done.code == 2
    assert says in done.err


@pytest.mark.process
def test_three_peers_mix_and_two_go_on_when_one_is_killed(home: Home) -> None:
    words = "bench mix --floats 50000 --peers 3 --case killed --system swarmd --json"
    done = swarmd(*words.split(), home=home)
    assert done.code == 0, done.err
    (row,) = done.object["rows"]
    assert row["case"] == "killed"
    assert row["floats"] == pytest.approx(50_000, rel=0.01)
    assert row["processes_per_peer"] == 2, "a daemon and its worker"
    assert row["rounds_failed"] == 0
    assert row["rounds_partial"] <= 2 * 5, "each of two survivors has five rounds without the third"
    assert row["seconds_per_round"] >= row["seconds_per_round_after"] > 0
    assert row["survivors_agree"] is True
