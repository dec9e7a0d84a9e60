"""The real transport: libp2p below the control plane, TLS below the bulk plane, links above both.

transport = SwarmTransport(seed, ["/ip4/0.0.0.0/tcp/4710"], store)
await nursery.start(transport.run)
transport.addresses()     # real, announced; /ip4/192.168.1.20/tcp/4710/p2p/12D3KooW...
transport.ports_changed   # {4710: 41873} if 4710 was taken
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import trio

from swarmd.errors import UserError
from swarmd.net.addresses import (
    Address,
    BadAddress,
    announced_hosts,
    circuit_address,
    ip_address,
    parse_address,
    with_peer,
)
from swarmd.net.certificates import check_certificate, make_certificate
from swarmd.net.dial_back import ASK_EVERY_S, DIAL_BACK, DialBackServer, Reachability, ask
from swarmd.net.frames import Hello
from swarmd.net.keep_running import keep_running
from swarmd.net.libp2p_host import (
    BULK,
    CONTROL,
    Libp2pConnection,
    Libp2pHost,
)
from swarmd.net.link import LinkLimits
from swarmd.net.link_transport import LinkTransport
from swarmd.net.relay import Wire
from swarmd.net.shaping import Bend, Caps, Path, bend_of
from swarmd.net.sockets import Doorway, RawStream, connect, double_of, listen
from swarmd.net.stream_carrier import StreamCarrier
from swarmd.net.tls_bulk import BulkKeys, Refused, accept_tls, connect_tls
from swarmd.net.transport import Answer, CapHeld, PayloadStore
from swarmd.net.underlay import Acceptor, Carrier, CarrierEnded, Channel, DialFailed
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId, short_id
from swarmd.units import LinkShape

log = logging.getLogger("swarmd.net")


class _Channel:
    """A libp2p connection with its control carrier."""

    def __init__(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        self.peer = connection.peer
        self.path = connection.path
        self.remote = connection.remote
        self.local = connection.local
        self.carrier: Carrier = carrier
        self._connection = connection

    @property
    def raw(self) -> Wire:
        return self._connection.raw

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
        bulk_port: int | None = 0,
        announce_bulk: Sequence[str] = (),
        links_max: int,
        shape: LinkShape | None = None,
        asks_back: bool = False,
    ) -> None:
        self.caps = Caps()
        self.wire = self.caps.wire
        self.host = Libp2pHost(
            seed,
            on_control=self._on_control,
            on_bulk=self._on_bulk,
            on_dial_back=self._on_dial_back,
            links_max=links_max,
            caps=self.caps,
        )
        self.peer_id = self.host.peer_id
        self.ports_changed: dict[int, int] = {}
        self._listen_on = [parse_address(text) for text in listen_on]
        self._announce = [parse_address(text) for text in announce]
        self._announce_bulk = [parse_address(text) for text in announce_bulk]
        self._bulk_port = bulk_port
        self._listening: list[Address] = []
        self._announced: list[Address] = []
        self._bulk_announced: list[Address] = []
        self._keys = BulkKeys(*make_certificate(seed))
        self._doorway = Doorway(self.host.counts)
        self._bulk_raws: set[RawStream] = set()
        self._shape = shape
        self._paths: dict[PeerId, Path] = {}
        self._rng = random.Random()
        self.on_restart: Callable[[str], None] = lambda name: None
        self._asks_back = asks_back
        self._linked: set[PeerId] = set()
        self._reachability = Reachability()
        self._dial_back = DialBackServer(self.host.counts, self._knock)
        self._nursery: trio.Nursery | None = None
        self._acceptor: Acceptor | None = None

    def addresses(self) -> Sequence[str]:
        return with_peer(self._announced, self.peer_id)

    def bulk_addresses(self) -> Sequence[str]:
        return [str(address) for address in self._bulk_announced]

    def listens_on(self) -> Sequence[str]:
        return with_peer(self._listening, self.peer_id)

    @property
    def certificate(self) -> bytes:
        return self._keys.certificate

    def link_opened(self, channel: Channel, hello: Hello) -> None:
        peer, certificate = channel.peer, hello.certificate
        theirs = LinkShape(*hello.shape) if hello.shape[0] else None
        bend = bend_of(self._shape, theirs)
        if bend != Bend():
            self._paths[peer] = Path(bend, self._rng)
            assert isinstance(channel, _Channel)
            self._follow(peer, channel.raw)
        try:
            check_certificate(certificate, peer)
        except ValueError as error:
            self.host.counts["bad_certificate"] += bool(certificate)
            log.info("certificate_refused peer=%s error=%s", short_id(peer), error)
        else:
            self._keys.trust(peer, certificate)
        self._linked.add(peer)

    def link_ended(self, peer: PeerId) -> None:
        self._keys.distrust(peer)
        self._paths.pop(peer, None)
        self._linked.discard(peer)

    # -------------------------------------------------------------------------------- reachability

    def reachable(self, address: str) -> Answer:
        return self._reachability.of(address.partition("/p2p/")[0])

    def answers(self, address: str) -> list[str]:
        return self._reachability.causes(address.partition("/p2p/")[0])

    async def _ask_back(self) -> None:
        """Ask new neighbours whether they can dial us, a few, and again after a while."""
        while True:
            await trio.sleep(ASK_EVERY_S)
            for peer in self._reachability.choose(sorted(self._linked)):
                near = self.host.neighbour(peer)
                if near is not None:
                    await self._ask_one(near)

    async def _ask_one(self, near: Libp2pConnection) -> None:
        carrier = None
        try:
            carrier = await near.open(DIAL_BACK, owns_socket=False)
            control = [str(address) for address in self._announced]
            said = await ask(carrier, {"control": control, "bulk": self.bulk_addresses()})
            self._reachability.note(near.peer, said)
        except (CarrierEnded, RemoteProtocolError) as error:
            log.debug("dial_back_failed peer=%s error=%s", short_id(near.peer), error)
        finally:
            if carrier is not None:
                carrier.close_now()

    async def _on_dial_back(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        remote = connection.raw.remote
        if remote is None or self.host.neighbour(connection.peer) is None:
            carrier.close_now()
            return
        await self._dial_back.serve(connection.peer, remote[0], carrier)

    async def _knock(self, peer: PeerId, plane: str, address: str) -> None:
        """For a neighbour: is it at this address?"""
        if plane == "control":
            (await self.host.dial(peer, address)).close_now()
        else:
            (await self.dial_bulk(peer, address)).close_now()

    def _follow(self, peer: PeerId, raw: Wire) -> None:
        path = self._paths.get(peer)
        if path is not None and self._nursery is not None:
            raw.follow(path, self._nursery)

    def relay_addresses(self, neighbours: Sequence[PeerId]) -> Sequence[str]:
        return [circuit_address(peer) for peer in neighbours]

    def held(self) -> list[CapHeld]:
        return self.caps.held()

    def count(self) -> dict[str, int]:
        return dict(self.host.counts)

    async def run(self, acceptor: Acceptor, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        self._acceptor = acceptor
        listeners: list[trio.SocketListener] = []
        bulk_listeners: list[trio.SocketListener] = []
        try:
            found: list[Address] = []
            bulk_found: list[Address] = []
            for address in self._listen_on:
                hosts = announced_hosts(address.host)
                listener, port = await self._bind(address.host, address.port)
                listeners.append(listener)
                found += [ip_address(host, port) for host in hosts]
                if self._bulk_port is None:
                    continue
                wanted = self._bulk_port or (address.port + 1 if address.port else 0)
                listener, port = await self._bind(address.host, wanted)
                bulk_listeners.append(listener)
                bulk_found += [ip_address(host, port) for host in hosts]
            self._listening = list(dict.fromkeys(found))
            self._announced = self._announce or self._listening
            self._bulk_announced = self._announce_bulk or list(dict.fromkeys(bulk_found))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._keep_host, listeners)
                if bulk_listeners:
                    nursery.start_soon(trio.serve_listeners, self._accept_bulk, bulk_listeners)
                if self._asks_back:
                    nursery.start_soon(self._ask_back)
                task_status.started()
        finally:
            for listener in [*listeners, *bulk_listeners]:
                listener.socket.close()
            for raw in list(self._bulk_raws):
                raw.close_now()

    async def _keep_host(
        self, listeners: Sequence[trio.SocketListener], *, task_status: Any
    ) -> None:
        """libp2p, started anew when one of its tasks raises: the same ports, the same id, and the
        links come again as after any loss. The sockets stay open meanwhile, so nobody is refused.
        """

        async def run(start: Any) -> None:
            doubles = [double_of(listener) for listener in listeners]
            await self.host.run(doubles, self._announced, task_status=start)

        await keep_running(
            "host",
            run,
            self.host.counts,
            on_restart=lambda name: self.on_restart(name),
            task_status=task_status,
        )

    async def _bind(self, host: str, wanted: int) -> tuple[trio.SocketListener, int]:
        try:
            listener, port = await listen(host, wanted)
        except OSError as error:
            raise UserError(
                f"{host} cannot be listened on: {error.strerror or error}",
                code="listen_unusable",
                exit_code=2,
                hint="`--listen` takes an address of this machine; 0.0.0.0 stands for all of them",
            ) from error
        if wanted not in (0, port):
            self.ports_changed[wanted] = port
        return listener, port

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
        try:
            target = parse_address(address)
        except BadAddress as error:
            raise DialFailed("error", str(error)) from None
        if not self._keys.knows(peer):
            raise DialFailed("error", "the peer showed no certificate")
        raw = await connect(target, self.caps, is_bulk=True)
        self._bulk_raws.add(raw)
        carrier = None
        try:
            carrier = await connect_tls(raw, self._keys, peer)
            self._follow(peer, raw)
            return carrier
        finally:
            if carrier is None:
                raw.close_now()
            self._bulk_raws.discard(raw)

    async def _accept_bulk(self, stream: trio.SocketStream) -> None:
        """One inbound bulk connection, until it ends."""
        raw = RawStream(stream, self.caps, is_bulk=True)
        self._bulk_raws.add(raw)
        self._doorway.enter(raw)
        try:
            peer, carrier = await accept_tls(raw, self._keys)
            self._doorway.leave(raw)
            self._follow(peer, raw)
            if self._acceptor is not None:
                await self._acceptor.bulk_opened(peer, carrier)
        except Refused as refused:
            self.host.counts[refused.reason] += 1
            log.debug("bulk_refused from=%s reason=%s", raw.remote, refused)
        finally:
            self._doorway.leave(raw)
            self._bulk_raws.discard(raw)
            raw.close_now()

    async def _on_control(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        if self._acceptor is not None:
            await self._acceptor.control_opened(_Channel(connection, carrier))

    async def _on_bulk(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        if self._acceptor is not None:
            await self._acceptor.bulk_opened(connection.peer, carrier)


class SwarmTransport(LinkTransport):
    """Transport over libp2p and TLS.

    seed: the 32 bytes of the ed25519 key. listen_on: `/ip4/IP/tcp/PORT`, port 0 for a free one.
    announce, announce_bulk: what others are told instead of what is found.
    shape: what our links are made to behave like, for experiments (shaping.py).
    up_bytes_per_s, down_bytes_per_s: what all links may use together; None: no limit.
    asks_back: ask neighbours to dial us, so that we know whether others can.
    bulk_port: 0 for the port after the control plane's (or a free one), None for no bulk port.
    """

    def __init__(
        self,
        seed: bytes,
        listen_on: Sequence[str],
        store: PayloadStore,
        *,
        announce: Sequence[str] = (),
        bulk_port: int | None = 0,
        announce_bulk: Sequence[str] = (),
        shape: LinkShape | None = None,
        up_bytes_per_s: float | None = None,
        down_bytes_per_s: float | None = None,
        asks_back: bool = False,
        limits: LinkLimits | None = None,
    ) -> None:
        limits = limits or LinkLimits()
        self._swarm_underlay = SwarmUnderlay(
            seed,
            listen_on,
            announce=announce,
            bulk_port=bulk_port,
            announce_bulk=announce_bulk,
            links_max=limits.links_max,
            shape=shape,
            asks_back=asks_back,
        )
        super().__init__(self._swarm_underlay, store, limits=limits, shape=shape)
        self._caps_at_start = (up_bytes_per_s, down_bytes_per_s)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        self._swarm_underlay.caps.set(*self._caps_at_start)
        await super().run(task_status=task_status)

    def set_caps(
        self, *, up_bytes_per_s: float | None = None, down_bytes_per_s: float | None = None
    ) -> None:
        """Limit what all links use together, from now on. None: no limit. While running only."""
        self._swarm_underlay.caps.set(up_bytes_per_s, down_bytes_per_s)

    def answers(self, address: str) -> list[str]:
        """What neighbours said who were asked to dial one of our addresses: causes, empty where
        it worked."""
        return self._swarm_underlay.answers(address)

    def when_restarted(self, call: Callable[[str], None]) -> None:
        """`call` hears the name of each service of ours that failed and runs again."""
        self._swarm_underlay.on_restart = call

    def listens_on(self) -> Sequence[str]:
        """Where we can be dialled from this machine, whatever others are told."""
        return self._swarm_underlay.listens_on()

    @property
    def ports_changed(self) -> dict[int, int]:
        """Wanted port to the one used instead, for those that were taken."""
        return dict(self._swarm_underlay.ports_changed)
