"""The rows of `swarmd peers`: everybody in the roster, with our link to them. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

from swarmd.ledger_shown import contributors
from swarmd.net.transport import LinkStatistics
from swarmd.peers_record import LinkPath, Liveness, PeerRow, Peers
from swarmd.protocols.ids import PeerId
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.raw_by_peer import RawByPeer
from swarmd.protocols.roster import PeerView
from swarmd.protocols.routing import PeerTraffic
from swarmd.status import State

STATES: dict[str, State] = {
    "joining": "joining",
    "syncing": "syncing",
    "active": "training",
    "draining": "draining",
    "left": "stopped",
}
"""By the phase that another peer's record tells; more is not known of it."""


def peers_shown(machine: PeerMachine, links: Iterable[LinkStatistics], now_s: float) -> Peers:
    """By id, ourselves included."""
    by_peer = {link.peer: link for link in links}
    pipeline = machine.work.pipeline
    told = () if pipeline is None else pipeline.statistics(now_s).peers
    traffic = {found.peer: found for found in told}
    ledger, raw = machine.leases.ledger, _raw_by_peer(machine, now_s)
    tokens = {found.id: found.tokens for found in contributors(ledger, {})}
    rows = []
    for peer in machine.membership.view(now_s).peers:
        link = by_peer.get(peer.peer)
        row = _row(machine, peer, link, traffic.get(peer.peer), now_s)
        more = {**_raw_fields(link, raw.get(peer.peer)), "contribution": tokens.get(peer.peer, 0)}
        rows.append(replace(row, **more))
    return Peers(peers=rows)


def _raw_by_peer(machine: PeerMachine, now_s: float) -> dict[PeerId, tuple[int, int]]:
    """What pipeline and mixes would have sent and received without compression."""
    found = RawByPeer()
    found.add_all(machine.traffic.raw_by_peer)
    if machine.work.rounds is not None:
        found.add_all(machine.work.rounds.keeper.totals.bytes.raw_by_peer)
    return found.told()


def _row(
    machine: PeerMachine,
    peer: PeerView,
    link: LinkStatistics | None,
    traffic: PeerTraffic | None,
    now_s: float,
) -> PeerRow:
    record, is_self = peer.record, peer.peer == machine.peer
    state, reason_code = _state(machine, peer, now_s)
    return PeerRow(
        id=peer.peer,
        name=record.name,
        incarnation=record.incarnation,
        self=is_self,
        state=state,
        reason_code=reason_code,
        stage=record.stage,
        observer=record.stage is None,
        liveness=_one_of(Liveness, str(peer.liveness)),
        last_seen_s=0.0 if is_self else round(max(0.0, now_s - peer.last_heard_s), 3),
        tokens_per_s=record.tokens_per_s or None,
        rejected=machine.rejected_of(peer.peer),
        contributing=machine.standstill.contributes(peer.peer),
        address=record.addresses[0] if record.addresses else None,
        protocol=record.protocol_max,
        **_link_fields(link),
        **_traffic_fields(traffic),
    )


def _state(machine: PeerMachine, peer: PeerView, now_s: float) -> tuple[State | None, str | None]:
    """Our own as we know it; another's as far as its record and its work tell."""
    if peer.peer == machine.peer:
        reason = machine.reasons.current
        return _one_of(State, reason.state), reason.code
    if machine.standstill.is_stalled(PeerId(peer.peer), now_s):
        return "waiting", "stalled"
    record = peer.record
    if record.phase == "active" and not machine.has_begun:
        return None, None  # it holds a stage; what it waits for is not told
    return STATES.get(record.phase), None


def _link_fields(link: LinkStatistics | None) -> dict[str, Any]:
    if link is None:
        return {}
    return {
        "path": _one_of(LinkPath, link.path),
        "rtt_ms": None if link.rtt_s is None else round(1e3 * link.rtt_s, 2),
        "up_bytes_per_s": link.up_bytes_per_s,
        "down_bytes_per_s": link.down_bytes_per_s,
        "wire_bytes_sent": link.wire_bytes_sent,
        "wire_bytes_received": link.wire_bytes_received,
    }


def _raw_fields(link: LinkStatistics | None, raw: tuple[int, int] | None) -> dict[str, Any]:
    """Beside what crossed the sockets. Who got nothing that can be compressed has no ratio."""
    if link is None:
        return {}
    sent, received = raw or (0, 0)
    wire = link.wire_bytes_sent + link.wire_bytes_received
    return {
        "raw_bytes_sent": sent,
        "raw_bytes_received": received,
        "compression_ratio": (sent + received) / wire if wire and sent + received else None,
    }


def _traffic_fields(traffic: PeerTraffic | None) -> dict[str, Any]:
    """Of a replica of the next stage: how much of our work goes to it, and how it has done."""
    if traffic is None:
        return {}
    return {"traffic_share": traffic.traffic_share, "score": traffic.score}


def _one_of(kind: Any, text: str) -> Any:
    assert text in get_args(kind), f"{text!r} is none of {get_args(kind)}"
    return text
