"""`swarmd drain [ID]`."""

from __future__ import annotations

from swarmd.cli import leave_wait
from swarmd.cli.framework import DURATION, Session, argument, command, option


@command(section="Taking part")
@argument("peer", metavar="[ID]", required=False)
@option("--deadline", type=DURATION, help="Longest drain; what is not done by then is dropped.")
def drain(session: Session, peer: str | None, deadline: float | None) -> int:
    """Stop taking work; finish or hand over what is held.

    The peer stays connected, as observer. With ID, ask that peer: it obeys only keys that the run
    names as operators. Ctrl-C ends the waiting, not the drain.
    """
    args = {"deadline_s": deadline} if peer is None else {"deadline_s": deadline, "id": peer}
    try:
        found = leave_wait.ask(session, "drain", args, deadline, leave_wait.TimeLeft(session))
    except KeyboardInterrupt:
        session.printer.say("the drain goes on; `swarmd status` shows it")
        raise
    leave_wait.show(session, found)
    return leave_wait.exit_code(found)
