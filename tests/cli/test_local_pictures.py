"""How `swarmd local` looks: in a pipe, on a terminal of 80 by 24, and with NO_COLOR."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from status_samples import rendered_status, training_status, waiting_status

from swarmd.cli.local_swarm.render import live_view, result_lines, round_line, started_line
from swarmd.cli.local_swarm.view import PeerView, SwarmView
from swarmd.result_records import AuditCounts, Local, LocalPeer


def view() -> SwarmView:
    training, waiting = training_status(), waiting_status()
    waiting = replace(waiting, communication=training.communication)
    return SwarmView(
        stages=2,
        peers=[
            PeerView("p0", 0, rendered_status(training), is_running=True),
            PeerView("p1", 1, rendered_status(waiting), is_running=True),
            PeerView("p2", 0, None, is_running=False),
        ],
    )


def drawn(width: int, **env: str) -> str:
    terminal = io.StringIO()
    environ = {"TERM": "xterm-256color", **env}
    console = Console(
        file=terminal,
        width=width,
        height=24,
        force_terminal=True,
        _environ=environ,
        legacy_windows=False,
    )
    console.print(
        live_view(
            view(),
            title="swarmd local · 4 peers · 2 stages · 200 steps · H 20 · seed 7",
            elapsed_s=41.0,
            total_steps=5000,
            losses=[4.71, 3.8, 2.92],
            notes=["00:31 p2 killed (asked for)"],
        )
    )
    return terminal.getvalue()


def test_live_picture_fits_80_by_24_and_says_it_all_without_colour() -> None:
    plain = drawn(80, NO_COLOR="1")
    lines = plain.splitlines()
    assert len(lines) <= 24
    assert (
        max(map(len, [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines])) <= 80
    )
    for word in (
        "p0",
        "training",
        "gone",
        "3.412",
        "1.3 / 63.0 GB 48x",
        "round 42",
        "killed",
        "00:41",
        "waiting_for_st",
    ):
        assert word in plain
    assert not [part for part in plain.split("\x1b[")[1:] if part[:1] == "3"], "a colour"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in drawn(width, NO_COLOR="1").splitlines():
        assert len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) <= width


def test_pipe_gets_one_line_a_fact_without_control_characters() -> None:
    lines = [
        started_line(7, 4, 2, 200),
        round_line(9.0, view(), 1),
        *result_lines(Local(**result())),
    ]
    assert lines[0] == "seed 7 · 4 peers · 2 stages · 200 steps · homes kept on failure"
    assert lines[1].startswith("00:09 round=1 step=")
    assert all("\x1b" not in line and "\n" not in line for line in lines)
    assert lines[-2].startswith("ok target_reached steps=200 loss=2.604 target=2.900")
    assert lines[-1] == "repeat: swarmd local --peers 4"


def test_failure_names_conditions_logs_and_the_repeat_line() -> None:
    failed = result() | {
        "outcome": "target_missed", "exit_code": 11, "failed_conditions": ["stage 1 stopped"],
    }  # fmt: skip
    lines = result_lines(Local(**failed))
    assert lines[-3:] == [
        "FAILED target_missed: stage 1 stopped",
        "logs: /tmp/x/p0 to /tmp/x/p0",
        "repeat: swarmd local --peers 4",
    ]


def test_faults_that_were_met_stand_at_the_end_and_nothing_where_none_was() -> None:
    assert not [line for line in result_lines(Local(**result())) if line.startswith("faults")]
    seen = {"faults": 2, "recovery_s_max": 3.14, "lost_micro_batches": 0, "rounds_partial": 1}
    lines = result_lines(Local(**result() | seen, rejected_updates=3))
    expected = (
        "faults met=2 rounds_partial=1 updates_rejected=3 lost_micro_batches=0 recovery_s=3.1"
    )
    assert expected in lines


def result() -> dict[str, Any]:
    return {
        "outcome": "target_reached", "exit_code": 0, "seed": 7, "command": "swarmd local --peers 4",
        "dir": "/tmp/x", "wall_s": 65.0, "steps": 200, "loss_last": 2.604, "loss_target": 2.9,
        "audit": AuditCounts(samples=6400, gaps=0, repeats=0), "peers": [LocalPeer(name="p0")],
    }  # fmt: skip
