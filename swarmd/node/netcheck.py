"""`swarmd netcheck`: what a daemon's transport knows of its reach, and the same without a daemon.

Without one, this peer's own ports are opened, a few peers are linked to and asked to dial back.
They see a stranger with a key made for the occasion, who goes again: nothing joins. Only addresses
that the user or the run names are contacted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from swarmd.errors import UserError
from swarmd.net.heap_store import HeapStore
from swarmd.net.netcheck import look
from swarmd.net.transport import DialEnded, LinkOpened
from swarmd.node.open_transport import open_transport
from swarmd.peer_config import PeerConfig
from swarmd.protocols.ids import PeerId
from swarmd.result_records import Neighbour, Netcheck
from swarmd.run_link import by_peer, parse_peer_address

if TYPE_CHECKING:
    from swarmd.net.swarm_transport import SwarmTransport
    from swarmd.node.peer_node import PeerNode

ASKED_MAX = 8
"""Peers that are dialled: enough to tell, few enough to bother."""
LOOK_S = 0.1
STORE_BYTES = 1 << 20
REACH_S = 8.0
"""For peers that a daemon is to reach first: a dial, and what it takes through a relay."""


class NetcheckAnswer:
    """A daemon's answer. args: peers, addresses to reach first."""

    def __init__(self, node: PeerNode) -> None:
        self._node = node

    async def __call__(self, args: Mapping[str, Any]) -> Netcheck:
        transport, machine = self._node.transport, self._node.machine
        if transport is None:
            raise UserError("the network is not open yet", code="not_ready", exit_code=75)
        wanted = by_peer([parse_peer_address(str(text)) for text in args.get("peers", [])])
        for peer, addresses in wanted.items():
            transport.dial(peer, addresses)
        with trio.move_on_after(REACH_S):
            while not wanted.keys() <= _linked(transport):
                await trio.sleep(LOOK_S)
        view = None if machine is None else machine.membership.view(trio.current_time())
        known = () if view is None else view.peers
        found = look(transport, {peer.peer: peer.record.stage for peer in known})
        return _with_missing(found, wanted)


def _linked(transport: SwarmTransport) -> set[PeerId]:
    return {link.peer for link in transport.statistics() if link.path != "none"}


def _with_missing(found: Netcheck, wanted: Iterable[PeerId]) -> Netcheck:
    """Peers that were not reached are neighbours with path `none`."""
    present = {neighbour.peer for neighbour in found.neighbours}
    missing = [Neighbour(peer=peer, path="none") for peer in wanted if peer not in present]
    return replace(found, neighbours=[*found.neighbours, *missing])


async def check_network(
    config: PeerConfig, entries: Mapping[PeerId, tuple[str, ...]], within_s: float
) -> Netcheck:
    """Looks for at most `within_s`."""
    transport = open_transport(config, os.urandom(32), HeapStore(STORE_BYTES))
    chosen = dict(list(entries.items())[:ASKED_MAX])
    waiting, linked = set(chosen), set[PeerId]()

    async def hear() -> None:
        while True:
            event = await transport.next_event()
            if isinstance(event, LinkOpened | DialEnded):
                waiting.discard(event.peer)
            if isinstance(event, LinkOpened):
                linked.add(event.peer)

    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        nursery.start_soon(hear)
        for peer, addresses in chosen.items():
            transport.dial(peer, addresses)
        with trio.move_on_after(within_s):
            while waiting or (linked and not _is_told(transport)):
                await trio.sleep(LOOK_S)
        found = look(transport, {})
        await transport.aclose()
        nursery.cancel_scope.cancel()
    return _with_missing(found, chosen)


def _is_told(transport: SwarmTransport) -> bool:
    """Neighbours have answered, and the round trips are known."""
    addresses = [*transport.addresses(), *transport.bulk_addresses()]
    has_rtt = all(link.rtt_s is not None for link in transport.statistics())
    return has_rtt and all(transport.answers(text) for text in addresses)
