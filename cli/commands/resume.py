"""`swarmd resume`."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Taking part")
def resume(session: Session) -> None:
    """Compute again after `pause` or `drain`."""
    found = session.ask("resume", timeout_s=10.0)
    session.done("takes work again", found.get("data"))
