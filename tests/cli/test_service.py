"""The systemd unit: what it says, that systemd reads it, and that a stop leaves time to drain."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from command_line import swarmd

from swarmd.cli import service_unit
from swarmd.cli.exits import BAD_CONFIG, DRAIN_INCOMPLETE, REFUSED, USAGE
from swarmd.home import Home
from swarmd.named_limits import WAN


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No unit of this machine is read, none is written, and its systemd is not told."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("swarmd.cli.commands.service._systemctl", lambda *words: False)


def lines_of(text: str, name: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("is_user", [True, False])
def test_unit_leaves_time_to_drain_and_does_not_repeat_what_would_fail_again(
    home: Home, is_user: bool
) -> None:
    text = service_unit.make_unit(home, is_user=is_user).text
    (stop,) = lines_of(text, "TimeoutStopSec")
    assert float(stop) > WAN.drain_deadline_s + WAN.stop_grace_s
    (codes,) = lines_of(text, "RestartPreventExitStatus")
    assert [*map(int, codes.split())] == [USAGE, DRAIN_INCOMPLETE, REFUSED, BAD_CONFIG]
    assert lines_of(text, "Type") == ["notify"]
    assert "PrivateDevices" not in text, "GPUs stay visible"
    assert bool(lines_of(text, "User")) != is_user


def test_users_unit_is_written_and_taken_away_again(home: Home, tmp_path: Path) -> None:
    found = swarmd("service", "install", "--user", "--json", home=home)
    path = Path(found.object["path"])
    assert path == tmp_path / "config" / "systemd" / "user" / "swarmd.service"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert str(home.root) in path.read_text()
    assert swarmd("service", "install", "--user", home=home).code == 0, "again is no error"
    path.write_text("mine")
    refused = swarmd("service", "install", "--user", "--json", home=home)
    assert (refused.code, refused.error["code"]) == (2, "needs_confirmation")
    assert path.read_text() == "mine"
    assert swarmd("service", "install", "--user", "--yes", home=home).code == 0
    assert swarmd("service", "uninstall", "--user", home=home).code == 0
    assert not path.exists()
    assert swarmd("service", "uninstall", "--user", "--json", home=home).error["code"] == "no_unit"


def test_print_writes_nothing(home: Home, tmp_path: Path) -> None:
    found = swarmd("service", "install", "--print", home=home)
    assert found.out.startswith("[Unit]")
    assert list(tmp_path.iterdir()) == []


def test_systems_unit_needs_root_and_a_user(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert swarmd("service", "install", "--json", home=home).error["exit_code"] == 77
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def nobody(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", nobody)
    found = swarmd("service", "install", "--json", home=home)
    assert found.error["code"] == "no_user"
    assert "useradd --system" in found.error["hint"]


def test_doctor_warns_of_a_unit_that_kills_before_the_drain_has_ended(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarmd.cli.doctor import peer

    assert peer._service().severity == "ok"
    swarmd("service", "install", "--user", home=home)
    assert peer._service().severity == "ok"
    path = service_unit.unit_path(is_user=True)
    path.write_text(path.read_text().replace("TimeoutStopSec=90", "TimeoutStopSec=30"))
    finding = peer._service()
    assert (finding.severity, "30 s" in finding.text) == ("warn", True)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("is_user", [True, False])
def test_systemd_finds_nothing_to_complain_of(home: Home, tmp_path: Path, is_user: bool) -> None:
    text = service_unit.make_unit(home, is_user=is_user).text
    file = tmp_path / "swarmd.service"
    file.write_text(text.replace("User=swarmd", f"User={pwd.getpwuid(os.getuid()).pw_name}"))
    done = subprocess.run(
        ["systemd-analyze", *(["--user"] if is_user else []), "verify", "--man=no", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    ours = [line for line in done.stderr.splitlines() if "swarmd" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
