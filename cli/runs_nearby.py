"""`swarmd join` in a home that knows no run: which runs the local network tells of."""

from __future__ import annotations

from typing import NoReturn

from swarmd.cli import format as f
from swarmd.cli.framework import Session
from swarmd.errors import UserError
from swarmd.peer_config import PeerConfig

LOOK_S = 2.0
LINK_PEERS_MAX = 3


def tell_runs_nearby(session: Session, config: PeerConfig, missing: UserError) -> NoReturn:
    """Print a run link for each run seen, and raise `missing` with them. Nothing is joined."""
    links = links_nearby(config.listen.host if config.listen else "0.0.0.0")
    if not session.is_json:
        for link, peers in links.items():
            session.printer.line(f"{link}   {f.plural(peers, 'peer')} on the local network")
    if links:
        missing.hint = "`swarmd join LINK` with one of the links above, or a run file"
    missing.details = {"runs_nearby": [{"link": link, "peers": n} for link, n in links.items()]}
    raise missing


def links_nearby(listen_host: str) -> dict[str, int]:
    """Run link to number of peers seen. What is no link, whoever sent it, is left out."""
    from swarmd.cli.trio_work import run_trio
    from swarmd.net.lan_discovery import runs_nearby
    from swarmd.run_link import parse_run_link
    from swarmd.units import BadValue

    try:
        seen = run_trio(runs_nearby, listen_host, LOOK_S)
    except OSError:  # no multicast here: nothing can be seen
        return {}
    links = {}
    for run_id, peers in sorted(seen.items()):
        first = [addresses[0] for _, addresses in sorted(peers.items())][:LINK_PEERS_MAX]
        text = f"swarmd://{run_id}?" + "&".join(f"peer={address}" for address in first)
        try:
            links[str(parse_run_link(text))] = len(peers)
        except BadValue:
            continue
    return links
