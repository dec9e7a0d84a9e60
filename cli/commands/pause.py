"""`swarmd pause`."""

from __future__ import annotations

from swarmd.cli.framework import DURATION, Session, command, option


@command(section="Taking part")
@option("--for", "for_s", type=DURATION, help="Resume by itself after DUR.")
def pause(session: Session, for_s: float | None) -> None:
    """Stop computing but stay a member. Leases go back at once, then the device is given back.

    What was learned is not lost: `swarmd resume` goes on.
    """
    from swarmd.cli.format import duration

    found = session.ask("pause", {"for_s": for_s}, timeout_s=10.0)
    until = "until `swarmd resume`" if for_s is None else f"for {duration(for_s)}"
    session.done(f"paused {until}", found.get("data"))
