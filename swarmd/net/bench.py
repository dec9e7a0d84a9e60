"""How fast links are here: two processes on loopback, one pattern for every row.

A message of N bytes goes, an empty one comes back, the next one goes. Rows: plain TCP (what the
machine gives), the bulk plane on its TLS connection, the bulk plane on a libp2p stream (the
fallback). CPU seconds are of the whole process on each side, so they hold what a user pays.

    rows = trio.run(bench_links)            # about a minute; medians of 5 runs a row
    python -m swarmd.net.bench [SECONDS]    # the same as a table
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import trio

from swarmd.net.heap_store import HeapStore
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import FrameArrived, LinkEnded, LinkOpened
from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId

PLANES = ("raw_tcp", "bulk", "libp2p")
SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20)
LISTEN = ["/ip4/127.0.0.1/tcp/0"]
_CPU = b"cpu"


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One line of `swarmd bench links`. Medians over the runs."""

    plane: str
    message_bytes: int
    mb_per_s: float
    cpu_s_per_gb_sender: float
    cpu_s_per_gb_receiver: float
    rtt_p50_ms: float
    rtt_p99_ms: float


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a plane offers to the measurement."""

    exchange: Callable[[int], Awaitable[None]]
    """Send so many bytes and wait for the answer."""
    peer_cpu_s: Callable[[], Awaitable[float]]


async def bench_links(
    *,
    planes: Sequence[str] = PLANES,
    sizes: Sequence[int] = SIZES,
    runs: int = 5,
    seconds: float = 0.5,
    on_row: Callable[[LinkRow], None] | None = None,
) -> list[LinkRow]:
    """Each row: `runs` runs of `seconds` s, at least three messages. Medians."""
    rows = []
    for plane in planes:
        async with _peer(plane) as probe:
            for size in sizes:
                await probe.exchange(size)
                parts = [await _measure(plane, probe, size, seconds) for _ in range(runs)]
                rows.append(_median(parts))
                if on_row is not None:
                    on_row(rows[-1])
    return rows


async def _measure(plane: str, probe: _Probe, size: int, seconds: float) -> LinkRow:
    theirs_s, ours_s = await probe.peer_cpu_s(), time.process_time()
    begun_s, times = time.perf_counter(), list[float]()
    while len(times) < 3 or time.perf_counter() - begun_s < seconds:
        sent_s = time.perf_counter()
        await probe.exchange(size)
        times.append(time.perf_counter() - sent_s)
    wall_s = time.perf_counter() - begun_s
    ours_s = time.process_time() - ours_s
    theirs_s = await probe.peer_cpu_s() - theirs_s
    gigabytes = size * len(times) / 1e9
    times.sort()
    return LinkRow(
        plane=plane,
        message_bytes=size,
        mb_per_s=round(gigabytes * 1e3 / wall_s, 2),
        cpu_s_per_gb_sender=round(ours_s / gigabytes, 3),
        cpu_s_per_gb_receiver=round(theirs_s / gigabytes, 3),
        rtt_p50_ms=round(times[len(times) // 2] * 1e3, 3),
        rtt_p99_ms=round(times[int(len(times) * 0.99)] * 1e3, 3),
    )


def _median(parts: Sequence[LinkRow]) -> LinkRow:
    values: dict[str, Any] = asdict(parts[0])
    for name in values:
        if name not in ("plane", "message_bytes"):
            values[name] = statistics.median(getattr(part, name) for part in parts)
    return LinkRow(**values)


# ----------------------------------------------------------------------------------- the other side


@asynccontextmanager
async def _peer(plane: str) -> AsyncIterator[_Probe]:
    """A second process, and a way to it."""
    command = [sys.executable, "-m", "swarmd.net.bench", "--peer", plane]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        with trio.fail_after(60):
            line = b""
            while not line.endswith(b"\n"):
                piece = await process.stdout.receive_some()
                if not piece:
                    raise RuntimeError("the other process ended at its start")
                line += piece
        where = json.loads(line)
        probe = _raw_probe(where) if plane == "raw_tcp" else _transport_probe(plane, where)
        async with probe as found:
            yield found
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _raw_probe(where: dict[str, Any]) -> AsyncIterator[_Probe]:
    async with await trio.open_tcp_stream("127.0.0.1", where["port"]) as stream:
        data = bytes(max(SIZES))

        async def exchange(size: int) -> None:
            await stream.send_all(size.to_bytes(8, "big"))
            await stream.send_all(memoryview(data)[:size])
            if not await stream.receive_some(1):
                raise RuntimeError("the other process ended")

        async def peer_cpu_s() -> float:
            await stream.send_all(bytes(8))
            return float(await stream.receive_some(64))

        yield _Probe(exchange, peer_cpu_s)


@asynccontextmanager
async def _transport_probe(plane: str, where: dict[str, Any]) -> AsyncIterator[_Probe]:
    store = HeapStore()
    transport = _transport(plane, store)
    peer = PeerId(where["peer"])

    async def answer() -> bytes:
        event = await transport.next_event()
        if not isinstance(event, FrameArrived):
            raise RuntimeError(f"the link is gone: {event}")
        if event.payload is not None:
            store.release(event.payload)
        return event.body

    async def exchange(size: int) -> None:
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
        await answer()

    async def peer_cpu_s() -> float:
        transport.send(peer, _CPU)
        return float(await answer())

    async with trio.open_nursery() as nursery:
        await nursery.start(_run, transport)
        transport.dial(peer, where["addresses"])
        event = await transport.next_event()
        if not isinstance(event, LinkOpened):
            raise RuntimeError(f"no link: {event}")
        yield _Probe(exchange, peer_cpu_s)
        await transport.aclose()
        nursery.cancel_scope.cancel()


def _transport(plane: str, store: HeapStore) -> SwarmTransport:
    return SwarmTransport(os.urandom(32), LISTEN, store, bulk_port=0 if plane == "bulk" else None)


async def _run(transport: SwarmTransport, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    await transport.run(task_status=task_status)


async def _be_peer(plane: str) -> None:
    if plane == "raw_tcp":
        await _be_raw_peer()
        return
    store = HeapStore()
    transport = _transport(plane, store)
    async with trio.open_nursery() as nursery:
        await nursery.start(_run, transport)
        where = {"peer": transport.peer_id, "addresses": list(transport.addresses())}
        print(json.dumps(where), flush=True)
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
            transport.send(event.peer, b"", priority=Priority.PIPELINE, payload=store.acquire(0))


async def _be_raw_peer() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        while True:
            head = b""
            while len(head) < 8:
                piece = await stream.receive_some(8 - len(head))
                if not piece:
                    return
                head += piece
            left = int.from_bytes(head, "big")
            if not left:
                await stream.send_all(b"%.6f" % time.process_time())
                continue
            while left:
                left -= len(await stream.receive_some(min(left, 256 << 10)))
            await stream.send_all(b"!")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(json.dumps({"port": listeners[0].socket.getsockname()[1]}), flush=True)
    await trio.serve_listeners(serve, listeners)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m swarmd.net.bench")
    parser.add_argument("seconds", type=float, nargs="?", default=0.5, help="of one run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--plane", action="append", choices=PLANES)
    parser.add_argument("--peer", choices=PLANES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        trio.run(_be_peer, args.peer)
        return
    print(
        f"{'plane':8} {'bytes':>9} {'MB/s':>8} {'s/GB out':>9} {'s/GB in':>9} {'p50 ms':>9} p99 ms"
    )

    def show(row: LinkRow) -> None:
        print(
            f"{row.plane:8} {row.message_bytes:9} {row.mb_per_s:8.1f} "
            f"{row.cpu_s_per_gb_sender:9.2f} {row.cpu_s_per_gb_receiver:9.2f} "
            f"{row.rtt_p50_ms:9.2f} {row.rtt_p99_ms:6.2f}",
            flush=True,
        )

    async def run() -> None:
        await bench_links(
            planes=args.plane or PLANES, runs=args.runs, seconds=args.seconds, on_row=show
        )

    trio.run(run)


if __name__ == "__main__":
    main()
