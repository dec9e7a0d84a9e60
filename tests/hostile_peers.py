"""Peers that do not play by the rules, for tests of what the transport does about them.

They speak libp2p with the library itself, unguarded, or write raw bytes at a port.
"""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import multiaddr
import trio
from libp2p import generate_new_ed25519_identity, new_host
from libp2p.crypto.x25519 import create_new_key_pair as new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
)
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID

from swarmd.net.frames import Hello
from swarmd.net.libp2p_host import CONTROL
from swarmd.net.quiet import silence_libp2p


@asynccontextmanager
async def stock_host(*, plaintext: bool = False) -> AsyncIterator[Any]:
    """A host of the library, as anybody could run it."""
    silence_libp2p()
    keys = generate_new_ed25519_identity()
    noise = NoiseTransport(keys, noise_privkey=new_x25519_key_pair().private_key)
    security: dict[TProtocol, Any] = {TProtocol(NOISE_ID): noise}
    if plaintext:
        security = {TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(keys)}
    host = new_host(
        key_pair=keys,
        sec_opt=security,
        muxer_opt={TProtocol(YAMUX_ID): Yamux},
        connection_config=ConnectionConfig(min_connections=0, low_watermark=0),
    )
    async with host.run(listen_addrs=[]):
        yield host


async def connect(host: Any, address: str) -> Any:
    """A connection of the library's; raises what it raises."""
    info = info_from_p2p_addr(multiaddr.Multiaddr(address))
    with trio.fail_after(10):
        await host.connect(info)
    return host.get_network().get_connections(info.peer_id)[0]


async def say_on_control(host: Any, address: str, *pieces: bytes) -> Any:
    """Open a control stream, say a good HELLO, read theirs, then write whatever is given."""
    info = info_from_p2p_addr(multiaddr.Multiaddr(address))
    await connect(host, address)
    stream = await host.new_stream(info.peer_id, [CONTROL])
    await stream.write(Hello(plane="control", nonce=os.urandom(8), window_bytes=1 << 20).encode())
    with trio.fail_after(30):
        await stream.read(65_536)
    for piece in pieces:
        try:
            await stream.write(piece)
        except Exception:  # cut off, in one of the library's many ways
            break
    return stream


async def push_unread(host: Any, address: str, megabytes: int) -> int:
    """Ignore flow control on a stream that is read slowly. How much was taken, in MiB."""
    info = info_from_p2p_addr(multiaddr.Multiaddr(address))
    connection = await connect(host, address)
    # The library's ping handler reads 32 bytes at a time.
    stream = await host.new_stream(info.peer_id, [TProtocol("/ipfs/ping/1.0.0")])
    muxer, stream_id = connection.muxed_conn, stream.muxed_stream.stream_id
    head = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream_id, 1 << 20)
    sent = 0
    try:
        # Once it has seen the end, the library may take writes that go nowhere.
        while sent < megabytes and not muxer.event_shutting_down.is_set():
            with trio.fail_after(5):
                await muxer._write_frame(head + bytes(1 << 20))
            sent += 1
    except Exception:  # cut off, in one of the library's many ways
        return sent
    return sent


async def open_streams(connection: Any, count: int) -> None:
    """Stream-open frames, below the library's own limit."""
    muxer = connection.muxed_conn
    for number in range(count):
        fields = (0, TYPE_WINDOW_UPDATE, FLAG_SYN, 100_001 + 2 * number, 0)
        await muxer._write_frame(struct.pack(YAMUX_HEADER_FORMAT, *fields))


async def strangers(port: int, count: int, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """`count` sockets with random bytes, half a handshake, a huge length, or nothing at all."""

    async def one(number: int) -> None:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                opened.append(number)
                if number % 4 == 0:
                    await stream.send_all(os.urandom(10_000))
                elif number % 4 == 1:
                    await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n" + os.urandom(99))
                elif number % 4 == 2:
                    await stream.send_all(b"\xff\xff\xff\xff\x0f" + bytes(100_000))
                await trio.sleep_forever()
        except (OSError, trio.BrokenResourceError):
            pass

    opened: list[int] = []
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)
        with trio.move_on_after(10):
            while len(opened) < count:
                await trio.sleep(0.01)
        task_status.started()


@asynccontextmanager
async def chopping_proxy(port: int, piece_bytes: int) -> AsyncIterator[int]:
    """Forwards to `port` in small pieces one way. Yields its own port."""

    async def forward(source: Any, sink: Any, piece: int) -> None:
        try:
            while data := await source.receive_some(65_536):
                for at in range(0, len(data), piece):
                    await sink.send_all(data[at : at + piece])
                    await trio.sleep(0)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def serve(near: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as far:
            far.setsockopt(6, 1, 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(forward, near, far, piece_bytes)
                nursery.start_soon(forward, far, near, 65_536)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield int(listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()
