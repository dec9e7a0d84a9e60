"""`swarmd pin STAGE`."""

from __future__ import annotations

import click

from swarmd.cli.framework import Session, argument, command


@command(section="Taking part")
@argument("stage", type=click.IntRange(min=0))
def pin(session: Session, stage: int) -> None:
    """Ask for one stage and stay there."""
    found = session.ask("pin", {"stage": stage}, timeout_s=10.0)
    session.done(f"asks for stage {stage}, and stays until `swarmd unpin`", found.get("data"))
