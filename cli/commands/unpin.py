"""`swarmd unpin`."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Taking part")
def unpin(session: Session) -> None:
    """Go where help is needed again."""
    found = session.ask("unpin", timeout_s=10.0)
    session.done("goes where help is needed", found.get("data"))
