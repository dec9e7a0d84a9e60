"""`swarmd leave`."""

from __future__ import annotations

from swarmd.cli import format as f
from swarmd.cli import leave_wait
from swarmd.cli.framework import DURATION, Session, command, option
from swarmd.errors import UserError


@command(section="Taking part")
@option("--deadline", type=DURATION, help="Longest drain; what is not done by then is dropped.")
@option("--now", is_flag=True, help="Without a drain, but still with a goodbye.")
def leave(session: Session, deadline: float | None, now: bool) -> int:
    """Drain, say goodbye, stop the daemon.

    Tells what was handed over. Ends with the daemon's own exit status: 0, or 5 if the deadline
    passed first.
    """
    if now and deadline is not None:
        raise UserError("--now does not drain, so it has no --deadline", code="usage", exit_code=2)
    _warn_last_holder(session)
    args = {"deadline_s": deadline, "now": now}
    found = leave_wait.ask(session, "leave", args, 0.0 if now else deadline)
    code = leave_wait.wait_until_gone(session, leave_wait.exit_code(found))
    leave_wait.show(session, found | {"exit_code": code})
    return code


def _warn_last_holder(session: Session) -> None:
    """Others may be left without this peer's stage: said before, since afterwards it is too late.

    The warning must not keep anybody: a daemon that does not answer is told to leave all the same.
    """
    from swarmd.errors import SwarmdError

    try:
        status = session.ask("status")
    except SwarmdError:
        return
    stage, peers = status.get("stage") or {}, status.get("peers") or {}
    if status.get("state") == "stopped" or stage.get("replicas") != 1:
        return
    others = (peers.get("active") or 0) - 1
    if others > 0:
        session.printer.warn(
            f"nobody else holds stage {stage.get('index')}: {f.plural(others, 'peer')} that "
            "train wait until somebody takes it"
        )
