"""Whose ledger `data audit` and `contributions` speak of: the daemon's, a file's, a run's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmd.cli.framework import Session
from swarmd.errors import UserError

if TYPE_CHECKING:
    from swarmd.ledger_file import LedgerFile

FROM_FILE = "Of a file (`data ledger`), without a daemon."
OF_RUN = "Of a run of this home: its daemon's, if that is in it, or its last checkpoint's."


def ledger_on_disk(session: Session, file: str | None, run: str | None) -> LedgerFile | None:
    """None: the daemon is to be asked. Raises UserError."""
    if file is not None and run is not None:
        raise UserError("--ledger and --run exclude each other", code="usage", exit_code=2)
    if file is None and (run is None or _is_of_daemon(session, run)):
        return None
    from swarmd.ledger_file import read_ledger, saved_ledger

    if run is None:
        return read_ledger(Path(file or ""))
    found = saved_ledger(session.home, run)
    for one in found.passed_over:
        session.printer.warn(f"{one.why}; what follows is of a checkpoint written before")
    return found


def asked_of_daemon(session: Session, what: str) -> dict[str, Any]:
    """Where none runs, what a checkpoint knows may do."""
    from swarmd.local_api.client import NoDaemon

    try:
        found: dict[str, Any] = session.ask(what)
    except NoDaemon as error:
        error.hint = f"{error.hint}; or --run RUN, for the ledger in that run's last checkpoint"
        raise
    return found


def _is_of_daemon(session: Session, name: str) -> bool:
    """Whether a daemon of this home is in that run."""
    from swarmd.local_api.client import NoDaemon
    from swarmd.run_source import resolve_run

    try:
        found: dict[str, Any] = session.ask("run")
    except NoDaemon:
        return False
    return bool(found.get("id")) and found["id"] == resolve_run(session.home, name).run_id
