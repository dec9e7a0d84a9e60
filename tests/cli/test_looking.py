"""Commands that look: peers, wait, events, logs, plan, metrics, ps, paths."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import FakeDaemon, swarmd
from json_schema_check import assert_valid
from status_samples import IDS, peer_rows, rendered_status, smallest_status, waiting_status

from swarmd.cli.commands import logs as logs_command
from swarmd.cli.commands import wait as wait_command
from swarmd.cli.conditions import parse_condition
from swarmd.events_log import EventLog
from swarmd.home import Home
from swarmd.json_record import utc
from swarmd.records import Done, Plan, PlannedPeer, PlannedStage
from swarmd.units import BadValue

PEERS = """\
PEER          ST  STATE     PATH       RTT  UP / DOWN Mbit/s   TOK/S    SENT  RATIO  SHARE  SEEN
alder ·twiw*   2  training  -            -     18.2 /  17.9   1.84 k       -      -      -  now
birch ·eH3e    2  training  direct   31 ms     17.0 /  16.6   1.79 k  212 MB   6.1x      -  now
elm   ·PcNM    3  training  direct   28 ms     19.4 /  19.0   1.91 k  388 MB    57x   0.52  now
fir   ·8wh4    3  training  relay   140 ms                -      920  171 MB    57x   0.25  1.0 s
hazel ·tH1m    3  suspect   direct       -                -        -  166 MB    57x   0.23  6.0 s
oak   ·dcLU    -  observer  direct   12 ms      0.1 /   0.1        -  3.00 MB      -      -  now
"""


# -------------------------------------------------------------------------------------------- peers


def test_one_line_a_peer_and_one_that_sums_them_up(daemon: FakeDaemon) -> None:
    found = swarmd("peers", home=daemon.home)
    shown = [line.split() for line in found.lines[:-2]]
    assert shown == [line.split() for line in PEERS.splitlines()]
    assert found.lines[-1] == (
        "13 known · 6 alive (1 suspect) · * this peer · swarm 5.47 k tok/s"
        "     (6 shown; all with --all)"
    )


def test_columns_stand_under_each_other(daemon: FakeDaemon) -> None:
    table = swarmd("peers", home=daemon.home).lines[:7]
    for title in ("STATE", "PATH", "SEEN"):
        column = table[0].index(title)
        assert all(line[column - 1] == " " and line[column] != " " for line in table[1:])


def test_narrow_terminal_loses_the_least_telling_columns_first(daemon: FakeDaemon) -> None:
    found = swarmd("peers", "--no-color", home=daemon.home, width=60)
    assert max(map(len, found.lines[:7])) <= 60
    for kept in ("PEER", "ST", "STATE", "PATH", "TOK/S", "SEEN"):
        assert kept in found.lines[0]
    assert "RATIO" not in found.lines[0]
    assert "RATIO" in swarmd("peers", home=daemon.home).lines[0]


def test_all_is_passed_on_and_json_is_the_daemons_own(daemon: FakeDaemon) -> None:
    found = swarmd("peers", "--all", "--json", home=daemon.home)
    assert found.object == daemon.peers
    assert daemon.asked == [("peers", {"all": True})]
    assert [row["id"] for row in found.object["peers"]] == sorted(row.id for row in peer_rows())


def test_peer_is_pinged_and_forgotten(home: Home) -> None:
    daemon = FakeDaemon(home)
    daemon.replies("peers_ping", Done(command="x", data={"rtt_ms": 31.25, "path": "direct"}))
    daemon.replies("peers_forget", Done(command="x"))
    with daemon.running():
        assert swarmd("peers", "ping", "birch", home=home).out == "birch: 31.2 ms, direct\n"
        found = swarmd("peers", "forget", "oak", "--json", home=home)
        assert (found.object["command"], found.code) == ("peers forget", 0)
    assert daemon.asked == [("peers_ping", {"id": "birch"}), ("peers_forget", {"id": "oak"})]


# --------------------------------------------------------------------------------------------- wait


@pytest.mark.parametrize(
    "condition",
    [
        "training", "joined", "synced", "reachable", "state=training", "reason=training",
        "reason!=mixing", "round=42", "round=3", "step=4161", "peers=13", "contributing=11",
    ],
)  # fmt: skip
def test_condition_that_holds_ends_with_0(daemon: FakeDaemon, condition: str) -> None:
    found = swarmd("wait", "--for", condition, home=daemon.home)
    assert (found.code, found.out, found.err) == (0, "", "")


@pytest.mark.parametrize("condition", ["round=43", "peers=14", "state=syncing", "stopped"])
def test_condition_that_does_not_hold_in_time_is_124(daemon: FakeDaemon, condition: str) -> None:
    found = swarmd("wait", "--for", condition, "--timeout", "300ms", home=daemon.home)
    assert found.code == 124
    assert f"error: {condition} did not hold within 0 s; training (training)" in found.err


def test_condition_becomes_true_while_waiting(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.cli.commands.wait.EVERY_S", 0.1)
    daemon = FakeDaemon(home)
    states = [smallest_status(), smallest_status(), waiting_status()]

    async def status(args: dict[str, Any]) -> Any:
        return rendered_status(states.pop(0) if len(states) > 1 else states[0])

    daemon.answers["status"] = status
    with daemon.running():
        found = swarmd("wait", "--for", "joined", "--json", "--timeout", "10s", home=home)
    assert found.object["outcome"] == "met"


def test_ended_run_can_no_longer_make_it_true(daemon: FakeDaemon) -> None:
    daemon.status["state"] = "stopped"
    daemon.status["reason"] |= {"code": "run_complete", "text": "step 400 reached"}
    found = swarmd("wait", "--for", "round=99", "--json", home=daemon.home)
    assert (found.code, found.error["code"]) == (1, "run_complete")
    assert swarmd("wait", "--for", "stopped", home=daemon.home).code == 0


def test_wait_right_after_a_join_waits_until_it_holds_its_home(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    with contextlib.ExitStack() as stack:

        def is_held(home: Home) -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:
                stack.enter_context(FakeDaemon(home).running())
            return looks >= 2

        monkeypatch.setattr("swarmd.home_lock.is_held", is_held)
        monkeypatch.setattr(wait_command, "EVERY_S", 0.01)
        assert swarmd("wait", "--for", "joined", "--timeout", "5s", home=home).code == 0


def test_no_daemon_is_3_unless_its_end_was_waited_for(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_command, "STARTS_S", 0.0)
    assert swarmd("wait", "--for", "joined", home=home).code == 3
    assert swarmd("wait", "--for", "stopped", home=home).code == 0


@pytest.mark.parametrize(
    ("condition", "last", "code"),
    [
        ("stopped", "drained", 0),
        ("round=99", "run_complete", 1),
        ("round=99", "internal_error", 3),
    ],
)
def test_daemon_that_ends_while_waiting(home: Home, condition: str, last: str, code: int) -> None:
    daemon = FakeDaemon(home)

    async def status(args: dict[str, Any]) -> Any:
        daemon.end(last, text="the end")
        return daemon.status

    daemon.answers["status"] = status
    with daemon.running():
        assert swarmd("wait", "--for", condition, "--timeout", "5s", home=home).code == code


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("joind", "did you mean joined"),
        ("state=trainng", "did you mean training"),
        ("reason=nothing", "does not exist"),
        ("round=x", "needs a number"),
        ("round!=3", "no condition"),
        ("mood=good", "no condition"),
        ("", "no condition"),
    ],
)
def test_wrong_condition_is_named(text: str, fault: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_condition(text)
    assert fault in str(caught.value)
    assert swarmd("wait", "--for", text).code == 2


def test_observer_is_synced_without_a_stage() -> None:
    synced = parse_condition("synced")
    status = {"state": "standby", "stage": None, "peer": {"observer": False}}
    assert synced.judge(status) == "not_yet"
    assert synced.judge(status | {"peer": {"observer": True}}) == "holds"
    assert synced.judge({"state": "syncing", "stage": {"index": 1}}) == "not_yet"


# ------------------------------------------------------------------------------------- events, logs


@pytest.fixture
def written(home: Home) -> Home:
    """A home with three events, the first one old."""
    home.create()
    log = EventLog(home.events_file)
    log.append("started", at="2020-01-01T00:00:00.000Z")
    log.append("peer_dead", at=utc(), peer=IDS[1], stage=3, data={"recovery_s": 2.21111})
    log.append("round_committed", at=utc(), round=7, data={"included": ["a", "b"]})
    log.close()
    return home


def test_events_are_read_without_a_daemon(written: Home) -> None:
    assert swarmd("events", "-n", "-3", home=written).code == 2
    assert swarmd("logs", "-n", "-3", home=written).code == 2
    lines = [line.split() for line in swarmd("events", home=written).lines]
    assert [words[1:] for words in lines] == [
        ["started"],
        ["peer_dead", "peer=·eH3e", "stage=3", "recovery_s=2.211"],
        ["round_committed", "round=7", "included=2"],
    ]


def test_events_as_json_lines_are_valid(written: Home) -> None:
    found = swarmd("events", "--json", home=written)
    events = [json.loads(line) for line in found.lines]
    assert [event["seq"] for event in events] == [1, 2, 3]
    for event in events:
        assert_valid(event)


@pytest.mark.parametrize(
    ("flags", "count"), [(["--since", "1h"], 2), (["-n", "1"], 1), (["-n", "0"], 0), ([], 3)]
)
def test_only_the_wanted_events_are_shown(written: Home, flags: list[str], count: int) -> None:
    assert len(swarmd("events", *flags, home=written).lines) == count


def test_followed_events_go_on_where_the_file_ends(written: Home) -> None:
    late = {"seq": 4, "at": utc(), "event": "stopped"}
    with FakeDaemon(written, events=[{"seq": 2, "event": "old"}, late]).running():
        found = swarmd("events", "-f", "-n", "1", home=written)
    assert [line.split()[1] for line in found.lines] == ["round_committed", "stopped"]
    assert swarmd("events", "-f", home=written).code == 3


@pytest.fixture
def logged(home: Home) -> Home:
    home.create()
    (home.state / "swarmd.log.1").write_text("2020-01-01T00:00:00.000Z INFO    swarmd.x oldest\n")
    home.log_file.write_text(
        "2020-01-02T00:00:00.000Z INFO    swarmd.x old\n"
        f"{utc()} ERROR   swarmd.x failed\nTraceback\n"
        f'{{"at":"{utc()}","level":"info","logger":"swarmd.y","message":"json"}}\n'
    )
    return home


def test_log_is_shown_oldest_first(logged: Home) -> None:
    lines = swarmd("logs", home=logged).lines
    assert [line.split()[-1] for line in lines[:4]] == ["oldest", "old", "failed", "Traceback"]
    assert len(swarmd("logs", "-n", "2", home=logged).lines) == 2
    assert swarmd("logs", "--since", "1h", home=logged).lines == lines[2:]


def test_log_as_json_has_its_parts(logged: Home) -> None:
    found = swarmd("logs", "--json", "-n", "4", home=logged)
    data = [json.loads(line)["data"] for line in found.lines]
    assert (data[0]["level"], data[0]["logger"], data[0]["message"]) == ("info", "swarmd.x", "old")
    assert data[3]["message"] == "json"


def test_no_log_is_an_error_with_its_place(home: Home) -> None:
    found = swarmd("logs", home=home)
    assert found.code == 1
    assert str(home.log_file) in found.err


def test_followed_log_goes_on_across_rotation(
    logged: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_command, "POLL_S", 0.01)
    tail = logs_command._tail(logged.log_file)
    seen: list[str] = []
    first = threading.Thread(target=lambda: seen.append(next(tail)))
    first.start()

    def write(text: str) -> None:
        with logged.log_file.open("a") as file:
            file.write(text)

    for _ in range(200):  # until the other thread has found its beginning
        write("one\n")
        first.join(0.02)
        if not first.is_alive():
            break
    assert seen == ["one"]
    logged.log_file.replace(logged.state / "swarmd.log.2")
    write("tw")
    write("o\n")
    assert next(line for line in tail if line != "one") == "two"


# ---------------------------------------------------------------------------- plan, metrics, places


def test_plan_shows_both_maps_and_why(home: Home) -> None:
    daemon = FakeDaemon(home)
    plan = Plan(
        map=[PlannedStage(stage=0, peers=IDS[:2]), PlannedStage(stage=1, peers=[])],
        proposal=[PlannedStage(stage=0, peers=IDS[:1]), PlannedStage(stage=1, peers=IDS[1:2])],
        decision="fill",
        why="stage 1 has no peer",
        gain_share=0.5,
        next_check_s=12.0,
        peers=[
            PlannedPeer(id=IDS[0], name="oak", stage=0, proposed=0, why="pin", pinned=True),
            PlannedPeer(id=IDS[1], stage=0, proposed=1, why="fill"),
            PlannedPeer(id=IDS[2], name="elm", stage=0, proposed=0, why="keep", cordoned=True),
        ],
    )
    daemon.replies("plan", plan)
    with daemon.running():
        found = swarmd("plan", home=home)
        assert swarmd("plan", "--json", home=home).object["decision"] == "fill"
    assert [line.split() for line in found.lines] == [
        ["STAGE", "NOW", "PROPOSED"],
        ["0", "·twiw", "·eH3e", "·twiw"],
        ["1", "·eH3e"],
        [],
        ["PEER", "NOW", "PROPOSED", "WHY"],
        ["oak", "0", "0", "pin,", "pinned"],
        ["·eH3e", "0", "1", "fill"],
        ["elm", "0", "0", "keep,", "cordoned"],
        [],
        "fill, gain 50 %: stage 1 has no peer".split(),
        "looks again in 12 s".split(),
    ]


def test_metrics_are_prometheus_text(daemon: FakeDaemon) -> None:
    found = swarmd("metrics", home=daemon.home)
    assert "swarmd_progress_loss 3.412" in found.lines
    assert swarmd("metrics", "--json", home=daemon.home).object["data"]["text"] == found.out


def test_ps_finds_daemons_by_the_locks_they_hold(daemon: FakeDaemon) -> None:
    found = swarmd("ps", "--json", home=daemon.home).object["daemons"]
    (ours,) = [row for row in found if row["home"] == str(daemon.home)]
    assert (ours["pid"], ours["state"]) == (os.getpid(), "training")
    assert str(daemon.home) in swarmd("ps").out


def test_paths_are_shown_and_nothing_is_made(home: Home, tmp_path: Path) -> None:
    found = swarmd("paths", home=home)
    assert f"socket      {home.control_socket}" in found.lines
    assert swarmd("paths", "--json", home=home).object["data"]["origin"] == "flag"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_the_usual_end_of_what_goes_on_until_then(
    logged: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs_command.time, "sleep", interrupt)
    found = swarmd("logs", "-f", home=logged)
    assert (found.code, found.err) == (0, "")
