"""`swarmd cordon`."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Taking part")
def cordon(session: Session) -> None:
    """Keep the present stage but take no other."""
    found = session.ask("cordon", timeout_s=10.0)
    session.done("takes no other stage until `swarmd uncordon`", found.get("data"))
