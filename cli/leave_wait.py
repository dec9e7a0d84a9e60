"""What `leave`, `drain` and `finish` share: waiting for a drain, and telling what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from swarmd.cli import exits
from swarmd.cli import format as f
from swarmd.cli.framework import Session
from swarmd.cli.time_limit import TimeLimit
from swarmd.errors import UserError
from swarmd.named_limits import WAN

if TYPE_CHECKING:
    from swarmd.home_files import LastExit

POLL_S = 0.05
LEFT_S_MIN = 0.05
"""An answer that is there already is still read."""
LAST_WORDS_S = 1.0
"""A daemon that crashed writes its last exit after it has let go of its home."""
MARGIN_S = 10.0
"""Goodbye, checkpoint and an unhurried machine, above deadline and grace."""


class TimeLeft:
    """Of `--timeout`, which is for all that a command does together."""

    def __init__(self, session: Session) -> None:
        self._options = session.options
        self._limit = TimeLimit(session.options.timeout_s, session.printer.say)

    def seconds(self) -> float | None:
        """None: as long as it takes. From here on `--timeout` is what is left of it."""
        left_s = self._limit.left_s()
        if left_s is not None:
            self._options.timeout_s = max(LEFT_S_MIN, left_s)
        return self._options.timeout_s


def ask(
    session: Session,
    request: str,
    args: Mapping[str, Any],
    deadline_s: float | None,
    time_left: TimeLeft,
) -> dict[str, Any]:
    """The leave record. Ends early if the daemon does: then how it ended is in its last exit."""
    from swarmd.local_api.client import DaemonSilent, NoDaemon

    drain_s = WAN.drain_deadline_s if deadline_s is None else deadline_s
    usual_s = drain_s + WAN.stop_grace_s + MARGIN_S
    time_left.seconds()
    try:
        return session.ask(request, args, timeout_s=usual_s)
    except DaemonSilent as error:
        if error.has_request:
            error.hint = (
                f"it has the request, and carries it out once it answers again ({request}); "
                "`kill` with its pid ends one that never does"
            )
        raise
    except NoDaemon as error:
        if not error.was_there:
            raise
        return _record(_last_words(session))


def wait_until_gone(session: Session, code: int, time_left: TimeLeft) -> int:
    """The daemon's own exit status, once nobody holds the home."""
    from swarmd.home_files import read_last_exit
    from swarmd.home_lock import holder_of

    wait_s = time_left.seconds() or WAN.stop_grace_s + MARGIN_S
    deadline_s = time.monotonic() + wait_s
    while holder_of(session.home) is not None:
        if time.monotonic() >= deadline_s:
            raise UserError(
                f"the daemon has drained but is not gone after {wait_s:.3g} s",
                code="timed_out",
                exit_code=exits.TIMED_OUT,
                hint="`swarmd status` shows what it does",
            )
        time.sleep(POLL_S)
    last = read_last_exit(session.home)
    return code if last is None else last.exit_code


def exit_code(found: Mapping[str, Any]) -> int:
    code = found.get("exit_code")
    return code if isinstance(code, int) else exits.FAILED


def show(session: Session, found: Mapping[str, Any]) -> None:
    """The record, or one line a fact."""
    if session.is_json:
        session.printer.object(found)
        return
    outcome = str(found.get("outcome", "done")).replace("_", " ")
    if outcome == "asked":
        outcome = "it drains; `swarmd peers` shows it"
    facts = [
        ("finished", found.get("micro_batches_finished"), "micro-batch", "micro-batches"),
        ("returned", found.get("leases_returned"), "lease", None),
    ]
    shown = [f"{word} {f.plural(n, one, many)}" for word, n, one, many in facts if n is not None]
    handed = [f"·{peer[-4:]}" for peer in found.get("state_handed_to") or []]
    if handed:
        shown.append(f"state handed to {', '.join(handed)}")
    if found.get("drain_s") is not None:
        shown.append(f"in {f.duration(found['drain_s'])}")
    session.printer.line(" · ".join([outcome, *shown]))
    dropped = {name: count for name, count in (found.get("dropped") or {}).items() if count}
    if dropped:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(dropped.items()))
        session.printer.line(f"dropped {listed}")


def _last_words(session: Session) -> LastExit:
    """How the daemon ended while it was asked. Raises UserError unless it ended in order."""
    from swarmd.home_files import read_last_exit
    from swarmd.json_record import unix_s

    deadline_s = time.monotonic() + LAST_WORDS_S
    while time.monotonic() < deadline_s:
        last = read_last_exit(session.home)
        if last is not None and unix_s(last.at) >= session.started_unix_s:
            if last.exit_code in (exits.OK, exits.DRAIN_INCOMPLETE):
                return last
            raise UserError(
                f"the daemon ended: {last.text or last.code}",
                code=last.code,
                exit_code=last.exit_code,
                hint="`swarmd logs` shows more",
            )
        time.sleep(POLL_S)
    raise UserError(
        "the daemon ended without last words",
        code="daemon_died",
        exit_code=exits.FAILED,
        hint="`swarmd logs` may show why",
    )


def _record(last: LastExit) -> dict[str, Any]:
    from swarmd.json_record import render
    from swarmd.records import Leave

    incomplete = last.exit_code == exits.DRAIN_INCOMPLETE
    outcome: Literal["drained", "drain_incomplete"] = (
        "drain_incomplete" if incomplete else "drained"
    )
    return render(Leave(outcome=outcome, exit_code=last.exit_code))
