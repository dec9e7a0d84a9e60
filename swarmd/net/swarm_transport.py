"""The real transport: libp2p below the control plane, TLS below the bulk plane, links above both.

transport = SwarmTransport(seed, ["/ip4/0.0.0.0/tcp/4710"], store)
await nursery.start(transport.run)
transport.addresses()     # real, announced; /ip4/192.168.1.20/tcp/4710/p2p/12D3KooW...
transport.ports_changed   # {4710: 41873} if 4710 was taken
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from swarmd.net.addresses import Address, announced_hosts, ip_address, parse_address, with_peer
from swarmd.net.libp2p_host import BULK, CONTROL, Libp2pConnection, Libp2pHost, StreamCarrier
from swarmd.net.link import LinkLimits
from swarmd.net.link_transport import LinkTransport
from swarmd.net.sockets import listen
from swarmd.net.transport import PayloadStore
from swarmd.net.underlay import Acceptor, Carrier, CarrierEnded, Channel, DialFailed
from swarmd.protocols.ids import PeerId


class _Channel:
    """A libp2p connection with its control carrier."""

    def __init__(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        self.peer = connection.peer
        self.path = connection.path
        self.remote = connection.remote
        self.carrier: Carrier = carrier
        self._connection = connection

    async def open_bulk(self) -> Carrier:
        return await self._connection.open(BULK, owns_socket=False)

    def close_now(self) -> None:
        self._connection.close_now()


class SwarmUnderlay:
    """See underlay.Underlay."""

    def __init__(
        self,
        seed: bytes,
        listen_on: Sequence[str],
        *,
        announce: Sequence[str] = (),
        links_max: int,
    ) -> None:
        self.host = Libp2pHost(
            seed, on_control=self._on_control, on_bulk=self._on_bulk, links_max=links_max
        )
        self.peer_id = self.host.peer_id
        self.ports_changed: dict[int, int] = {}
        self._listen_on = [parse_address(text) for text in listen_on]
        self._announce = [parse_address(text) for text in announce]
        self._announced: list[Address] = []
        self._acceptor: Acceptor | None = None

    def addresses(self) -> Sequence[str]:
        return with_peer(self._announced, self.peer_id)

    def bulk_addresses(self) -> Sequence[str]:
        return []

    def count(self) -> dict[str, int]:
        return dict(self.host.counts)

    async def run(self, acceptor: Acceptor, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        self._acceptor = acceptor
        listeners: list[trio.SocketListener] = []
        try:
            found: list[Address] = []
            for address in self._listen_on:
                listener, port = await listen(address.host, address.port)
                listeners.append(listener)
                if address.port not in (0, port):
                    self.ports_changed[address.port] = port
                found += [ip_address(host, port) for host in announced_hosts(address.host)]
            self._announced = self._announce or list(dict.fromkeys(found))
            await self.host.run(listeners, self._announced, task_status=task_status)
        finally:
            for listener in listeners:
                listener.socket.close()

    async def dial(self, peer: PeerId, address: str) -> Channel:
        connection = await self.host.dial(peer, address)
        opened = False
        try:
            carrier = await connection.open(CONTROL, owns_socket=True)
            opened = True
            return _Channel(connection, carrier)
        except CarrierEnded as ended:
            cause = "timeout" if ended.cause == "stalled" else "refused"
            raise DialFailed(cause, str(ended)) from None
        finally:
            if not opened:
                connection.close_now()

    async def dial_bulk(self, peer: PeerId, address: str) -> Carrier:
        raise DialFailed("error", "no dedicated bulk connections yet")

    async def _on_control(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        if self._acceptor is not None:
            await self._acceptor.control_opened(_Channel(connection, carrier))

    async def _on_bulk(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        if self._acceptor is not None:
            await self._acceptor.bulk_opened(connection.peer, carrier)


class SwarmTransport(LinkTransport):
    """Transport over libp2p and TLS. `seed`: the 32 bytes of the ed25519 key."""

    def __init__(
        self,
        seed: bytes,
        listen_on: Sequence[str],
        store: PayloadStore,
        *,
        announce: Sequence[str] = (),
        limits: LinkLimits | None = None,
    ) -> None:
        limits = limits or LinkLimits()
        self._swarm_underlay = SwarmUnderlay(
            seed, listen_on, announce=announce, links_max=limits.links_max
        )
        super().__init__(self._swarm_underlay, store, limits=limits)

    @property
    def ports_changed(self) -> dict[int, int]:
        """Wanted port to the one used instead, for those that were taken."""
        return dict(self._swarm_underlay.ports_changed)
