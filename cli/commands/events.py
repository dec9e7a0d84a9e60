"""`swarmd events`: the typed events, for programs and for people."""

from __future__ import annotations

import time
from typing import Any

import click

from swarmd.cli import exits
from swarmd.cli.framework import DURATION, Session, command, option


@command(section="Looking")
@option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@option("--since", type=DURATION, help="Only those of the last DUR.")
@option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N.")
def events(session: Session, follow: bool, since: float | None, lines: int | None) -> None:
    """What happened here: state changes, peers, rounds, faults. Needs no daemon but for -f."""
    from swarmd.events_log import read_events
    from swarmd.json_record import unix_s

    found = list(read_events(session.home.events_file))
    last_seq = found[-1]["seq"] if found else 0
    if since is not None:
        oldest_s = time.time() - since
        found = [event for event in found if unix_s(event["at"]) >= oldest_s]
    if lines is not None:
        found = found[-lines:] if lines > 0 else []
    for event in found:
        _show(session, event)
    if follow:
        with exits.until_ctrl_c():
            for event in session.stream("events", {"after_seq": last_seq}):
                _show(session, event)


def _show(session: Session, event: dict[str, Any]) -> None:
    if session.is_json:
        session.printer.object(event)
    else:
        session.printer.line(event_line(event))


def event_line(event: dict[str, Any]) -> str:
    """`12:00:03  peer_dead  peer=·Pq0d stage=3 recovery_s=2.2`."""
    from swarmd.cli.format import clock
    from swarmd.cli.output import harmless

    facts = {key: event.get(key) for key in ("peer", "stage", "round", "code")}
    if isinstance(facts["peer"], str):
        facts["peer"] = f"·{facts['peer'][-4:]}"
    data = event.get("data")
    facts |= data if isinstance(data, dict) else {}
    shown = " ".join(f"{key}={_short(value)}" for key, value in facts.items() if value is not None)
    return harmless(f"{clock(event.get('at'))}  {event.get('event')}  {shown}").rstrip()


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return str(len(value))
    if isinstance(value, dict):
        return "{" + " ".join(f"{key}={_short(inner)}" for key, inner in value.items()) + "}"
    return str(value)
