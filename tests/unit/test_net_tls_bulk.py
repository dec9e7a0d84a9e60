"""The bulk connection: who is let in, what breaks it, and that the tensor arrives all the same."""

from __future__ import annotations

import os
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from tcp_proxy import tcp_proxy
from transport_contract import PATIENT, Pair, Side, loopback_pair, pattern, running_pair

from swarmd.net import tls_bulk
from swarmd.net.addresses import parse_address
from swarmd.net.certificates import make_certificate
from swarmd.net.frames import HEADER, OPEN, Hello, Kind, frame
from swarmd.net.libp2p_host import peer_id_of_seed
from swarmd.net.shaping import Caps
from swarmd.net.sockets import RawStream
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.tls_bulk import BulkKeys, Refused, TlsCarrier, accept_tls, connect_tls
from swarmd.net.transport import LinkEnded
from swarmd.net.underlay import CarrierEnded, DialFailed
from swarmd.protocols import limits
from swarmd.protocols.effects import Priority

SERVER, HONEST, STRANGER = (bytes([number]) * 32 for number in (1, 2, 3))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with loopback_pair() as found:
        yield found


def keys_of(seed: bytes) -> BulkKeys:
    return BulkKeys(*make_certificate(seed))


@dataclass
class Door:
    """A server that trusts HONEST, what it said about the last dialler, and its port."""

    keys: BulkKeys
    port: int
    said: list[str]

    async def verdict(self) -> str:
        with trio.fail_after(8):
            while not self.said:
                await trio.sleep(0.005)
        return self.said[0]


@asynccontextmanager
async def door(honest: BulkKeys) -> AsyncIterator[Door]:
    keys, said = keys_of(SERVER), list[str]()
    keys.trust(peer_id_of_seed(HONEST), honest.certificate)

    async def serve(stream: trio.SocketStream) -> None:
        raw = RawStream(stream, Caps(), is_bulk=True)
        try:
            peer, carrier = await accept_tls(raw, keys)
            said.append(f"let in {peer}")
            await carrier.send([b"hello"])
            await carrier.receive_into(memoryview(bytearray(1 << 20)))
        except Refused as refused:
            said.append(refused.reason)
        except CarrierEnded:
            pass
        finally:
            raw.close_now()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield Door(keys, listeners[0].socket.getsockname()[1], said)
        nursery.cancel_scope.cancel()


async def raw_to(port: int) -> RawStream:
    return RawStream(await trio.open_tcp_stream("127.0.0.1", port), Caps(), is_bulk=True)


async def dial(found: Door, keys: BulkKeys, expected: bytes = SERVER) -> TlsCarrier:
    raw = await raw_to(found.port)
    try:
        return await connect_tls(raw, keys, peer_id_of_seed(expected))
    except BaseException:
        raw.close_now()
        raise


# ------------------------------------------------------------------------------------ who is let in


async def test_a_neighbour_is_let_in_and_both_know_who_is_there() -> None:
    honest = keys_of(HONEST)
    async with door(honest) as found:
        honest.trust(peer_id_of_seed(SERVER), found.keys.certificate)
        carrier = await dial(found, honest)
        assert await found.verdict() == f"let in {peer_id_of_seed(HONEST)}"
        assert honest.peer_of(carrier.certificate) == peer_id_of_seed(SERVER)
        word = bytearray(5)
        await carrier.receive_into(memoryview(word))
        assert word == b"hello"
        carrier.close_now()


async def test_a_server_that_is_somebody_else_is_a_wrong_peer_id() -> None:
    honest = keys_of(HONEST)
    async with door(honest) as found:
        honest.trust(peer_id_of_seed(SERVER), keys_of(SERVER).certificate)
        with pytest.raises(DialFailed) as failed:
            await dial(found, honest)
        assert failed.value.cause == "wrong_peer_id"


async def test_a_stranger_with_a_good_certificate_is_refused() -> None:
    stranger = keys_of(STRANGER)
    async with door(keys_of(HONEST)) as found:
        stranger.trust(peer_id_of_seed(SERVER), found.keys.certificate)
        await refused_after(lambda: dial(found, stranger))
        assert await found.verdict() == "bad_certificate"


async def test_a_former_neighbour_is_refused() -> None:
    honest = keys_of(HONEST)
    async with door(honest) as found:
        honest.trust(peer_id_of_seed(SERVER), found.keys.certificate)
        found.keys.distrust(peer_id_of_seed(HONEST))
        await refused_after(lambda: dial(found, honest))
        assert await found.verdict() == "bad_certificate"


async def test_one_of_many_neighbours_is_found() -> None:
    honest = keys_of(HONEST)
    async with door(honest) as found:
        for number in range(100):
            seed = b"%032d" % number
            found.keys.trust(peer_id_of_seed(seed), keys_of(seed).certificate)
        honest.trust(peer_id_of_seed(SERVER), found.keys.certificate)
        (await dial(found, honest)).close_now()
        assert await found.verdict() == f"let in {peer_id_of_seed(HONEST)}"


@pytest.mark.parametrize(
    ("newest", "reason"),
    [(ssl.TLSVersion.TLSv1_3, "bad_certificate"), (ssl.TLSVersion.TLSv1_2, "bad_tls")],
)
async def test_no_certificate_and_an_old_tls_are_refused(
    newest: ssl.TLSVersion, reason: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([tls_bulk.ALPN])
    context.maximum_version = newest
    async with door(keys_of(HONEST)) as found:
        await refused_after(lambda: plain_dial(found, context))
        assert await found.verdict() == reason


async def test_another_application_protocol_is_refused() -> None:
    pem = "".join(reversed(make_certificate(HONEST)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    honest = keys_of(HONEST)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)
    honest.certificate = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") :])
    async with door(honest) as found:
        await refused_after(lambda: plain_dial(found, context))
        assert await found.verdict() in ("handshake_failed", "bad_tls")


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\xff\xff" * 40])
async def test_other_greetings_and_silence_end_within_their_deadline(
    words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_bulk, "HANDSHAKE_S", 0.3)
    async with door(keys_of(HONEST)) as found:
        raw = await raw_to(found.port)
        if words:
            await raw.send_all(words)
        assert await found.verdict() in ("bad_tls", "handshake_failed", "handshake_timeout")
        raw.close_now()


async def plain_dial(found: Door, context: ssl.SSLContext) -> TlsCarrier:
    carrier = TlsCarrier(await raw_to(found.port), context, server_side=False)
    await carrier.handshake()
    return carrier


async def refused_after(dialling: Callable[[], Awaitable[TlsCarrier]]) -> None:
    """In TLS 1.3 a refused client believes itself connected until its first read."""
    try:
        carrier = await dialling()
        await carrier.receive_into(memoryview(bytearray(1)))
    except (DialFailed, CarrierEnded, ssl.SSLError):
        return
    raise AssertionError("was let in")


# ----------------------------------------------------------------------------------- what breaks it


@pytest.mark.parametrize("sizes", [(0,), (29, 0), (29, 100), (24, 29, 90, 532_000), (29, 8193)])
def test_a_frame_leaves_in_bounded_pieces_and_its_head_never_alone(sizes: tuple[int, ...]) -> None:
    parts = [pattern(size) for size in sizes]
    pieces = list(tls_bulk._pieces(parts))
    assert b"".join(b"".join(piece) for piece in pieces) == b"".join(parts)
    most = tls_bulk.PIECE_BYTES + 2 * tls_bulk.SMALL_BYTES
    assert all(sum(map(len, piece)) <= most for piece in pieces)
    if any(size > tls_bulk.SMALL_BYTES for size in sizes):
        assert all(len(piece[-1]) > tls_bulk.SMALL_BYTES for piece in pieces), "no small segment"
    else:
        assert len(pieces) <= 1


async def test_sixty_cancelled_sends_leave_the_connection_whole() -> None:
    async with carriers() as (near, far):
        got = bytearray()

        async def drain() -> None:
            view = memoryview(bytearray(1 << 14))
            try:
                while True:
                    await far.receive_into(view)
                    got.extend(view[-1:])
            except CarrierEnded:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            sent, block = 0, bytes((1 << 18) - 1) + b"x"
            for attempt in range(60):
                with trio.move_on_after(0.0005 + 0.0002 * attempt):
                    while True:
                        await near.send([block])
                        sent += 1
            with trio.fail_after(30):
                while len(got) < sent * 16:
                    await trio.sleep(0.01)
            # Every 256 KiB end in an x: not one byte is missing or doubled.
            assert bytes(got[15::16]) == b"x" * (len(got) // 16)
            nursery.cancel_scope.cancel()


async def test_a_frozen_peer_is_given_up_also_when_an_outer_deadline_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_bulk, "STALL_S", 0.6)
    async with carriers() as (near, _):

        async def send_without_end() -> None:
            with trio.move_on_after(0.2):
                while True:
                    await near.send([bytes(1 << 18)])

        begun_s = trio.current_time()
        with pytest.raises(CarrierEnded) as ended:
            await send_without_end()
        assert ended.value.cause == "stalled"
        assert trio.current_time() - begun_s < 8.0, "its own deadline, not the one of every carrier"


async def test_a_changed_record_is_a_loss_and_the_tensor_arrives_over_another_connection(
    pair: Pair,
) -> None:
    async with spoiling_proxy(pair.b, spoil_at=400_000) as spoiled:
        await pair.link()
        data = pattern(2_000_000)[:2_000_000]
        told = pair.a.send_payload(pair.b, b"t", data, Priority.STATE)
        assert await pair.b.take() == data
        assert spoiled
        with trio.fail_after(30):
            while told.said != [True]:
                await trio.sleep(0.01)
        assert pair.a.transport.statistics()[0].path == "direct"


async def test_an_end_at_any_place_never_completes_a_transfer_and_loses_none(pair: Pair) -> None:
    """The bulk connection is cut after 1, 2, 3 ... KiB; each time it goes on where it stood."""
    await pair.link()
    data = pattern(300_000)[:300_000]
    for cut_kib in (1, 2, 5, 40, 150, 290):
        async with spoiling_proxy(pair.b, close_at=cut_kib << 10) as cut:
            _use_bulk_address(pair.a, pair.b)
            pair.a.send_payload(pair.b, b"t", data, Priority.STATE)
            assert await pair.b.take() == data
            assert cut
        _drop_bulk(pair.a, pair.b)


BAD_BULK_FRAMES = {
    "before ATTACH": (frame(Kind.OPEN, OPEN.pack(1, 0, 0, 0)), "malformed"),
    "frame too long": (
        frame(Kind.ATTACH) + HEADER.pack(Kind.DATA, 0, 0, (1 << 20) + 1),
        "too_large",
    ),
    "payload too large": (
        frame(Kind.ATTACH) + frame(Kind.OPEN, OPEN.pack(1, 0, limits.PAYLOAD_BYTES_MAX + 1, 1)),
        "too_large",
    ),
    "more data than announced": (
        frame(Kind.ATTACH) + frame(Kind.OPEN, OPEN.pack(1, 2, 0, 0)) + frame(Kind.DATA, b"xyz"),
        "malformed",
    ),
    "resume of what was never sent": (
        frame(Kind.ATTACH) + frame(Kind.ACK, struct.pack("!QQ", 9, 0)),
        "malformed",
    ),
}


@pytest.mark.parametrize("name", BAD_BULK_FRAMES)
async def test_a_bad_bulk_frame_ends_the_link_and_is_counted(pair: Pair, name: str) -> None:
    data, code = BAD_BULK_FRAMES[name]
    await pair.link()
    carrier = await hand_made_bulk(pair.a, pair.b)
    await carrier.send([data])
    assert await pair.b.next() == LinkEnded(pair.a.peer_id, "dropped")
    assert pair.b.transport.counters()[code] == 1
    assert isinstance(await pair.a.next(), LinkEnded)


async def test_a_hello_for_another_start_is_refused_and_the_link_stays(pair: Pair) -> None:
    await pair.link()
    with pytest.raises(CarrierEnded):
        await hand_made_bulk(pair.a, pair.b, yours=b"87654321")
    assert pair.b.transport.counters()["bulk_of_other_start"] == 1
    pair.a.send(pair.b, b"alive")
    assert (await pair.b.arrival()).body == b"alive"


async def test_two_hundred_silent_strangers_do_not_keep_a_neighbour_out(pair: Pair) -> None:
    await pair.link()
    port = parse_address(pair.b.transport.bulk_addresses()[0]).port
    held = [await raw_to(port) for _ in range(200)]
    pair.a.send_payload(pair.b, b"t", b"data", Priority.PIPELINE)
    with trio.fail_after(20):
        assert await pair.b.take() == b"data"
    assert pair.a.statistics(pair.b).bulk_carrier == "tls"
    assert pair.b.transport.counters()["half_open_evicted"] >= 100
    for raw in held:
        raw.close_now()


async def test_two_thousand_transfers_leave_memory_flat(pair: Pair) -> None:
    await pair.link()
    data = bytes(20_000)
    for number in range(2000):
        pair.a.send_payload(pair.b, b"t", data, Priority.PIPELINE)
        await pair.b.take()
        if number == 500:
            before = _resident_bytes()
    assert _resident_bytes() - before < 8 << 20


async def test_a_neighbour_without_a_bulk_port_is_reached_by_stream_and_named() -> None:
    async with mixed_pair() as pair:
        await pair.link()
        pair.a.send_payload(pair.b, b"t", b"data", Priority.PIPELINE)
        assert await pair.b.take() == b"data"
        # B has no port but can dial A's: A sends on what B opened.
        assert pair.a.statistics(pair.b).bulk_carrier == "tls"
        pair.b.send_payload(pair.a, b"t", b"back", Priority.PIPELINE)
        assert await pair.a.take() == b"back"


# ------------------------------------------------------------------------------------------ helpers


@asynccontextmanager
async def carriers() -> AsyncIterator[tuple[TlsCarrier, TlsCarrier]]:
    """Two ends of one TLS connection."""
    server, client = keys_of(SERVER), keys_of(HONEST)
    server.trust(peer_id_of_seed(HONEST), client.certificate)
    client.trust(peer_id_of_seed(SERVER), server.certificate)
    send, receive = trio.open_memory_channel[TlsCarrier](1)

    async def serve(stream: trio.SocketStream) -> None:
        raw = RawStream(stream, Caps(), is_bulk=True)
        _, carrier = await accept_tls(raw, server)
        await send.send(carrier)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        raw = await raw_to(listeners[0].socket.getsockname()[1])
        near = await connect_tls(raw, client, peer_id_of_seed(SERVER))
        far = await receive.receive()
        yield near, far
        near.close_now()
        far.close_now()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def spoiling_proxy(
    side: Side, *, spoil_at: int = 1 << 60, close_at: int = 1 << 60
) -> AsyncIterator[list[int]]:
    """`side` announces a proxy as its bulk port that changes a byte, or closes, once."""
    done: list[int] = []
    real = parse_address(side.transport.bulk_addresses()[0]).port

    def spoil(data: bytearray, passed: int) -> bool:
        if done or passed <= min(spoil_at, close_at):
            return True
        done.append(passed)
        data[0] ^= passed > spoil_at
        return passed <= close_at

    async with tcp_proxy("127.0.0.1", real, lets_in=spoil) as port:
        underlay = side.transport._underlay
        before = underlay._bulk_announced  # type: ignore[attr-defined]
        underlay._bulk_announced = [parse_address(f"/ip4/127.0.0.1/tcp/{port}")]  # type: ignore[attr-defined]
        yield done
        underlay._bulk_announced = before  # type: ignore[attr-defined]


def _use_bulk_address(a: Side, b: Side) -> None:
    ways = a.transport._links[b.peer_id].ways
    ways.addresses = tuple(b.transport.bulk_addresses())
    ways._dedicated_failed_s = None


def _drop_bulk(a: Side, b: Side) -> None:
    for pump in list(a.transport._links[b.peer_id].ways._pumps):
        pump.stop("dropped", "a test wants it")


async def hand_made_bulk(a: Side, b: Side, *, yours: bytes | None = None) -> TlsCarrier:
    """A bulk connection of A to B that says HELLO and is then ours to misuse."""
    link = a.transport._links[b.peer_id]
    carrier = await a.transport._underlay.dial_bulk(b.peer_id, b.transport.bulk_addresses()[0])
    hello = Hello(
        plane="bulk",
        nonce=link.ways.hello.nonce,
        yours=yours or link.ways.hello.yours,
        window_bytes=1 << 20,
    )
    await carrier.send([hello.encode()])
    await carrier.receive_into(memoryview(bytearray(HEADER.size)))
    assert isinstance(carrier, TlsCarrier)
    return carrier


@asynccontextmanager
async def mixed_pair() -> AsyncIterator[Pair]:
    """A has a bulk port, B has none."""
    ports = iter((0, None))
    async with running_pair(
        lambda store: SwarmTransport(
            os.urandom(32),
            ["/ip4/127.0.0.1/tcp/0"],
            store,
            bulk_port=next(ports),
            limits=PATIENT,
        )
    ) as pair:
        yield pair


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
