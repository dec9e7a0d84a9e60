"""What `swarmd bench links` compares: three ways to move bytes, each as a pair of ends.

    raw_tcp   what the machine gives
    bulk      our bulk plane: payloads into slots, as the daemon uses it
    libp2p    a stock stream, noise and yamux: a message is one write, and is read as it comes

The far end is a process of its own, `python -m swarmd.net.bench_planes PLANE`. One pattern for all:
a message goes, a small one comes back. The libp2p connection stands on our own sockets, whose large
reads help the library a little.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from swarmd.errors import LinkBroken
from swarmd.net.addresses import ip_address
from swarmd.net.heap_store import HeapStore
from swarmd.net.libp2p_host import BULK, Libp2pConnection, Libp2pHost
from swarmd.net.shaping import Caps
from swarmd.net.sockets import listen
from swarmd.net.stream_carrier import StreamCarrier
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import FrameArrived, LinkEnded, LinkOpened
from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId

HOST = "127.0.0.1"
READ_BYTES = 256 << 10
HEAD = struct.Struct("!Q")
ASK_CPU = (1 << 64) - 1
"""Instead of a size: answer with the processor seconds of the process."""


@dataclass(frozen=True, slots=True)
class Plane:
    """What a plane offers to the measurement."""

    exchange: Callable[[int], Awaitable[None]]
    """Send so many bytes and wait for the answer."""
    peer_cpu_s: Callable[[], Awaitable[float]]


# ------------------------------------------------------------------- plain TCP, and a libp2p stream


class Pipe:
    """Messages over whatever writes bytes and reads what there is. Bodies are thrown away."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        read: Callable[[int], Awaitable[bytes | bytearray]],
    ) -> None:
        self._write, self._read = write, read
        self._messages: dict[int, bytes] = {}

    async def exchange(self, size: int) -> None:
        if size not in self._messages:
            self._messages = {size: HEAD.pack(size) + bytes(size)}
        await self._write(self._messages[size])
        await self._exactly(HEAD.size)

    async def peer_cpu_s(self) -> float:
        await self._write(HEAD.pack(ASK_CPU))
        (micros,) = HEAD.unpack(await self._exactly(HEAD.size))
        return float(micros) / 1e6

    async def serve(self) -> None:
        """Until the far side is gone."""
        while True:
            (size,) = HEAD.unpack(await self._exactly(HEAD.size))
            if size == ASK_CPU:
                await self._write(HEAD.pack(time.process_time_ns() // 1000))
                continue
            while size:
                size -= len(await self._some(min(size, READ_BYTES)))
            await self._write(HEAD.pack(0))

    async def _exactly(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            data += await self._some(size - len(data))
        return data

    async def _some(self, size: int) -> bytes | bytearray:
        data = await self._read(size)
        if not data:
            raise LinkBroken("lost", "the other process ended")
        return data


@asynccontextmanager
async def _reach_raw_tcp(where: dict[str, Any]) -> AsyncIterator[Plane]:
    async with await trio.open_tcp_stream(HOST, where["port"]) as stream:
        pipe = Pipe(stream.send_all, stream.receive_some)
        yield Plane(pipe.exchange, pipe.peer_cpu_s)


async def _be_raw_tcp() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        try:
            await Pipe(stream.send_all, stream.receive_some).serve()
        except LinkBroken:
            return

    listeners = await trio.open_tcp_listeners(0, host=HOST)
    _say({"port": listeners[0].socket.getsockname()[1]})
    await trio.serve_listeners(serve, listeners)


async def _no_control(connection: Libp2pConnection, carrier: StreamCarrier) -> None:
    carrier.close_now()


async def _serve_stream(connection: Libp2pConnection, carrier: StreamCarrier) -> None:
    try:
        await Pipe(carrier.stream.write, carrier.stream.read).serve()
    except LinkBroken:
        return


def _host() -> Libp2pHost:
    return Libp2pHost(
        os.urandom(32), on_control=_no_control, on_bulk=_serve_stream, links_max=4, caps=Caps()
    )


@asynccontextmanager
async def _reach_libp2p(where: dict[str, Any]) -> AsyncIterator[Plane]:
    host = _host()
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, [], [])
        connection = await host.dial(PeerId(where["peer"]), where["address"])
        carrier = await connection.open(BULK, owns_socket=False)
        pipe = Pipe(carrier.stream.write, carrier.stream.read)
        yield Plane(pipe.exchange, pipe.peer_cpu_s)
        connection.close_now()
        nursery.cancel_scope.cancel()


async def _be_libp2p() -> None:
    host = _host()
    listener, port = await listen(HOST, 0)
    address = ip_address(HOST, port)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, [listener], [address])
        _say({"peer": host.peer_id, "address": str(address)})


# --------------------------------------------------------------------------------------- bulk plane


async def _start(nursery: trio.Nursery, store: HeapStore) -> SwarmTransport:
    transport = SwarmTransport(os.urandom(32), [f"/ip4/{HOST}/tcp/0"], store)

    async def run(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await transport.run(task_status=task_status)

    await nursery.start(run)
    return transport


@asynccontextmanager
async def _reach_bulk(where: dict[str, Any]) -> AsyncIterator[Plane]:
    store, peer = HeapStore(), PeerId(where["peer"])

    async def answer() -> bytes:
        event = await transport.next_event()
        if not isinstance(event, FrameArrived):
            raise LinkBroken("lost", f"the link is gone: {event}")
        if event.payload is not None:
            store.release(event.payload)
        return event.body

    async def exchange(size: int) -> None:
        _send(transport, store, peer, size)
        await answer()

    async def peer_cpu_s() -> float:
        transport.send(peer, b"cpu")
        return float(await answer())

    async with trio.open_nursery() as nursery:
        transport = await _start(nursery, store)
        transport.dial(peer, where["addresses"])
        event = await transport.next_event()
        if not isinstance(event, LinkOpened):
            raise LinkBroken("lost", f"no link: {event}")
        yield Plane(exchange, peer_cpu_s)
        await transport.aclose()
        nursery.cancel_scope.cancel()


def _send(transport: SwarmTransport, store: HeapStore, peer: PeerId, size: int) -> None:
    ref = store.acquire(size)
    if ref is None:
        raise MemoryError(f"{size} bytes")
    transport.send(
        peer,
        b"",
        priority=Priority.PIPELINE,
        payload=ref,
        on_sent=lambda _sent: store.release(ref),
    )


async def _be_bulk() -> None:
    store = HeapStore()
    async with trio.open_nursery() as nursery:
        transport = await _start(nursery, store)
        _say({"peer": transport.peer_id, "addresses": list(transport.addresses())})
        while True:
            event = await transport.next_event()
            if isinstance(event, LinkEnded):
                nursery.cancel_scope.cancel()
                return
            if not isinstance(event, FrameArrived):
                continue
            if event.payload is None:
                transport.send(event.peer, b"%.6f" % time.process_time())
                continue
            store.release(event.payload)
            _send(transport, store, event.peer, 0)


# ------------------------------------------------------------------------------------ the processes

REACH = {"raw_tcp": _reach_raw_tcp, "bulk": _reach_bulk, "libp2p": _reach_libp2p}
_BE = {"raw_tcp": _be_raw_tcp, "bulk": _be_bulk, "libp2p": _be_libp2p}


def _say(where: dict[str, Any]) -> None:
    print(json.dumps(where), flush=True)


if __name__ == "__main__":
    trio.run(_BE[sys.argv[1]])
