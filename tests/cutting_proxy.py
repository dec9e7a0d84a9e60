"""A proxy before a bulk port that closes the first connection after so many bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from transport_contract import Side

from swarmd.net.addresses import parse_address


@dataclass
class Cut:
    address: str
    count: int = 0


@asynccontextmanager
async def cutting_proxy(side: Side, after_bytes: int) -> AsyncIterator[Cut]:
    """On the way to the bulk port of `side`. Later connections pass unharmed."""
    real = parse_address(side.transport.bulk_addresses()[0])
    cut = Cut("")

    async def forward(source: trio.SocketStream, sink: trio.SocketStream, to_side: bool) -> None:
        passed = 0
        try:
            while data := await source.receive_some(4096):
                passed += len(data)
                if to_side and not cut.count and passed > after_bytes:
                    cut.count += 1
                    break
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        source.socket.close()
        sink.socket.close()

    async def serve(near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream(real.host, real.port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward, near, far, True)
            nursery.start_soon(forward, far, near, False)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            lambda task_status: trio.serve_tcp(serve, 0, host=real.host, task_status=task_status)
        )
        cut.address = f"/ip4/{real.host}/tcp/{listeners[0].socket.getsockname()[1]}"
        yield cut
        nursery.cancel_scope.cancel()
