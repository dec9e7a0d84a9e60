"""The systemd unit of a peer: its text, where it belongs, and what an installed one says.

Two kinds: the system's, run by a user of its own in the directories systemd makes, and the user's,
which lives where the user's peer lives. Devices stay visible in both, and nothing is restarted that
would fail the same way again (exit codes 2, 5, 77 and 78).
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from swarmd.home import Home
from swarmd.named_limits import WAN

NAME = "swarmd.service"
USER = "swarmd"
STOP_MARGIN_S = 25.0
"""Above drain and grace, before systemd kills."""
TIMEOUT_STOP_S = WAN.drain_deadline_s + WAN.stop_grace_s + STOP_MARGIN_S

_HEAD = """\
[Unit]
Description=swarmd peer
Documentation=man:systemd.service(5)
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
"""
_TAIL = """\
KillMode=mixed
TimeoutStartSec=120
TimeoutStopSec={stop:g}
WatchdogSec=60
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 5 77 78
LimitNOFILE=65536
Nice=10
CPUWeight=20
IOSchedulingClass=idle
NoNewPrivileges=yes
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is written, and where."""

    path: Path
    text: str
    is_user: bool

    @property
    def systemctl(self) -> list[str]:
        return ["systemctl", *(["--user"] if self.is_user else [])]


def unit_path(*, is_user: bool) -> Path:
    if not is_user:
        return Path("/etc/systemd/system") / NAME
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path("~/.config").expanduser()
    return folder / "systemd" / "user" / NAME


def make_unit(home: Home, *, is_user: bool) -> Unit:
    """For this installation of swarmd. `home` matters to the user's kind only."""
    path = unit_path(is_user=is_user)
    text = _HEAD
    if is_user:
        named = f" --home {_quoted(str(home.root))}" if home.root is not None else ""
        text += f"ExecStart={_program()}{named} join --no-input\n"
    else:
        text += f"EnvironmentFile=-/etc/default/swarmd\nExecStart={_program()} join --no-input\n"
    text += "ExecReload=/bin/kill -HUP $MAINPID\n"
    if not is_user:
        text += (
            f"User={USER}\nStateDirectory=swarmd\nStateDirectoryMode=0700\n"
            "CacheDirectory=swarmd\nRuntimeDirectory=swarmd\nRuntimeDirectoryMode=0700\n"
        )
    text += _TAIL.format(stop=TIMEOUT_STOP_S)
    if not is_user:
        text += "ProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\n"
    target = "default.target" if is_user else "multi-user.target"
    text += f"\n[Install]\nWantedBy={target}\n"
    return Unit(path, text, is_user)


def _program() -> str:
    """The command beside the running interpreter, else the interpreter itself."""
    beside = Path(sys.executable).parent / "swarmd"
    if beside.exists():
        return _quoted(str(beside))
    return f"{_quoted(sys.executable)} -m swarmd"


def _quoted(word: str) -> str:
    """As systemd reads it: `%` and `$` are its own, the rest as in a shell."""
    return shlex.quote(word.replace("%", "%%").replace("$", "$$"))


def installed() -> list[Path]:
    """Units of ours on this machine that this user can read."""
    paths = [unit_path(is_user=True), unit_path(is_user=False)]
    return [path for path in paths if path.is_file() and os.access(path, os.R_OK)]


def stop_timeout_s(text: str) -> float | None:
    """TimeoutStopSec of a unit, if it is given in seconds."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "TimeoutStopSec":
            plain = value.strip().removesuffix("s")
            return float(plain) if plain.replace(".", "", 1).isdigit() else None
    return None
