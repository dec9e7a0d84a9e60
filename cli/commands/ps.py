"""`swarmd ps`: the daemons of this user on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from swarmd.cli.framework import STATUS_REPLY_S, Session, command
from swarmd.errors import UserError
from swarmd.home import Home

ASK_S = 0.5
"""All together stay within the reply time of a reading command as long as they answer."""


@command(section="Looking")
def ps(session: Session) -> None:
    """Every daemon of this user here, whatever its home. Found by the locks they hold."""
    from swarmd.cli.format import UNKNOWN
    from swarmd.cli.layout import table
    from swarmd.json_record import render
    from swarmd.records import DaemonRow, Ps

    rows = [
        DaemonRow(pid=pid, home=label, **_look(home))
        for pid, label, home in sorted(_daemons(), key=lambda found: found[0])
    ]
    if session.is_json:
        session.printer.object(render(Ps(daemons=rows)))
        return
    if not rows:
        session.printer.say("no daemon of this user runs here")
        return
    cells = [
        (
            str(row.pid),
            (row.run_id or UNKNOWN)[:8],
            row.state or UNKNOWN,
            row.reason_code or UNKNOWN,
            row.home,
        )
        for row in rows
    ]
    for line in table(("PID", "RUN", "STATE", "REASON", "HOME"), cells, right=[0]):
        session.printer.line(line)


def _daemons() -> Iterator[tuple[int, str, Home]]:
    """(pid, what it calls its home, the home) of every process that holds a lock of ours."""
    import psutil  # type: ignore[import-untyped]

    from swarmd.home_lock import read_lock_file

    for process in psutil.process_iter():
        try:
            if process.uids().effective != os.geteuid():
                continue
            paths = [Path(file.path) for file in process.open_files()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        for file in paths:
            found = read_lock_file(file) if file.name == "lock" else {}
            if found.get("pid") == process.pid and isinstance(found.get("home"), str):
                yield process.pid, str(found["home"]), _home_of(file)


def _home_of(lock: Path) -> Home:
    """Enough of a home to ask its daemon: the directory the lock lies in."""
    runtime = lock.parent
    root = runtime.parent
    return Home(
        config_file=root / "config.toml",
        state=root / "state",
        data=root / "data",
        cache=root / "cache",
        runtime=runtime,
        origin="flag",
        root=root,
    )


def _look(home: Home) -> dict[str, str | None]:
    from swarmd.local_api.client import ask

    try:
        status = ask(home, "status", timeout_s=min(ASK_S, STATUS_REPLY_S))
    except UserError as error:
        return {"run_id": None, "state": None, "reason_code": error.code}
    return {
        "run_id": (status.get("run") or {}).get("id"),
        "state": status.get("state"),
        "reason_code": (status.get("reason") or {}).get("code"),
    }
