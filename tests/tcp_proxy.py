"""A proxy on the way to a TCP port, as routers and bad lines are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

PIECE_BYTES = 4096


def _unharmed(data: bytearray, passed: int) -> bool:
    return True


@asynccontextmanager
async def tcp_proxy(
    host: str, to_port: int, *, port: int = 0, lets_in: Callable[[bytearray, int], bool] = _unharmed
) -> AsyncIterator[int]:
    """Yields the port that it listens on. lets_in: told each piece on the way in, which it may
    change, and how much has come on that connection with it; False closes the connection."""

    async def forward(source: trio.SocketStream, sink: trio.SocketStream, is_in: bool) -> None:
        passed = 0
        try:
            while data := bytearray(await source.receive_some(PIECE_BYTES)):
                passed += len(data)
                if is_in and not lets_in(data, passed):
                    break
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        source.socket.close()
        sink.socket.close()

    async def serve(near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream(host, to_port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward, near, far, True)
            nursery.start_soon(forward, far, near, False)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: trio.serve_tcp(serve, port, host=host, task_status=task_status)
        )
        yield int(listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()
