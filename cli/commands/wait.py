"""`swarmd wait --for COND`: for scripts and tests, instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from swarmd.cli import exits
from swarmd.cli.conditions import Condition, parse_condition
from swarmd.cli.framework import Parsed, Session, command, option
from swarmd.errors import UserError

EVERY_S = 0.2
STARTS_S = 5.0
"""A `join` that was begun just before may take so long, on a busy machine, to hold its home."""


@command(section="Looking")
@option(
    "--for",
    "condition",
    required=True,
    type=Parsed("COND", parse_condition),
    help="What to wait for.",
)
def wait(session: Session, condition: Condition) -> int:
    """Return when a condition holds.

    COND is one of reachable, joined, synced, training, stopped, state=NAME, reason=CODE,
    reason!=CODE, round=N, step=N, peers=N, contributing=N. Numbers mean "at least".

    Ends with 0 if it holds, 124 if --timeout passed first, 3 if no daemon runs or begins to within
    seconds, 1 if it can no longer become true.
    """
    from swarmd.local_api.client import NoDaemon

    deadline_s = time.monotonic() + (session.options.timeout_s or float("inf"))
    if not condition.holds_without_daemon:
        _let_it_start(session, deadline_s)
    try:
        return _until(session, condition, deadline_s)
    except NoDaemon:
        if condition.holds_without_daemon:
            return _met(session, condition)
        raise


def _let_it_start(session: Session, deadline_s: float) -> None:
    """`swarmd join & swarmd wait --for joined`: the one is not quite there yet."""
    from swarmd.home_lock import is_held

    until_s = min(time.monotonic() + STARTS_S, deadline_s)
    while not is_held(session.home) and time.monotonic() < until_s:
        time.sleep(EVERY_S)


def _until(session: Session, condition: Condition, deadline_s: float) -> int:
    from swarmd.local_api.client import DaemonSilent, NoDaemon

    started_s = time.monotonic()
    while True:
        left_s = deadline_s - time.monotonic()
        silence_s = None if left_s == float("inf") else max(left_s, 0.0)
        try:
            for status in session.stream("status", every_s=EVERY_S, silence_s=silence_s):
                verdict = condition.judge(status)
                if verdict == "holds":
                    return _met(session, condition)
                if verdict == "never":
                    raise _never(condition, status.get("reason") or {})
                if time.monotonic() >= deadline_s:
                    raise _late(condition, time.monotonic() - started_s, status.get("reason") or {})
        except DaemonSilent:
            if time.monotonic() < deadline_s:
                continue  # still starting, or busy: that is what waiting is for
            raise _late(condition, time.monotonic() - started_s, {}) from None
        # The daemon ended the stream, so it has ended, too. How, it wrote down.
        if condition.holds_without_daemon:
            return _met(session, condition)
        ended = NoDaemon(session.home)
        last = ended.details["last_exit"]
        if last is not None and last["code"] == "run_complete":
            raise _never(condition, {"code": "run_complete", "text": last["text"]})
        raise ended


def _met(session: Session, condition: Condition) -> int:
    if session.is_json:
        session.done("", {"condition": condition.text}, outcome="met")
    session.printer.detail(f"{condition.text} holds")
    return exits.OK


def _never(condition: Condition, reason: Mapping[str, Any]) -> UserError:
    return UserError(
        f"{condition.text} can no longer become true: {reason.get('text')}",
        code=str(reason.get("code", "failed")),
        exit_code=exits.FAILED,
    )


def _late(condition: Condition, waited_s: float, reason: Mapping[str, Any]) -> UserError:
    why = f"; {reason['text']} ({reason['code']})" if "code" in reason else ""
    return UserError(
        f"{condition.text} did not hold within {waited_s:.0f} s{why}",
        code="timed_out",
        exit_code=exits.TIMED_OUT,
    )
