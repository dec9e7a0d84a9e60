"""`swarmd status`: with a daemon that is well, ill, of another version, stuck, or not there."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from typing import Any

import pytest
from command_line import FakeDaemon, swarmd
from status_samples import rendered_status, smallest_status, training_status, waiting_status

from swarmd.health import HealthItem, health_of
from swarmd.home import Home
from swarmd.home_files import LastExit, raise_incarnation, write_last_exit
from swarmd.home_lock import acquire_lock
from swarmd.local_api import server
from swarmd.local_api.socket_path import short_path
from swarmd.status import Slot, worst_first

TRAINING = """\
alder ·twiw            run prairie-1b ·7f3a            up 2 h 14 m

  TRAINING   stage 2 of 4 · layers 8-11 · 3 replicas · micro-batch 2
  round      42   ████████████░░░░░░░░  61 of 100 steps · about 1 min left
  run        step 4 161 of 40 000 · about 18 h 53 m left
  loss       3.412 now · 10.980 at first · 3.431 held out · disagreement 0.31
  speed      1.84 k tok/s here · 5.47 k tok/s swarm · MFU 31 % · utilisation 94 %
  exchange   1.9 s blocking of 7.6 s per round · last round 3 of 3 replicas
  traffic    sent 1.31 GB for 63.0 GB raw (48x) · received 1.30 GB
  swarm      13 alive (1 suspect) · 11 contributing · 1 observer
  counted    1 806 micro-batches · 14.8 M tokens · 40 of 42 rounds
  faults     2 · slowest recovery 3.1 s · 6 micro-batches redone · 0 lost

  1 warning
    rate_capped   upload is held at 20 Mbit/s by your limit; adds about 2 s to each round
                  fix: raise `limit_up`, or leave it: your work still counts
"""

WAITING = """\
cedar ·eH3e            run prairie-1b ·7f3a            up 1 m 10 s

  WAITING    stage 3 has no peer; 2 peers could take it (waiting_for_stage) for 14 s
             at most 25 s left
  round      42   standing still since 11:59:45
  loss       3.412 now · 10.980 at first · 3.431 held out · disagreement 0.31
  swarm      9 alive · 0 contributing · stages 0:3 1:3 2:3 3:0
"""


def test_picture_of_a_peer_that_trains(daemon: FakeDaemon) -> None:
    found = swarmd("status", home=daemon.home)
    assert (found.out, found.err, found.code) == (TRAINING, "", 0)


def test_who_was_turned_away_at_the_ports_is_told_by_kind(daemon: FakeDaemon) -> None:
    kinds = {"half_open_evicted": 3, "bad_certificate": 9}
    daemon.status["refused"] = {"total": 12, "by_code": kinds}
    line = "  refused    12 at our ports · 9 bad certificate · 3 half open evicted"
    for command in ("status", "peers"):
        assert line in swarmd(command, home=daemon.home).lines


def test_further_device_that_is_worse_off_comes_first(daemon: FakeDaemon) -> None:
    ours = Slot(device="cuda:0", stage=2, state="training", reason_code="training")
    other = Slot(device="cuda:1", state="failed", reason_code="device_lost", home="/h/2")
    slots = worst_first([ours, other])
    daemon.status = rendered_status(replace(training_status(), slots=slots))
    lines = swarmd("status", home=daemon.home).lines
    assert lines[2] == ("  FAILED     device cuda:1 (device_lost): `swarmd --home /h/2 status`")
    assert lines[3].startswith("  TRAINING   stage 2 of 4")


def test_where_it_does_not_train_the_reason_leads(daemon: FakeDaemon) -> None:
    daemon.status = rendered_status(waiting_status())
    assert swarmd("status", home=daemon.home).out == WAITING


def test_nothing_measured_yet_is_short(daemon: FakeDaemon) -> None:
    daemon.status = rendered_status(smallest_status())
    found = swarmd("status", home=daemon.home)
    assert found.lines[2:] == ["  STARTING   step 1 of 5: network (starting) for 0.2 s"]


def test_at_40_columns_no_line_is_longer_but_for_one_long_fact(daemon: FakeDaemon) -> None:
    peers = swarmd("peers", "--no-color", home=daemon.home, width=40)
    assert max(map(len, peers.lines)) <= 40
    status = swarmd("status", "--no-color", home=daemon.home, width=40)
    facts = [line for line in status.lines if len(line) > 40 and not line.startswith("alder")]
    assert all(" · " not in line.lstrip(" ·") for line in facts), facts
    assert len(swarmd("status", "--json", home=daemon.home, width=40).lines) == 1


def test_at_60_columns_everything_can_still_be_read(daemon: FakeDaemon) -> None:
    found = swarmd("status", "--no-color", home=daemon.home, width=60)
    assert max(map(len, found.lines)) <= 60
    for word in ("alder", "prairie-1b", "utilisation 94 %", "1 observer", "0 lost", "limit_up"):
        assert word in found.out


def test_colour_is_for_terminals_that_want_it(daemon: FakeDaemon) -> None:
    assert "\x1b[1;32mTRAINING" in swarmd("status", home=daemon.home, width=100).out
    for env in ({"NO_COLOR": ""}, {"TERM": "dumb"}):
        assert "\x1b" not in swarmd("status", home=daemon.home, width=100, env=env).out
    assert "\x1b" not in swarmd("status", "--no-color", home=daemon.home, width=100).out
    assert "\x1b" not in swarmd("status", home=daemon.home).out


@pytest.mark.parametrize("env", [{"LANG": "C"}, {"LANG": ""}, {"LC_ALL": "de_DE.ISO-8859-1"}])
def test_plain_ascii_without_a_utf_8_locale(daemon: FakeDaemon, env: dict[str, str]) -> None:
    daemon.status["peer"]["name"] = "jürgen"
    found = swarmd("status", home=daemon.home, env=env)
    assert found.out.isascii()
    assert "j?rgen .twiw" in found.lines[0]
    assert "############........" in found.out
    as_json = swarmd("status", "--json", home=daemon.home, env=env)
    assert as_json.out.isascii()
    assert as_json.object["peer"]["name"] == "jürgen"


def test_name_of_a_stranger_cannot_write_on_the_terminal(daemon: FakeDaemon) -> None:
    daemon.status["peer"]["name"] = "a\x1b[2Jb\nc"
    assert swarmd("status", home=daemon.home).lines[0].startswith("a?[2Jb?c ·twiw")


def test_json_is_the_daemons_own_object(daemon: FakeDaemon) -> None:
    found = swarmd("status", "--json", home=daemon.home)
    assert found.object == daemon.status
    assert (found.err, found.code) == ("", 0)


def test_unhealthy_peer_is_still_a_status_and_exit_4(daemon: FakeDaemon) -> None:
    bad = HealthItem(code="stalled", severity="bad", text="no progress", since="2026-11-30T12:00Z")
    daemon.status = rendered_status(replace(training_status(), health=health_of([bad])))
    found = swarmd("status", "--json", home=daemon.home)
    assert (found.object["schema"], found.code) == ("swarmd.status", 4)
    human = swarmd("status", home=daemon.home)
    assert human.code == 4
    assert "1 problem\n    BAD stalled   no progress" in human.out


def test_no_daemon_is_exit_3_with_how_the_last_one_ended(home: Home) -> None:
    found = swarmd("status", home=home)
    assert (found.code, found.out) == (3, "")
    assert found.err == (
        "swarmd: error: no daemon runs for this home (no_daemon)\n"
        "hint: start it with `swarmd join`\n"
    )
    home.create()
    raise_incarnation(home)
    assert "it ended without a word: killed" in swarmd("status", home=home).err
    at = "2026-11-30T11:40:02.118Z"
    write_last_exit(home, LastExit(code="drained", exit_code=0, text="", at=at))
    assert "\n  last stop   " in swarmd("status", home=home).err
    error = swarmd("status", "--json", home=home).error
    assert error["code"] == "no_daemon"
    assert error["details"]["last_exit"]["at"] == at


def test_daemon_that_does_not_answer_is_exit_4(home: Home) -> None:
    home.create()
    lock = acquire_lock(home, started_at="now", version="1")
    with socket.socket(socket.AF_UNIX) as stuck, short_path(home.control_socket) as name:
        stuck.bind(name)
        stuck.listen()
        found = swarmd("status", "--timeout", "200ms", home=home)
        assert (found.code, found.out) == (4, "")
        assert "does not answer within 0.2 s (daemon_silent)" in found.err
        as_json = swarmd("status", "--json", "--timeout", "200ms", home=home)
        assert as_json.error["code"] == "daemon_silent"
        assert swarmd("peers", "--timeout", "200ms", home=home).code == 124
    lock.release()


def test_daemon_of_another_version_is_shown_with_one_warning(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "__version__", "9.9.9")
    daemon.status["state"] = "daydreaming"
    daemon.status["mood"] = "fine"
    found = swarmd("status", home=daemon.home)
    assert found.code == 0
    assert "DAYDREAMING" in found.out
    assert found.err.count("9.9.9") == 1
    assert "0.1.0" in found.err


def test_asking_for_a_version_nobody_serves_is_a_usage_error(daemon: FakeDaemon) -> None:
    assert swarmd("status", "--json=1", home=daemon.home).object["schema_version"] == 1
    assert swarmd("status", "--json=7", home=daemon.home).error["code"] == "schema_version"


def test_flags_stand_before_or_after_the_command(daemon: FakeDaemon) -> None:
    root = daemon.home.root
    for words in (
        ["--json", "--home", root, "status"],
        ["status", "--json", "--home", root],
        ["--json", "status", "--home", root],
        ["--home", "/nowhere", "status", "--home", root, "--json"],
    ):
        assert swarmd(*words).object["peer"]["name"] == "alder"


def test_watch_shows_it_again_until_the_daemon_ends(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.cli.commands.status.EVERY_S", 0.1)
    daemon = FakeDaemon(home)
    seen = 0

    async def status(args: dict[str, Any]) -> Any:
        nonlocal seen
        seen += 1
        if seen == 3:
            daemon.end()
        return daemon.status

    daemon.answers["status"] = status
    with daemon.running():
        found = swarmd("status", "--watch", "--json", home=home)
    assert found.code == 0
    assert [json.loads(line)["schema"] for line in found.lines] == ["swarmd.status"] * seen
    assert seen >= 3


def test_watch_on_a_terminal_draws_over_the_last_picture(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.cli.commands.status.EVERY_S", 0.1)
    daemon = FakeDaemon(home, status=rendered_status(smallest_status()))
    seen = 0

    async def status(args: dict[str, Any]) -> Any:
        nonlocal seen
        seen += 1
        if seen == 3:
            daemon.end()
        return daemon.status

    daemon.answers["status"] = status
    with daemon.running():
        found = swarmd("status", "--watch", home=home, width=80)
    assert found.out.count("STARTING") >= 3
    assert re.search(r"\x1b\[\d+A", found.out)
