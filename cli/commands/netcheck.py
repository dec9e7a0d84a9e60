"""`swarmd netcheck`: who can reach this peer, whom it reaches, and what that is good for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from swarmd.cli import exits
from swarmd.cli.framework import Parsed, Session, command, option
from swarmd.run_link import PeerAddress, parse_peer_address

if TYPE_CHECKING:
    from swarmd.peer_config import PeerConfig
    from swarmd.result_records import Netcheck, Verdict
    from swarmd.run_config import RunConfig
    from swarmd.run_source import RunSource

WITHIN_S = 20.0
DAEMON_S = 12.0
NO_RUN = "name a run to see what this machine could do for it"
NO_DESCRIPTION = "a link is only the run's name: with its file, or once joined, a verdict follows"


@command(section="Checking")
@option("--run", metavar="RUN", help="A run link, a run file, or a run of this home.")
@option(
    "--peer", "peers", metavar="ADDR", multiple=True, type=Parsed("ADDR", parse_peer_address),
    help="A peer to reach; may be repeated.",
)  # fmt: skip
@option("--no-step", is_flag=True, help="Do not train a stage for a few seconds.")
def netcheck(
    session: Session, run: str | None, peers: tuple[PeerAddress, ...], no_step: bool
) -> int:
    """Addresses and who can reach them, kind of NAT, relays, and the ways to neighbours.

    Asks the daemon of this home. Without one it opens the ports that `join` would, reaches the
    peers that the run or --peer names, and asks them to dial back; nothing joins. Ends with 1 if
    an announced address cannot be reached or a peer that was named cannot.
    """
    from swarmd.cli.netcheck_view import lines_of
    from swarmd.json_record import from_plain, render
    from swarmd.local_api.client import NoDaemon
    from swarmd.result_records import Netcheck

    asked = {"peers": [str(peer) for peer in peers]}
    try:
        found = from_plain(Netcheck, session.ask("netcheck", asked, timeout_s=DAEMON_S))
        found = replace(found, verdict=_of_daemon(session))
    except NoDaemon:
        found = _without_daemon(session, run, peers, dry_step=not no_step)
    if session.is_json:
        session.printer.object(render(found))
    else:
        for line in lines_of(found, session.printer.width):
            session.printer.line(line)
    return exits.FAILED if _is_bad(found, [peer.peer for peer in peers]) else exits.OK


def _is_bad(found: Netcheck, named: list[str]) -> bool:
    """Nobody reaches us though somebody tried, or we do not reach whom we were to."""
    answers = {address.reachable for address in found.addresses if address.announced}
    lost = any(row.path == "none" and row.peer in named for row in found.neighbours)
    alone = bool(found.neighbours) and all(row.path == "none" for row in found.neighbours)
    return lost or alone or ("no" in answers and "yes" not in answers)


def _of_daemon(session: Session) -> Verdict:
    """What the peer does and sends."""
    from swarmd.cli import format as f
    from swarmd.json_record import from_plain
    from swarmd.result_records import Verdict
    from swarmd.status import Status

    status = from_plain(Status, session.ask("status"))
    if status.run.name is None:
        return Verdict()
    rate, uptime_s = status.throughput.tokens_per_s_self, status.time.uptime_s
    sent = status.communication.total.wire_bytes_sent
    up_bytes_per_s = sent / uptime_s if sent is not None and uptime_s else None
    text = f"takes part in {status.run.name}"
    if rate is not None:
        text += f", {f.scaled(rate)} tok/s"
    if up_bytes_per_s is not None:
        text += f"; sends {f.mbit(up_bytes_per_s)} Mbit/s on average"
    stages = None if status.stage is None else 1
    return Verdict(stages=stages, tokens_per_s=rate, needs_up_bytes_per_s=up_bytes_per_s, text=text)


# ----------------------------------------------------------------------------------- without daemon


def _without_daemon(
    session: Session, run: str | None, peers: tuple[PeerAddress, ...], *, dry_step: bool
) -> Netcheck:
    from swarmd.cli.doctor import fit
    from swarmd.cli.trio_work import run_trio
    from swarmd.node.netcheck import check_network
    from swarmd.peer_config import effective_config
    from swarmd.result_records import Verdict
    from swarmd.run_link import by_peer

    config = effective_config(session.home).config
    source = _source(session, run, config, peers)
    entries = peers
    description = None
    if source is not None:
        known = source.run_id
        entries = source.entries if known is None else source.all_entries(session.home, known)
        description = _described(source)
    within_s = session.options.timeout_s or WITHIN_S
    found = run_trio(check_network, config, by_peer(entries), within_s)
    if description is None:
        text = NO_RUN if source is None else NO_DESCRIPTION
        return replace(found, verdict=Verdict(text=text))
    fitness = fit.look(session.home, config, description, dry_step=dry_step)
    return replace(found, verdict=fitness.verdict)


def _source(
    session: Session, run: str | None, config: PeerConfig, peers: tuple[PeerAddress, ...]
) -> RunSource | None:
    """None: no run was named and this home knows none; then there are only the peers named."""
    from swarmd.home_files import known_runs
    from swarmd.run_source import resolve_run

    named = run or config.run
    if named is None and not known_runs(session.home):
        return None
    return resolve_run(session.home, named, peers)


def _described(source: RunSource) -> RunConfig | None:
    return source.plan.check() if source.plan is not None else source.config
