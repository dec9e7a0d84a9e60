"""`swarmd leave`."""

from __future__ import annotations

from swarmd.cli import leave_wait
from swarmd.cli.framework import DURATION, STATUS_REPLY_S, Session, command, option
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
    time_left = leave_wait.TimeLeft(session)
    _warn_last_holder(session, time_left.seconds())
    args = {"deadline_s": deadline, "now": now}
    found = leave_wait.ask(session, "leave", args, 0.0 if now else deadline, time_left)
    code = leave_wait.wait_until_gone(session, leave_wait.exit_code(found), time_left)
    leave_wait.show(session, found | {"exit_code": code})
    return code


def _warn_last_holder(session: Session, within_s: float | None) -> None:
    """Others may be left without this peer's stage: said before, since afterwards it is too late.

    The warning must not keep anybody: a daemon that does not answer is told to leave all the same.
    """
    from swarmd.errors import SwarmdError
    from swarmd.local_api.client import ask

    try:
        wait_s = STATUS_REPLY_S if within_s is None else min(STATUS_REPLY_S, within_s / 2)
        status = ask(session.home, "status", timeout_s=wait_s)
    except SwarmdError:
        return
    stage, peers = (status.get("stage") or {}).get("index"), status.get("peers") or {}
    held = [found for found in status.get("stage_map") or [] if found.get("stage") == stage]
    own = (status.get("peer") or {}).get("id")
    if status.get("state") == "stopped" or not held or held[0].get("peers") != [own]:
        return
    others = (peers.get("active") or 0) - 1
    if others > 0:
        wait = "1 peer that trains waits" if others == 1 else f"{others} peers that train wait"
        session.printer.warn(f"nobody else holds stage {stage}: {wait} until somebody takes it")
