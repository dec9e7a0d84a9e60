"""`swarmd status`: this peer and its swarm."""

from __future__ import annotations

import time
from typing import Any

from swarmd.cli import exits
from swarmd.cli.framework import Session, command, option

EVERY_S = 1.0
"""`--watch` redraws that often."""


@command(section="Looking")
@option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C or the end.")
def status(session: Session, watch: bool) -> int:
    """This peer and its swarm, in about 20 lines.

    Ends with 0 if the peer is well, 3 if no daemon runs, 4 if its health is bad or it does not
    answer.
    """
    from swarmd.local_api.client import DaemonSilent

    try:
        if watch:
            return _watch(session)
        found = session.ask("status")
    except DaemonSilent as error:
        error.exit_code, error.code = exits.UNHEALTHY, "daemon_silent"
        raise
    if session.is_json:
        session.printer.object(found)
    else:
        for line in _lines(session, found):
            session.printer.line(line)
    return _exit_code(found)


def _watch(session: Session) -> int:
    """Until the daemon ends (the exit code of what was seen last) or Ctrl-C."""
    from swarmd.local_api.client import DaemonSilent

    printer, drawn, code = session.printer, 0, exits.OK
    deadline_s = time.monotonic() + (session.options.timeout_s or float("inf"))
    silence_s = EVERY_S + (session.options.timeout_s or 2.0)
    for found in session.stream("status", every_s=EVERY_S, silence_s=silence_s):
        code = _exit_code(found)
        if session.is_json:
            printer.object(found)
        elif printer.is_terminal:
            drawn = printer.redraw(_lines(session, found), drawn)
        else:
            for line in [*_lines(session, found), ""]:
                printer.line(line)
        if time.monotonic() >= deadline_s:
            return code
    if code == exits.OK:
        return code
    raise DaemonSilent(session.home, silence_s)


def _lines(session: Session, found: dict[str, Any]) -> list[str]:
    from swarmd.cli.status_view import status_lines
    from swarmd.json_record import from_plain
    from swarmd.status import Status

    return status_lines(from_plain(Status, found), session.printer)


def _exit_code(found: dict[str, Any]) -> int:
    health = found.get("health")
    level = health.get("level") if isinstance(health, dict) else None
    return exits.UNHEALTHY if level == "bad" else exits.OK
