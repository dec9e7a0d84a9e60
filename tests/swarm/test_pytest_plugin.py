"""The `swarm` fixture as its users have it: in a pytest of its own, with real peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swarmd.cli.testing import Swarm

pytestmark = [pytest.mark.process]

TESTS = """
def test_it_trains_on_without_p1(swarm):
    peers = swarm(peers=2, inner_steps=5)
    peers.wait("training")
    peers.kill("p1")
    assert peers.running == ["p0"]
    at = peers.status("p0")["progress"]["outer_round"]
    peers.wait(f"round={at + 1}", "p0")
    peers.restart("p1")
    peers.wait("contributing=2", "p0")
    assert peers.stop("p0") == 0

def test_that_fails(swarm):
    peers = swarm(peers=1)
    assert peers.status("p0")["state"] == "bored"
"""


@pytest.mark.swarm
@pytest.mark.slow
def test_fixture_starts_kills_restarts_and_shows_logs_of_a_failed_test(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "swarmd.cli.pytest_plugin", "-q"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", "test_mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    failed = done.stdout.partition("test_that_fails")[2]
    assert "swarmd p0" in failed
    assert "founds the swarm" in failed
    assert "swarmd p1" not in failed
    mine = str(tmp_path)
    left = [
        p.pid for p in psutil.process_iter(["cmdline"]) if mine in " ".join(p.info["cmdline"] or ())
    ]
    assert not left


def test_more_stages_than_peers_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 peers cannot hold 3 stages"):
        Swarm(tmp_path / "swarm", peers=2, stages=3)
    assert not (tmp_path / "swarm").exists()
