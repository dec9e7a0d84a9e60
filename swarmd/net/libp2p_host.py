"""The only file that knows libp2p. It holds a guard for every trap we know of.

What is used: identity, noise, yamux, multistream, on our own TCP sockets (sockets.py). What is not,
and why:
  * `new_host` defaults: they accept plaintext; here noise and yamux are given explicitly.
  * `host.connect`: it dials one address per transport, the oldest first, bans a peer for 60 s after
    one failure, takes 250 ms on loopback, and hangs on a silent listener. We connect one address at
    a time and hand the socket to the library's upgrade.
  * its TCP listener: it sets SO_REUSEPORT (two daemons would share a port), and it counts an
    inbound connection until the host stops (after `max_connections` of them it is deaf). Ours
    cancels the library's handler when the socket closes.
  * its auto-connector (dials by itself) and its identify on connect (a stream per connection).
  * waiting for the library to end a connection: only closing the socket gets rid of a frozen peer.

Rules: assume that any library call may hang and that any library task may raise. An exception that
leaves a stream handler or a notifee would end the process, so none does.

Longer than our files are: what touches the library stands together, so that an upgrade of it is
read against one file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import multiaddr
import trio
from libp2p import new_host
from libp2p.abc import IListener, INetConn, INetStream, INotifee, IRawConnection, ITransport
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_x25519_key_pair
from libp2p.custom_types import THandler, TProtocol
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.config import ConnectionConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.rcmgr import ResourceLimits, new_resource_manager
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream

from swarmd.net.addresses import Address, parse_address
from swarmd.net.dial_back import DIAL_BACK
from swarmd.net.quiet import silence_libp2p
from swarmd.net.relay import HOP, STOP, Circuit, Relay, Wire, accept_circuit, ask_relay
from swarmd.net.shaping import Caps
from swarmd.net.sockets import Doorway, RawStream, connect
from swarmd.net.stream_carrier import StreamCarrier
from swarmd.net.underlay import CarrierEnded, DialFailed
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId, short_id

log = logging.getLogger("swarmd.net")

CONTROL = TProtocol("/swarmd/control/1")
BULK = TProtocol("/swarmd/bulk/1")
OURS = (CONTROL, BULK)

READ_BYTES = 64 << 10
STREAM_S = 5.0
UPGRADE_S = 5.0
CLAIM_S = 10.0
"""From an upgraded connection to its first stream of ours."""
STREAMS_MAX = 64
"""Open streams of one connection. We use two; the library hangs for good at 256."""
UNREAD_BYTES_MAX = 24 << 20
"""Of one connection. The library's window is at most 16 MiB a stream, but it enforces none."""
RELEASE_BYTES = 32 << 10
"""What a stream gathers before it tells the sender that it may send more; an eighth of the smallest
window, so that nobody ever waits for it."""
StreamHandler = Callable[["Libp2pConnection", "StreamCarrier"], Awaitable[None]]


# ----------------------------------------------------------------------------------------- identity


def key_pair_of(seed: bytes) -> Any:
    """The libp2p key pair of a 32-byte ed25519 seed."""
    return create_new_key_pair(seed)


def peer_id_of_seed(seed: bytes) -> PeerId:
    return PeerId(str(ID.from_pubkey(key_pair_of(seed).public_key)))


# ------------------------------------------------------------------------------ windows for libp2p

_tune_and_release = YamuxStream._auto_tune_and_send_window_update


async def _release_gathered(stream: YamuxStream, *, bytes_read: int = 0) -> None:
    """The library answers every read with a frame that says so: half of the frames, and nearly half
    of the processor's time, of a swarm at rest, whose messages are small."""
    gathered = stream.__dict__.get("gathered_bytes", 0) + bytes_read
    is_too_little = 0 < gathered < RELEASE_BYTES
    stream.__dict__["gathered_bytes"] = gathered if is_too_little else 0
    if not is_too_little:
        await _tune_and_release(stream, bytes_read=gathered)


YamuxStream._auto_tune_and_send_window_update = _release_gathered  # type: ignore[method-assign]


# ------------------------------------------------------------------------------- sockets for libp2p


class _TcpStream(ReadWriteCloser):
    """A socket, or a circuit, as the library wants it."""

    def __init__(self, raw: Wire) -> None:
        self.raw = raw
        self._remote = raw.remote
        self._held = b""
        self._write_lock = trio.Lock()
        self._read_lock = trio.Lock()

    async def write(self, data: bytes) -> None:
        async with self._write_lock:
            try:
                await self.raw.send_all(data)
            except CarrierEnded as ended:
                raise ConnectionClosedError(str(ended), transport="tcp") from ended

    async def read(self, n: int | None = None) -> bytes:
        if n == 0:
            return b""
        async with self._read_lock:
            try:
                if not self._held:
                    # It asks for two bytes, then for the rest: fewer and larger reads below.
                    self._held = bytes(await self.raw.receive_some(READ_BYTES))
                n = n or len(self._held)
                data, self._held = self._held[:n], self._held[n:]
                return data
            except CarrierEnded as ended:
                if self.raw.closed or ended.text == "end of stream":
                    return b""
                raise ConnectionClosedError(str(ended), transport="tcp") from ended

    async def close(self) -> None:
        self.raw.close_now()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._remote


class _Listener(IListener):
    """Only keeps the library's handler: the sockets are bound before the host exists."""

    def __init__(self, handler: THandler, address: multiaddr.Multiaddr | None = None) -> None:
        self.handler = handler
        self._address = address

    async def listen(self, maddr: multiaddr.Multiaddr) -> None:
        self._address = maddr

    def get_addrs(self) -> tuple[multiaddr.Multiaddr, ...]:
        return (self._address,) if self._address is not None else ()

    async def close(self) -> None:
        self._address = None


class _Tcp(ITransport):
    def __init__(self) -> None:
        self.listener: _Listener | None = None

    async def dial(self, maddr: multiaddr.Multiaddr) -> IRawConnection:
        raise ConnectionError("addresses are dialled by Libp2pHost.dial only")

    def create_listener(self, handler_function: THandler) -> IListener:
        self.listener = _Listener(handler_function)
        return self.listener

    def can_dial(self, maddr: multiaddr.Multiaddr) -> bool:
        return False

    def can_listen(self, maddr: multiaddr.Multiaddr) -> bool:
        return True

    def protocols(self) -> list[str]:
        return ["tcp"]


def _raw_of(node: Any) -> Wire:
    """What is below a connection or stream of the library."""
    node = node.muxed_conn
    for name in ("secured_conn", "conn", "read_writer", "read_write_closer", "stream"):
        node = getattr(node, name)
    assert isinstance(node, _TcpStream)
    return node.raw


# ------------------------------------------------------------------------------------------ streams


class Libp2pConnection:
    """An upgraded connection to one peer."""

    def __init__(self, host: Libp2pHost, peer: PeerId, raw: Wire, conn: INetConn) -> None:
        self.peer = peer
        self.raw = raw
        self.path = "relay" if isinstance(raw, Circuit) else "direct"
        self._host = host
        self._conn = conn

    @property
    def remote(self) -> str:
        return _place(self.raw.remote)

    @property
    def local(self) -> str:
        return _place(self.raw.local)

    async def open(self, protocol: str, *, owns_socket: bool) -> StreamCarrier:
        """Raises CarrierEnded."""
        with trio.move_on_after(STREAM_S):
            try:
                stream = await self._conn.new_stream()
                await self._host.negotiate(stream, TProtocol(protocol))
            except Exception as error:
                raise CarrierEnded("lost", repr(error)) from None
            if protocol in OURS:
                self._host.claim(self.raw)
            return StreamCarrier(stream, self.raw, owns_socket=owns_socket)
        raise CarrierEnded("stalled", f"no stream within {STREAM_S:.0f} s")

    def close_now(self) -> None:
        self.raw.close_now()


def _place(found: tuple[str, int] | None) -> str:
    return f"{found[0]}:{found[1]}" if found else ""


# --------------------------------------------------------------------------------------------- host


class Libp2pHost:
    """Dials, accepts and guards. Streams of ours go to the two handlers."""

    def __init__(
        self,
        seed: bytes,
        *,
        on_control: StreamHandler,
        on_bulk: StreamHandler,
        on_dial_back: StreamHandler | None = None,
        links_max: int,
        caps: Caps,
    ) -> None:
        silence_libp2p()
        self.key_pair = key_pair_of(seed)
        self.peer_id = peer_id_of_seed(seed)
        self.counts: Counter[str] = Counter()
        self._handlers = {
            CONTROL: on_control,
            BULK: on_bulk,
            TProtocol(HOP): self._on_hop,
            TProtocol(STOP): self._on_stop,
        }
        if on_dial_back is not None:
            self._handlers[TProtocol(DIAL_BACK)] = on_dial_back
        self._relay = Relay(self.counts, self._open_stop, lambda raw: PeerId(str(ID(raw))))
        # Its limits count every connection, ours count links and can say "full": leave room.
        self._connections_max = 2 * links_max + 64
        self._caps = caps
        self._tcp = _Tcp()
        self._host: Any = None
        self._nursery: trio.Nursery | None = None
        self._raws: set[Wire] = set()
        self._doorway = Doorway(self.counts)
        self._claimed: set[Wire] = set()
        self._unclaimed: dict[Wire, float] = {}
        """Upgraded, without a stream of ours yet: closed at this time."""

    async def run(
        self,
        listeners: Sequence[trio.SocketListener],
        announced: Sequence[Address],
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the bound `listeners` until cancelled."""
        self._host = self._make_host(announced)
        network = self._host.get_network()
        for notifee in list(network.notifees):
            if type(notifee).__name__ == "_IdentifyNotifee":
                network.remove_notifee(notifee)
        network.register_notifee(_Watch(self))
        network.auto_connector = _NoAutoConnector()
        self._set_handlers()
        ours = [multiaddr.Multiaddr(str(address)) for address in announced[:1]]
        async with self._host.run(listen_addrs=ours or [multiaddr.Multiaddr("/ip4/0.0.0.0/tcp/0")]):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if listeners:
                    nursery.start_soon(trio.serve_listeners, self._accept, list(listeners))
                nursery.start_soon(self._watch)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None
                    for raw in list(self._raws):
                        raw.close_now()
                        self._forget(raw)

    def _set_handlers(self) -> None:
        for protocol in self._handlers:
            self._host.set_stream_handler(protocol, self._guarded(protocol))

    def _make_host(self, announced: Sequence[Address]) -> Any:
        noise = NoiseTransport(self.key_pair, noise_privkey=new_x25519_key_pair().private_key)
        most = self._connections_max
        return new_host(
            key_pair=self.key_pair,
            sec_opt={TProtocol(NOISE_ID): noise},
            muxer_opt={TProtocol(YAMUX_ID): Yamux},
            transports=[self._tcp],
            connection_config=ConnectionConfig(
                min_connections=0,
                low_watermark=0,
                high_watermark=most,
                max_connections=most,
                inbound_upgrade_timeout=UPGRADE_S,
                outbound_upgrade_timeout=UPGRADE_S,
            ),
            # Its limits under-count and over-reject when many come at once; ours count in HELLO.
            resource_manager=new_resource_manager(
                limits=ResourceLimits(max_connections=2 * most, max_streams=STREAMS_MAX * most)
            ),
            announce_addrs=[multiaddr.Multiaddr(str(address)) for address in announced],
            disable_identify_address_discovery=True,
        )

    # ---------------------------------------------------------------------------------- outgoing

    async def dial(self, peer: PeerId, address: str) -> Libp2pConnection:
        """One address, one attempt. The caller sets the deadline. Raises DialFailed."""
        try:
            target = parse_address(address)
            peer_id = ID.from_base58(peer)
        except ValueError as error:
            raise DialFailed("error", str(error)) from None
        if target.peer and target.peer != peer:
            raise DialFailed("wrong_peer_id", f"the address names {target.peer}")
        raw: Wire
        if target.is_circuit:
            raw = await self._through(PeerId(target.host), peer_id)
        else:
            raw = await connect(target, self._caps, is_bulk=False)
        self._raws.add(raw)
        upgraded = False
        try:
            conn = await self._host.get_network().upgrade_outbound_raw_conn(
                RawConnection(_TcpStream(raw), True), peer_id
            )
            upgraded = True
        except Exception as error:
            raise DialFailed(_cause_in(error), repr(error)) from None
        finally:
            if not upgraded:
                raw.close_now()
                self._raws.discard(raw)
        return Libp2pConnection(self, peer, raw, conn)

    def claim(self, raw: Wire) -> None:
        """It is of a link: not closed as unused, and neighbours may be reached over it."""
        self._claimed.add(raw)
        self._unclaimed.pop(raw, None)

    async def negotiate(self, stream: INetStream, protocol: TProtocol) -> None:
        await self._host.multiselect_client.select_one_of(
            [protocol], MultiselectCommunicator(stream), int(STREAM_S)
        )

    # ---------------------------------------------------------------------------------- incoming

    async def _accept(self, stream: trio.SocketStream) -> None:
        """One inbound connection, until its socket is closed."""
        await self._serve(RawStream(stream, self._caps, is_bulk=False))

    async def _serve(self, raw: Wire) -> None:
        assert self._tcp.listener is not None
        self._raws.add(raw)
        self._doorway.enter(raw)
        try:
            with raw.on_close:
                await self._tcp.listener.handler(_TcpStream(raw))
        except Exception as error:
            log.debug("inbound_failed error=%r", error)
        finally:
            if self._doorway.leave(raw):
                self.counts["handshake_failed"] += 1
            raw.close_now()
            self._forget(raw)

    def _guarded(self, protocol: TProtocol) -> Callable[[INetStream], Awaitable[None]]:
        handler = self._handlers[protocol]

        async def run(stream: INetStream) -> None:
            try:
                raw = _raw_of(stream)
                peer = PeerId(str(stream.muxed_conn.peer_id))
                conn = next(
                    c
                    for c in self._host.get_network().get_connections(stream.muxed_conn.peer_id)
                    if c.muxed_conn is stream.muxed_conn
                )
                if protocol in OURS:
                    self.claim(raw)
                carrier = StreamCarrier(stream, raw, owns_socket=protocol == CONTROL)
                await handler(Libp2pConnection(self, peer, raw, conn), carrier)
            except Exception as error:
                self.counts["stream_failed"] += 1
                log.info("stream_failed protocol=%s error=%r", protocol, error)
                with trio.move_on_after(1):
                    try:
                        await stream.reset()
                    except Exception as late:
                        log.debug("stream_reset_failed error=%r", late)

        return run

    # ------------------------------------------------------------------------------------ circuits

    def neighbour(self, peer: PeerId) -> Libp2pConnection | None:
        """A direct connection to a peer we have a link with."""
        for conn in self._host.get_network().get_connections(ID.from_base58(peer)):
            raw = _raw_of(conn)
            if raw in self._claimed and not raw.closed and not isinstance(raw, Circuit):
                return Libp2pConnection(self, peer, raw, conn)
        return None

    async def _through(self, relay: PeerId, target: ID) -> Circuit:
        """Raises DialFailed."""
        near = self.neighbour(relay)
        if near is None:
            raise DialFailed("no_route", "the relay is no neighbour")
        try:
            carrier = await near.open(HOP, owns_socket=False)
        except CarrierEnded as ended:
            raise DialFailed("no_route", f"the relay: {ended}") from None
        agreed = False
        try:
            await ask_relay(carrier, target.to_bytes())
            agreed = True
            return Circuit(carrier)
        finally:
            if not agreed:
                carrier.close_now()

    async def _open_stop(self, peer: PeerId) -> StreamCarrier:
        near = self.neighbour(peer)
        if near is None:
            raise CarrierEnded("lost", "no neighbour")
        return await near.open(STOP, owns_socket=False)

    async def _on_hop(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        """A neighbour asks us to relay. Never over another relay, never for strangers."""
        if self.neighbour(connection.peer) is None or connection.path != "direct":
            self.counts["relay_refused"] += 1
            carrier.close_now()
            return
        source = ID.from_base58(connection.peer).to_bytes()
        await self._relay.serve(connection.peer, source, carrier)

    async def _on_stop(self, connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        """A neighbour brings somebody."""
        try:
            if connection.raw not in self._claimed or connection.path != "direct":
                raise RemoteProtocolError("malformed", "a relay that is no neighbour")
            await accept_circuit(carrier)
            await self._serve(Circuit(carrier))
        except (RemoteProtocolError, CarrierEnded) as error:
            self.counts["circuit_refused"] += 1
            log.info("circuit_refused relay=%s error=%s", short_id(connection.peer), error)
        finally:
            carrier.close_now()

    def connected(self, conn: INetConn) -> None:
        """An inbound or outbound connection is upgraded."""
        raw = _raw_of(conn)
        if self._doorway.leave(raw) and raw not in self._claimed:
            self._unclaimed[raw] = trio.current_time() + CLAIM_S

    def disconnected(self, conn: INetConn) -> None:
        raw = _raw_of(conn)
        raw.close_now()
        self._forget(raw)

    def stream_opened(self, stream: INetStream) -> None:
        raw = _raw_of(stream)
        if len(stream.muxed_conn.streams) > STREAMS_MAX and not raw.closed:
            self.counts["too_many_streams"] += 1
            raw.close_now()

    def _forget(self, raw: Wire) -> None:
        self._raws.discard(raw)
        self._claimed.discard(raw)
        self._unclaimed.pop(raw, None)

    async def _watch(self, every_s: float = 0.25) -> None:
        """Close connections that nobody uses, and those whose peer ignores flow control."""
        received = 0
        while True:
            await trio.sleep(every_s)
            self._close_unclaimed()
            now = sum(raw.tally.received for raw in self._raws)
            if now == received:
                continue
            received = now
            for connections in list(self._host.get_network().connections.values()):
                for conn in list(connections):
                    unread = sum(map(len, conn.muxed_conn.stream_buffers.values()))
                    if unread > UNREAD_BYTES_MAX:
                        self.counts["window_ignored"] += 1
                        _raw_of(conn).close_now()

    def _close_unclaimed(self) -> None:
        now_s = trio.current_time()
        for raw in [raw for raw, until_s in self._unclaimed.items() if until_s < now_s]:
            self.counts["no_control_stream"] += 1
            del self._unclaimed[raw]
            raw.close_now()


class _NoAutoConnector:
    """In place of the library's, which dials by itself and remembers every peer it ever lost."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def run_background_task(self, nursery: trio.Nursery) -> None: ...

    async def maybe_connect(self) -> None: ...

    def record_disconnect(self, peer_id: ID) -> None: ...


class _Watch(INotifee):
    """Runs in library tasks: nothing may escape."""

    def __init__(self, host: Libp2pHost) -> None:
        self._host = host

    async def connected(self, network: Any, conn: INetConn) -> None:
        self._try(self._host.connected, conn)

    async def disconnected(self, network: Any, conn: INetConn) -> None:
        self._try(self._host.disconnected, conn)

    async def opened_stream(self, network: Any, stream: INetStream) -> None:
        self._try(self._host.stream_opened, stream)

    async def closed_stream(self, network: Any, stream: INetStream) -> None: ...

    async def listen(self, network: Any, multiaddr: Any) -> None: ...

    async def listen_close(self, network: Any, multiaddr: Any) -> None: ...

    def _try(self, call: Callable[[Any], None], node: Any) -> None:
        try:
            call(node)
        except Exception as error:
            self._host.counts["notifee_failed"] += 1
            log.warning("notifee_failed error=%r", error)


def _cause_in(error: BaseException) -> str:
    """The dial cause in a chain of library errors."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PeerIDMismatchesPubkey) or "Peer ID mismatch" in str(seen):
            return "wrong_peer_id"
        if isinstance(seen, trio.TooSlowError):
            return "timeout"
        if isinstance(seen, CarrierEnded):
            return "refused"
        seen = seen.__cause__ or seen.__context__
    return "error"
