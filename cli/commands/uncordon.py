"""`swarmd uncordon`."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Taking part")
def uncordon(session: Session) -> None:
    """Take other stages again where that helps the swarm."""
    found = session.ask("uncordon", timeout_s=10.0)
    session.done("takes other stages again", found.get("data"))
