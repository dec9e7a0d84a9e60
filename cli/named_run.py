"""The run that a checking command is about: the one named, or the one this home used last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.cli.framework import Session
from swarmd.errors import UserError

if TYPE_CHECKING:
    from swarmd.peer_config import PeerConfig
    from swarmd.run_config import RunConfig


def run_described(session: Session, text: str | None, config: PeerConfig) -> RunConfig | None:
    """None: none was named, and this home knows none."""
    from swarmd.home_files import known_runs
    from swarmd.run_source import resolve_run

    named = text or config.run
    if named is None:
        runs = known_runs(session.home)
        return runs[0].config if runs else None
    source = resolve_run(session.home, named)
    if source.plan is not None:
        return source.plan.check()
    if source.config is None:
        raise UserError(
            "this home does not know that run yet: a link is only its name",
            code="unknown_run",
            exit_code=2,
            hint="join it once, or give its run file",
        )
    return source.config
