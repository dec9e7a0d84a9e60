"""`swarmd status`: this peer and its swarm."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from swarmd.cli import exits
from swarmd.cli.framework import Session, command, option

if TYPE_CHECKING:
    from swarmd.peers_record import PeerRow

EVERY_S = 1.0
"""`--watch` redraws that often."""
PEERS_EVERY = 2
"""Pictures to one look at the peers."""


@command(section="Looking")
@option("--watch", is_flag=True, help="A live picture, until Ctrl-C or the end.")
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

    printer, drawn, code, has_ended = session.printer, 0, exits.OK, False
    view = _Watch(session)
    deadline_s = time.monotonic() + (session.options.timeout_s or float("inf"))
    silence_s = EVERY_S + (session.options.timeout_s or 2.0)
    with exits.until_ctrl_c():
        for found in session.stream("status", every_s=EVERY_S, silence_s=silence_s):
            code = _exit_code(found)
            if session.is_json:
                printer.object(found)
            elif printer.moves_cursor:
                drawn = printer.redraw(view.lines(found), drawn)
            else:
                for line in [*_lines(session, found), ""]:
                    printer.line(line)
            if time.monotonic() >= deadline_s:
                return code
        has_ended = True
    if not has_ended or code == exits.OK:
        return code
    raise DaemonSilent(session.home, silence_s)


class _Watch:
    """The live picture: the status, and now and then the peers."""

    def __init__(self, session: Session) -> None:
        from swarmd.cli.live_view import Course

        self._session = session
        self._course = Course()
        self._peers: list[PeerRow] = []
        self._turn = 0

    def lines(self, found: dict[str, Any]) -> list[str]:
        from swarmd.cli.live_view import live_lines
        from swarmd.json_record import from_plain
        from swarmd.status import Status

        if self._turn % PEERS_EVERY == 0:
            self._ask_peers()
        self._turn += 1
        status = from_plain(Status, found)
        self._course.add(status)
        return live_lines(status, self._peers, self._course, self._session.printer)

    def _ask_peers(self) -> None:
        """What was known stays where the daemon does not answer in time."""
        from swarmd.errors import UserError
        from swarmd.json_record import from_plain
        from swarmd.peers_record import Peers

        with contextlib.suppress(UserError):
            self._peers = from_plain(Peers, self._session.ask("peers")).peers


def _lines(session: Session, found: dict[str, Any]) -> list[str]:
    from swarmd.cli.status_view import status_lines
    from swarmd.json_record import from_plain
    from swarmd.status import Status

    return status_lines(from_plain(Status, found), session.printer)


def _exit_code(found: dict[str, Any]) -> int:
    health = found.get("health")
    level = health.get("level") if isinstance(health, dict) else None
    return exits.UNHEALTHY if level == "bad" else exits.OK
