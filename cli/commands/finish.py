"""`swarmd finish`."""

from __future__ import annotations

from swarmd.cli import leave_wait
from swarmd.cli.framework import Session, command

ROUND_S_MAX = 86_400.0
"""A round of the largest runs takes hours. `--timeout` bounds the waiting, not the round."""


@command(section="Taking part")
def finish(session: Session) -> int:
    """End the running outer round, then leave."""
    time_left = leave_wait.TimeLeft(session)
    found = leave_wait.ask(session, "finish", {}, ROUND_S_MAX, time_left)
    code = leave_wait.wait_until_gone(session, leave_wait.exit_code(found), time_left)
    leave_wait.show(session, found | {"exit_code": code})
    return code
