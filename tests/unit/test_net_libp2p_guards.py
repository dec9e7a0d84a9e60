"""Each trap of the libp2p library, as a test of our guard. One process, on loopback."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from pathlib import Path

import pytest
import trio
from free_ports import dead_address
from hostile_peers import (
    chopping_proxy,
    connect,
    open_streams,
    push_unread,
    say_on_control,
    stock_host,
    strangers,
)
from libp2p.network.exceptions import SwarmException
from transport_contract import PATIENT, Side, pattern

import swarmd.net
from swarmd.net import libp2p_host
from swarmd.net.addresses import parse_address
from swarmd.net.frames import FRAME_BODY_BYTES_MAX, HEADER, OPEN, Kind, frame
from swarmd.net.heap_store import HeapStore
from swarmd.net.libp2p_host import BULK, Libp2pConnection, Libp2pHost
from swarmd.net.link import LinkLimits
from swarmd.net.shaping import Caps
from swarmd.net.sockets import listen
from swarmd.net.stream_carrier import StreamCarrier
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import DialEnded, LinkEnded, LinkOpened
from swarmd.net.underlay import CarrierEnded
from swarmd.protocols.effects import Priority

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NET = Path(swarmd.net.__file__).parent
_seeds = count()


class Peers:
    """Real transports in this process."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._sides: list[Side] = []

    async def start(
        self,
        listen_on: str = LOOPBACK,
        *,
        seed: bytes | None = None,
        limits: LinkLimits = PATIENT,
        bulk_port: int | None = 0,
    ) -> Side:
        seed = seed or blake2b(b"guard %d" % next(_seeds), digest_size=32).digest()
        store = HeapStore()
        transport = SwarmTransport(seed, [listen_on], store, limits=limits, bulk_port=bulk_port)
        side = Side(transport, store)
        self._sides.append(side)

        async def run(task_status: object = trio.TASK_STATUS_IGNORED) -> None:
            await transport.run(task_status=task_status)

        await self._nursery.start(run)
        return side

    async def close(self) -> None:
        for side in self._sides:
            await side.transport.aclose()
        assert [side.store.held for side in self._sides] == [0] * len(self._sides)


@pytest.fixture
async def peers(nursery: trio.Nursery) -> AsyncIterator[Peers]:
    found = Peers(nursery)
    yield found
    await found.close()


async def link(a: Side, b: Side) -> None:
    a.transport.dial(b.peer_id, b.transport.addresses())
    assert await a.next() == LinkOpened(b.peer_id)
    assert await b.next() == LinkOpened(a.peer_id)


async def is_served(peers: Peers, side: Side, within_s: float = 2.0) -> bool:
    """An honest peer links and gets an answer."""
    honest = await peers.start()
    with trio.move_on_after(within_s):
        honest.transport.dial(side.peer_id, side.transport.addresses())
        while await side.transport.next_event() != LinkOpened(honest.peer_id):
            pass
        assert await honest.next() == LinkOpened(side.peer_id)
        honest.send(side, b"are you there")
        return (await side.arrival()).body == b"are you there"
    return False


def port_of(side: Side) -> int:
    return parse_address(side.transport.addresses()[0]).port


# ------------------------------------------------------------------------------------ configuration


def test_one_file_imports_libp2p_and_one_ssl_and_one_call_makes_a_host() -> None:
    importers: dict[str, set[str]] = {"libp2p": set(), "ssl": set()}
    makers = []
    for file in sorted(NET.glob("*.py")):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "new_host":
                makers.append(file.name)
            for name in names:
                if name.partition(".")[0] in importers:
                    importers[name.partition(".")[0]].add(file.name)
    assert importers == {"libp2p": {"libp2p_host.py"}, "ssl": {"tls_bulk.py"}}
    assert makers == ["libp2p_host.py"]


async def test_a_dialler_that_offers_plaintext_is_refused(peers: Peers) -> None:
    side = await peers.start()
    async with stock_host(plaintext=True) as host:
        with pytest.raises(SwarmException):
            await connect(host, side.transport.addresses()[0])
    await _until(lambda: side.transport.counters().get("handshake_failed", 0) >= 1)
    assert await is_served(peers, side)


async def test_nothing_dials_by_itself(peers: Peers) -> None:
    side = await peers.start()
    host = side.transport._underlay.host._host  # type: ignore[attr-defined]
    assert type(host.get_network().auto_connector).__module__ == "swarmd.net.libp2p_host"


async def test_a_taken_port_is_replaced_and_named_and_nothing_is_announced_as_0(
    peers: Peers,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        side = await peers.start(f"/ip4/127.0.0.1/tcp/{port}")
        assert isinstance(side.transport, SwarmTransport)
        real = port_of(side)
        assert real not in (0, port)
        assert side.transport.ports_changed[port] == real
        for address in [*side.transport.addresses(), *side.transport.bulk_addresses()]:
            assert parse_address(address).port
        assert await is_served(peers, side)


async def test_two_peers_never_share_a_port(peers: Peers) -> None:
    first = await peers.start()
    second = await peers.start(f"/ip4/127.0.0.1/tcp/{port_of(first)}")
    assert port_of(second) != port_of(first)


async def test_a_wildcard_is_never_announced(peers: Peers) -> None:
    side = await peers.start("/ip4/0.0.0.0/tcp/0")
    assert side.transport.addresses()
    for address in [*side.transport.addresses(), *side.transport.bulk_addresses()]:
        assert parse_address(address).host != "0.0.0.0"


async def test_ipv6_works_for_both_planes(peers: Peers) -> None:
    a, b = await peers.start("/ip6/::1/tcp/0"), await peers.start("/ip6/::1/tcp/0")
    assert b.transport.addresses()[0].startswith("/ip6/::1/")
    await link(a, b)
    a.send_payload(b, b"t", b"over six", Priority.MIX)
    assert await b.take() == b"over six"
    assert a.statistics(b).bulk_carrier == "tls"


async def test_a_start_and_a_stop_take_little_time() -> None:
    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        side = await Peers(nursery).start()
        await side.transport.aclose()
    assert trio.current_time() - begun_s < 4.0, "nothing in it waits for a deadline"


# ----------------------------------------------------------------------------------------- dialling


async def test_a_silent_listener_costs_its_deadline_and_is_a_timeout(peers: Peers) -> None:
    side = await peers.start(limits=LinkLimits(dial_each_s=0.5, hello_s=20.0))
    other = await peers.start()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"
        begun_s = trio.current_time()
        side.transport.dial(other.peer_id, [address])
        assert await side.next() == DialEnded(other.peer_id, {address: "timeout"})
        assert trio.current_time() - begun_s < 4.0, "the deadline of the dial, and no other one"


async def test_each_dead_address_is_named_with_its_own_cause(peers: Peers) -> None:
    side, other, third = [await peers.start() for _ in range(3)]
    with dead_address() as refused:
        causes = {
            refused: "refused",
            "/dns/no-such-name.invalid/tcp/1": "name_not_found",
            third.transport.addresses()[0].partition("/p2p/")[0]: "wrong_peer_id",
            third.transport.addresses()[0]: "wrong_peer_id",
            "/ip4/127.0.0.1/tcp/nonsense": "error",
        }
        side.transport.dial(other.peer_id, list(causes))
        assert await side.next() == DialEnded(other.peer_id, causes)


async def test_a_restarted_peer_is_dialled_at_once_also_on_another_port(peers: Peers) -> None:
    seed = os.urandom(32)
    side, other = await peers.start(), await peers.start(seed=seed)
    await link(side, other)
    await other.transport.aclose()
    assert await side.next() == LinkEnded(other.peer_id, "closed")
    old = other.transport.addresses()
    side.transport.dial(other.peer_id, old)
    assert await side.next() == DialEnded(other.peer_id, {old[0]: "refused"})
    again = await peers.start(seed=seed)
    begun_s = trio.current_time()
    side.transport.dial(again.peer_id, [*old, *again.transport.addresses()])
    assert await side.next() == LinkOpened(again.peer_id)
    assert trio.current_time() - begun_s < LinkLimits().dial_each_s, "nothing was waited for"


async def test_a_full_peer_serves_as_many_as_it_may_and_tells_the_others(peers: Peers) -> None:
    side = await peers.start(limits=replace(PATIENT, links_max=3))
    others = [await peers.start() for _ in range(8)]
    for other in others:
        other.transport.dial(side.peer_id, side.transport.addresses())
    events = [await other.next() for other in others]
    assert events.count(LinkOpened(side.peer_id)) == 3
    told = [event for event in events if isinstance(event, DialEnded)]
    assert all(set(event.causes.values()) == {"refused"} for event in told)
    assert side.transport.counters()["full"] == 5


# ------------------------------------------------------------------------------------------ streams


async def test_a_handler_that_raises_ends_its_stream_and_nothing_else(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, other = await peers.start(), await peers.start(limits=LinkLimits(dial_each_s=2))
    underlay = side.transport._underlay
    with monkeypatch.context() as patch:

        async def broken(connection: object, carrier: object) -> None:
            raise ValueError("a bug in a handler")

        handlers = underlay.host._handlers  # type: ignore[attr-defined]
        patch.setitem(handlers, libp2p_host.CONTROL, broken)
        underlay.host._set_handlers()  # type: ignore[attr-defined]
        other.transport.dial(side.peer_id, side.transport.addresses())
        assert isinstance(await other.next(), DialEnded)
    underlay.host._set_handlers()  # type: ignore[attr-defined]
    assert side.transport.counters()["stream_failed"] == 1
    assert await is_served(peers, side)


async def test_sixty_cancelled_writes_leave_the_connection_whole() -> None:
    """Another stream of the same connection echoes after each."""
    async with host_pair() as (near, connection):
        echo = await connection.open(libp2p_host.CONTROL, owns_socket=False)
        for attempt in range(60):
            sink = await connection.open(BULK, owns_socket=False)
            with trio.move_on_after(0.001 + 0.0003 * attempt):
                while True:
                    await sink.send([os.urandom(200_000)])
            sink.close_now()
            mark = os.urandom(10)
            with trio.fail_after(30):
                await echo.send([mark])
                back = bytearray(10)
                await echo.receive_into(memoryview(back))
            assert back == mark, attempt
        assert near.counts["stream_failed"] == 0


async def test_a_cancelled_read_leaves_the_stream_usable() -> None:
    async with host_pair() as (_, connection):
        echo = await connection.open(libp2p_host.CONTROL, owns_socket=False)
        with trio.move_on_after(0.05):
            await echo.receive_into(memoryview(bytearray(10)))
        await echo.send([b"0123456789"])
        back = bytearray(10)
        with trio.fail_after(30):
            await echo.receive_into(memoryview(back))
        assert back == b"0123456789"


async def test_small_pieces_on_the_way_do_not_end_a_connection(peers: Peers) -> None:
    """Stock writes of 64 KiB in pieces of 400 bytes would: the library gives up after 101."""
    a = await peers.start(bulk_port=None)
    b = await peers.start(bulk_port=None)
    async with chopping_proxy(port_of(b), 400) as port:
        a.transport.dial(b.peer_id, [f"/ip4/127.0.0.1/tcp/{port}"])
        assert await a.next() == LinkOpened(b.peer_id)
        assert await b.next() == LinkOpened(a.peer_id)
        a.send(b, pattern(500_000)[:500_000])
        assert (await b.arrival()).body == pattern(500_000)[:500_000]
        a.transport.drop(b.peer_id, "done")
        await a.next()
        await b.next()


async def test_a_peer_that_opens_streams_without_end_is_cut_off(peers: Peers) -> None:
    side = await peers.start()
    async with stock_host() as host:
        connection = await connect(host, side.transport.addresses()[0])
        with trio.move_on_after(5):
            try:
                await open_streams(connection, 1000)
            except Exception:
                pass  # it is being cut off
        await _until(lambda: side.transport.counters().get("too_many_streams") == 1)
        assert await is_served(peers, side)


async def test_a_peer_that_ignores_flow_control_is_cut_off(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p_host, "UNREAD_BYTES_MAX", 4 << 20)
    side = await peers.start()
    async with stock_host() as host:
        assert await push_unread(host, side.transport.addresses()[0], 300) < 60
        await _until(lambda: side.transport.counters().get("window_ignored") == 1)
        assert await is_served(peers, side)


async def test_a_connection_that_never_asks_for_anything_is_closed(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p_host, "CLAIM_S", 0.3)
    side = await peers.start()
    async with stock_host() as host:
        await connect(host, side.transport.addresses()[0])
        await _until(lambda: side.transport.counters().get("no_control_stream") == 1)


# ------------------------------------------------------------------------------ strangers and liars


async def test_four_hundred_strangers_cost_an_honest_peer_nothing(
    peers: Peers, nursery: trio.Nursery
) -> None:
    side = await peers.start()
    files = len(os.listdir("/proc/self/fd"))
    await nursery.start(strangers, port_of(side), 400)
    assert await is_served(peers, side, within_s=4.0)
    held = len(side.transport._underlay.host._raws)  # type: ignore[attr-defined]
    assert held <= 70
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await peers.close()
    assert len(os.listdir("/proc/self/fd")) <= files + 4


BAD_FRAMES = {
    "unknown kind": (HEADER.pack(77, 0, 0, 0), "malformed"),
    "unknown lane": (HEADER.pack(Kind.DATA, 9, 0, 0), "malformed"),
    "length of 2 GiB": (HEADER.pack(Kind.DATA, 0, 0, 1 << 31), "too_large"),
    "frame too long": (HEADER.pack(Kind.DATA, 0, 0, FRAME_BODY_BYTES_MAX + 1), "too_large"),
    "message of 4 GiB": (frame(Kind.OPEN, OPEN.pack(1, (1 << 32) - 1, 0, 0)), "too_large"),
    "payload on the control plane": (frame(Kind.OPEN, OPEN.pack(1, 0, 5, 1)), "too_large"),
    "data without a message": (frame(Kind.DATA, b"x"), "malformed"),
    "message out of turn": (frame(Kind.OPEN, OPEN.pack(7, 1, 0, 0) + b"x"), "malformed"),
    "acknowledged what was not sent": (frame(Kind.ACK, bytes(15) + b"\x01"), "malformed"),
    "resume on the control plane": (frame(Kind.ATTACH), "malformed"),
    "second hello": (frame(Kind.HELLO, b""), "malformed"),
    "noise": (b"\xa5" * 64, "malformed"),
    "a flood of heartbeats": (frame(Kind.BEAT, bytes(20)) * 2000, "rate_exceeded"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_a_member_that_sends_a_bad_frame_loses_its_link_and_is_counted(
    peers: Peers, name: str
) -> None:
    data, code = BAD_FRAMES[name]
    side = await peers.start()
    async with stock_host() as host:
        await say_on_control(host, side.transport.addresses()[0], data)
        peer = str(host.get_id())
        assert await side.next() == LinkOpened(peer)  # type: ignore[arg-type]
        assert await side.next() == LinkEnded(peer, "dropped")  # type: ignore[arg-type]
        assert side.transport.counters()[code] == 1


async def test_a_hello_that_is_none_is_counted_and_gives_no_link(peers: Peers) -> None:
    side = await peers.start()
    async with stock_host() as host:
        await connect(host, side.transport.addresses()[0])
        stream = await host.new_stream(host.get_connected_peers()[0], [libp2p_host.CONTROL])
        await stream.write(frame(Kind.BEAT, bytes(20)))
        await _until(lambda: side.transport.counters().get("malformed") == 1)
        assert side.transport.statistics() == []


# ------------------------------------------------------------------------------------------ helpers


@asynccontextmanager
async def host_pair() -> AsyncIterator[tuple[Libp2pHost, Libp2pConnection]]:
    """Two guarded hosts: control streams echo, bulk streams sink. A connection from one to the
    other."""

    async def echo(connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        body = bytearray(10)
        try:
            while True:
                await carrier.receive_into(memoryview(body))
                await carrier.send([body])
        except CarrierEnded:
            return

    async def sink(connection: Libp2pConnection, carrier: StreamCarrier) -> None:
        try:
            while True:
                await carrier.receive_into(memoryview(bytearray(1 << 14)))
        except CarrierEnded:
            return

    hosts = [
        Libp2pHost(os.urandom(32), on_control=echo, on_bulk=sink, links_max=8, caps=Caps())
        for _ in range(2)
    ]
    async with trio.open_nursery() as nursery:
        listener, port = await listen("127.0.0.1", 0)
        await nursery.start(hosts[0].run, [listener], [])
        await nursery.start(hosts[1].run, [], [])
        connection = await hosts[1].dial(hosts[0].peer_id, f"/ip4/127.0.0.1/tcp/{port}")
        yield hosts[0], connection
        nursery.cancel_scope.cancel()


async def _until(condition, within_s: float = 6.0) -> None:  # type: ignore[no-untyped-def]
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.01)
