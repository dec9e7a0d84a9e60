"""The live pictures: content at 80 columns, what a small terminal gets, and a real one."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import pytest
from command_line import FakeDaemon, swarmd
from status_samples import peer_rows, training_status, waiting_status

from swarmd.cli.layout import clip, sparkline
from swarmd.cli.live_picture import LivePicture
from swarmd.cli.live_view import Course, live_lines
from swarmd.cli.output import Printer
from swarmd.home import Home
from swarmd.peers_record import Peers

PICTURE = """\
  stage 0    alder ·twiw* · birch ·eH3e · elm ·PcNM
  stage 1    alder ·twiw* · birch ·eH3e · elm ·PcNM
  stage 2    alder ·twiw* · birch ·eH3e · elm ·PcNM
  stage 3    alder ·twiw* · birch ·eH3e · elm ·PcNM · fir ·8wh4 on its way
  mixing     inner steps · parameters took 5.7 s · 5.7 s of that hidden
             · progress took 1.9 s
  course     loss 10.980 ▇▇▆▆▆▅▅▄▄▃▃▃▂▂▁▁ 3.730
             · tok/s 1.50 k ▁▁▂▂▂▃▃▄▄▅▅▅▆▆▇▇ 2.08 k
  links      birch ·eH3e · stage 2 · direct · 31 ms · up 17.0 / down 16.6 Mbit/s
             elm ·PcNM · stage 3 · direct · 28 ms · up 19.4 / down 19.0 Mbit/s
             fir ·8wh4 · stage 3 · relay · 140 ms
             hazel ·tH1m · stage 3 · direct
             oak ·dcLU · no stage · direct · 12 ms · up 0.1 / down 0.1 Mbit/s
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printer(**env: str) -> Printer:
    environ: Mapping[str, str] = {"LANG": "en_US.UTF-8", "COLUMNS": "80", **env}
    return Printer(Terminal(), Terminal(), environ)


def course() -> Course:
    made, status = Course(), training_status()
    for turn in range(30):
        progress = replace(status.progress, loss=10.98 - 0.25 * turn)
        speed = replace(status.throughput, tokens_per_s_self=1500.0 + 20 * turn)
        made.add(replace(status, progress=progress, throughput=speed))
    return made


def test_picture_shows_stages_course_and_links_below_the_status() -> None:
    lines = live_lines(training_status(), peer_rows(), course(), printer(NO_COLOR=""))
    assert lines[0].startswith("alder ·twiw            run prairie-1b")
    assert "\n".join(lines).endswith("\n\n" + PICTURE.rstrip())
    assert max(map(len, lines)) <= 80


def test_reason_with_its_eta_leads_where_it_does_not_train() -> None:
    lines = live_lines(waiting_status(), peer_rows(), Course(), printer(NO_COLOR=""))
    assert "stage 3 has no peer; 2 peers could take it (waiting_for_stage)" in lines[2]
    assert "at most 25 s left" in "".join(lines[3:5])
    assert "  stage 3    nobody" in "\n".join(lines) or "on its way" in "\n".join(lines)
    assert not [line for line in lines if line.startswith("  course")]


def test_small_terminal_gets_what_it_can_replace_again() -> None:
    small = printer(COLUMNS="40", LINES="12")
    lines = small.fitting(live_lines(training_status(), peer_rows(), course(), small))
    assert len(lines) == 11
    assert all(len(clip(line, 1000)) >= len(line.replace("\x1b", "")) - 20 for line in lines)
    plain = printer(COLUMNS="20", LINES="5", NO_COLOR="")
    assert all(len(line) <= 20 for line in plain.fitting(["x" * 50] * 9))


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("plain", 3, "pla"),
        ("\x1b[1;32mTRAINING\x1b[0m now", 5, "\x1b[1;32mTRAIN\x1b[0m"),
        ("short", 80, "short"),
    ],
)
def test_colours_take_no_columns_and_are_ended_where_they_are_cut(
    line: str, width: int, shown: str
) -> None:
    assert clip(line, width) == shown


def test_course_of_one_value_is_none_and_a_flat_one_has_a_shape() -> None:
    assert sparkline([1.0], 8) == ""
    assert len(sparkline([1.0, 1.0, 1.0], 8)) == 3
    assert sparkline([0.0, 1.0], 8) == "▁▇"


def test_watch_asks_for_the_peers_only_where_a_picture_is_drawn(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.cli.commands.status.EVERY_S", 0.1)
    for width, wanted in ((80, True), (None, False)):
        daemon = FakeDaemon(home)
        with daemon.running():
            found = swarmd("status", "--watch", "--timeout", "300ms", home=home, width=width)
        assert (("peers", {}) in daemon.asked) == wanted
        assert ("stage 0" in found.out) == wanted
        assert ("\x1b[" in found.out) == wanted


def test_line_that_is_said_stands_above_the_picture() -> None:
    written: list[str] = []
    picture = LivePicture(printer(NO_COLOR="", LINES="60"), written.append)
    picture.say("founds the swarm")
    picture.show(training_status(), Peers(peers=peer_rows()))
    height = written[-1].count("\n")
    picture.say("round 3 began")
    assert written[-2].startswith(f"\x1b[{height}Around 3 began")
    assert written[-1].count("\n") == height
    picture.show(training_status(), Peers(peers=peer_rows()))
    assert written[-1].startswith(f"\x1b[{height}A")


# ---------------------------------------------------------------------------------- a real terminal


def run_in_a_terminal(command: list[str], until: str, env: Mapping[str, str]) -> tuple[int, str]:
    """(exit status, all that was written) in 80x24; Ctrl-C once `until` shows."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **env}
    )
    os.close(theirs)
    seen, is_told = b"", False
    deadline_s = time.monotonic() + 100
    try:
        while time.monotonic() < deadline_s:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    piece = os.read(ours, 1 << 16)
                except OSError:  # the other end is closed
                    break
                seen += piece
            if not is_told and until.encode() in seen:
                process.send_signal(signal.SIGINT)
                is_told = True
            if process.poll() is not None and not select.select([ours], [], [], 0.2)[0]:
                break
        return process.wait(20), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.process
def test_join_draws_its_picture_on_a_real_terminal_and_leaves_at_ctrl_c(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('[run]\nname = "demo"\npreset = "tiny"\nstages = 2\ntime_scale = "local"\n')
    command = [sys.executable, "-m", "swarmd", "--home", str(tmp_path / "home"), "join", str(run)]
    command += ["--first", "--observe", "--listen", "127.0.0.1:0", "--lan-discovery", "off"]
    env = {"LANG": "en_US.UTF-8", "NO_COLOR": "", "TERM": "xterm"}
    code, seen = run_in_a_terminal(command, "  stage 1    nobody", env)
    assert code == 0, seen
    assert "Traceback" not in seen
    assert "founds the swarm" in seen
    assert "WAITING    stage 0 has no peer (waiting_for_stage)" in seen
    assert "\x1b[31m" not in seen, "NO_COLOR is obeyed"
    assert (
        max(len(line.rstrip("\r")) for line in seen.split("\n") if "others join" not in line) < 110
    )
