"""`swarmd debug`: faults on purpose, and a dump of all internal statistics."""

from __future__ import annotations

from typing import Any

from swarmd.cli.framework import Parsed, Session, argument, group, option
from swarmd.errors import UserError


def _spec(text: str) -> str:
    from swarmd.injection import parse_injection

    return parse_injection(text).text


@group(section="Keeping house")
def debug(session: Session) -> None:
    """For developers and tests."""


@debug.subcommand()
@argument("specs", metavar="SPEC...", nargs=-1, type=Parsed("SPEC", _spec))
@option("--list", "list_kinds", is_flag=True, help="Every kind of fault, and what is active now.")
@option("--clear", is_flag=True, help="End all that is active.")
def inject(session: Session, specs: tuple[str, ...], list_kinds: bool, clear: bool) -> None:
    """Make this peer suffer or commit a fault: KIND[=PARAM][@WHEN].

    WHEN is now, round=N, step=N or after=DUR. Only in runs that allow it; elsewhere exit 77.
    """
    if list_kinds:
        _list(session)
        return
    if bool(specs) == clear:
        raise UserError(
            "give faults, or --clear, or --list",
            code="usage",
            exit_code=2,
            hint="for example `swarmd debug inject slow=4@after=10s`",
        )
    args: dict[str, Any] = {"clear": True} if clear else {"specs": list(specs)}
    found = session.ask("inject", args, timeout_s=10.0)
    data = found.get("data") or {}
    active = ", ".join(data.get("active") or []) or "nothing"
    session.done(f"active: {active}", data)


def _list(session: Session) -> None:
    from swarmd.injection import KINDS
    from swarmd.local_api.client import NoDaemon

    try:
        active = session.ask("status").get("injection") or []
    except NoDaemon:
        active = []
    kinds = {kind: text for kind, (_, _, text) in KINDS.items()}
    lines = [f"{kind:<16}{text}" for kind, text in kinds.items()]
    lines.append(f"active: {', '.join(active) or 'nothing'}")
    session.done("\n".join(lines), {"kinds": kinds, "active": active})


@debug.subcommand()
def dump(session: Session) -> None:
    """All internal statistics of the daemon, as JSON."""
    from swarmd.json_record import to_json

    found = session.ask("dump", timeout_s=5.0)
    if session.is_json:
        session.printer.object(found)
    else:
        session.printer.line(to_json(found.get("data") or {}, indent=2))
