"""`swarmd peers`: every peer this one knows, and the links to them."""

from __future__ import annotations

import click

from swarmd.cli.framework import Session, argument, group, option


@group(section="Looking", invoke_without_command=True)
@option("--all", "show_all", is_flag=True, help="Also peers that left or died long ago.")
@click.pass_context
def peers(ctx: click.Context, session: Session, show_all: bool) -> None:
    """Every known peer: stage, path, delay, rates, last seen."""
    if ctx.invoked_subcommand is not None:
        return
    found = session.ask("peers", {"all": show_all})
    if session.is_json:
        session.printer.object(found)
        return
    from swarmd.cli.peers_view import peer_lines
    from swarmd.cli.status_view import refused_lines
    from swarmd.json_record import from_plain
    from swarmd.peers_record import Peers
    from swarmd.status import Status

    rows = from_plain(Peers, found).peers
    swarm = from_plain(Status, session.ask("status"))
    for line in peer_lines(
        rows,
        session.printer.width,
        known=max(len(rows), swarm.peers.known or 0),
        tokens_per_s=swarm.throughput.tokens_per_s_swarm,
    ):
        session.printer.line(line)
    for line in refused_lines(swarm.refused, session.printer.width):
        session.printer.line(line)


@peers.subcommand()
@argument("peer", metavar="ID")
def ping(session: Session, peer: str) -> None:
    """Measure the link to one peer."""
    from swarmd.cli import format as f

    found = session.ask("peers_ping", {"id": peer}, timeout_s=10.0)
    data = found.get("data") or {}
    rtt = f"{f.number(data.get('rtt_ms'), 1)} ms"
    session.done(f"{peer}: {rtt}, {data.get('path') or f.UNKNOWN}", data)


@peers.subcommand()
@argument("peer", metavar="ID")
def forget(session: Session, peer: str) -> None:
    """Drop a dead entry from the local view."""
    found = session.ask("peers_forget", {"id": peer})
    session.done(f"{peer} is forgotten", found.get("data"))
