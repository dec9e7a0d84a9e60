"""`swarmd service`: a peer that starts with the machine, under systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from swarmd.cli.framework import Session, group, option
from swarmd.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from swarmd.cli.service_unit import Unit

SYSTEMCTL_S = 20.0


@group(section="Keeping house")
def service(session: Session) -> None:
    """A peer that starts with the machine, under systemd."""


@service.subcommand()
@option("--user", "is_user", is_flag=True, help="Of this user; default: of the system, as root.")
@option("--print", "only_prints", is_flag=True, help="Print the unit and write nothing.")
def install(session: Session, is_user: bool, only_prints: bool) -> None:
    """Write the unit that runs a peer; starting it stays your own step.

    The peer joins the run of the setting `service.run`, or the one this home used last.
    """
    from swarmd.cli.service_unit import USER, make_unit
    from swarmd.store import write_bytes

    unit = make_unit(session.home, is_user=is_user)
    if only_prints:
        session.done(unit.text.rstrip("\n"), {"text": unit.text}, path=str(unit.path))
        return
    _require_rights(unit)
    if not is_user:
        _require_user(USER)
    if unit.path.exists() and unit.path.read_text(encoding="utf-8") != unit.text:
        session.confirm(f"{unit.path} is there and different. Replace it?")
    unit.path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(unit.path, unit.text.encode(), mode=0o644)
    is_known = _reload(unit)
    session.done(str(unit.path), {"loaded": is_known}, path=str(unit.path))
    start = " ".join([*unit.systemctl, "enable", "--now", "swarmd"])
    session.printer.say(f"start it with `{start}`, and look with `{_look(unit)}`")
    if is_user:
        session.printer.say("`loginctl enable-linger` keeps it running while you are logged out")
    if not is_known:
        session.printer.say(f"systemd was not told: `{' '.join(unit.systemctl)} daemon-reload`")


@service.subcommand()
@option("--user", "is_user", is_flag=True, help="Of this user; default: of the system, as root.")
def uninstall(session: Session, is_user: bool) -> None:
    """Stop the service and take its unit away. The home of the peer stays."""
    from swarmd.cli.service_unit import make_unit

    unit = make_unit(session.home, is_user=is_user)
    if not unit.path.exists():
        raise UserError(
            f"there is no unit at {unit.path}",
            code="no_unit",
            exit_code=1,
            hint="the other kind? `--user` is this user's, without it the system's",
        )
    _require_rights(unit)
    _systemctl(unit, "disable", "--now", "swarmd")
    unit.path.unlink()
    _reload(unit)
    session.done(f"{unit.path} is gone", path=str(unit.path))


def _require_rights(unit: Unit) -> None:
    if not unit.is_user and os.geteuid() != 0:
        raise UserError(
            f"{unit.path} belongs to root",
            code="not_permitted",
            exit_code=77,
            hint="with sudo, or `--user` for a unit of your own",
        )


def _require_user(name: str) -> None:
    import pwd

    try:
        pwd.getpwnam(name)
    except KeyError:
        raise UserError(
            f"there is no user {name}, as which the service would run",
            code="no_user",
            exit_code=1,
            hint=f"`useradd --system --home-dir /var/lib/swarmd --shell /usr/sbin/nologin {name}`",
        ) from None


def _look(unit: Unit) -> str:
    return " ".join([*unit.systemctl, "status", "swarmd"])


def _reload(unit: Unit) -> bool:
    return _systemctl(unit, "daemon-reload")


def _systemctl(unit: Unit, *words: str) -> bool:
    """Whether systemd was there and did it."""
    program: str | Path | None = shutil.which("systemctl")
    if program is None:
        return False
    try:
        done = subprocess.run(
            [*unit.systemctl, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SYSTEMCTL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
