"""How fast links are here: two processes on loopback, one pattern for every row.

Planes take turns within each size, so a machine whose speed drifts treats them alike. Processor
seconds are of the whole process on each side: what a user pays. See bench_planes.py for what is
compared.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import psutil
import trio

from swarmd.errors import LinkBroken
from swarmd.net.bench_planes import REACH, Plane
from swarmd.protocols.limits import CHUNK_BYTES
from swarmd.result_records import LinkRow, LinkTransfer

SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20)
MESSAGES_MIN = 3
"""Of a run, however short it is."""
START_S = 60.0
IN_FLIGHT = 16
"""Chunks of the long transfer that are on their way at once: more than the link's window holds."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBench:
    """What to measure. `seconds` are those of one run."""

    planes: Sequence[str] = tuple(REACH)
    sizes: Sequence[int] = SIZES
    repeats: int = 5
    seconds: float = 0.5
    transfer_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class _FarEnd:
    pid: int
    plane: Plane


async def bench_links(
    bench: LinkBench, on_row: Callable[[LinkRow], None]
) -> tuple[list[LinkRow], LinkTransfer]:
    """A row a plane and size, medians of the runs; then the memory that a long transfer takes."""
    rows = []
    async with AsyncExitStack() as stack:
        planes = {
            name: (await stack.enter_async_context(_far_end(name))).plane for name in bench.planes
        }
        for size in bench.sizes:
            parts: dict[str, list[LinkRow]] = {name: [] for name in planes}
            for plane in planes.values():
                await plane.exchange(size)
            for _ in range(bench.repeats):
                for name, plane in planes.items():
                    parts[name].append(await _run(name, plane, size, bench.seconds))
            for found in parts.values():
                rows.append(_median(found))
                on_row(rows[-1])
    async with _far_end("bulk") as far:
        return rows, await _transfer(far, bench.transfer_bytes)


async def _run(name: str, plane: Plane, size: int, seconds: float) -> LinkRow:
    theirs_s, ours_s = await plane.peer_cpu_s(), time.process_time()
    begun_s, times = time.perf_counter(), list[float]()
    while len(times) < MESSAGES_MIN or time.perf_counter() - begun_s < seconds:
        sent_s = time.perf_counter()
        await plane.exchange(size)
        times.append(time.perf_counter() - sent_s)
    wall_s = time.perf_counter() - begun_s
    ours_s = time.process_time() - ours_s
    theirs_s = await plane.peer_cpu_s() - theirs_s
    gigabytes = size * len(times) / 1e9
    times.sort()
    return LinkRow(
        plane=name,  # type: ignore[arg-type]
        message_bytes=size,
        mb_per_s=gigabytes * 1e3 / wall_s,
        cpu_s_per_gb_sender=ours_s / gigabytes,
        cpu_s_per_gb_receiver=theirs_s / gigabytes,
        rtt_p50_ms=times[len(times) // 2] * 1e3,
        rtt_p99_ms=times[int(len(times) * 0.99)] * 1e3,
    )


def _median(parts: Sequence[LinkRow]) -> LinkRow:
    measured = [
        item.name for item in fields(LinkRow) if item.name not in ("plane", "message_bytes")
    ]
    return replace(
        parts[0],
        **{
            name: round(statistics.median(getattr(part, name) for part in parts), 4)
            for name in measured
        },
    )


async def _transfer(far: _FarEnd, size: int) -> LinkTransfer:
    """Growth counts from before the first message, so it includes what the link's windows take."""
    ends = (psutil.Process(), psutil.Process(far.pid))
    before = [end.memory_info().rss for end in ends]
    most = list(before)
    left = math.ceil(size / CHUNK_BYTES)
    begun_s = time.perf_counter()

    async def send() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await far.plane.exchange(CHUNK_BYTES)

    async def look(*, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            for number, end in enumerate(ends):
                most[number] = max(most[number], end.memory_info().rss)
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as lookers:
        await lookers.start(look)
        async with trio.open_nursery() as senders:
            for _ in range(IN_FLIGHT):
                senders.start_soon(send)
        wall_s = time.perf_counter() - begun_s
        lookers.cancel_scope.cancel()
    return LinkTransfer(
        bytes=math.ceil(size / CHUNK_BYTES) * CHUNK_BYTES,
        mb_per_s=round(size / 1e6 / wall_s, 2),
        rss_growth_bytes_sender=most[0] - before[0],
        rss_growth_bytes_receiver=most[1] - before[1],
    )


@asynccontextmanager
async def _far_end(name: str) -> AsyncIterator[_FarEnd]:
    """A second process that serves the plane, and a way to it."""
    command = [sys.executable, "-m", "swarmd.net.bench_planes", name]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, process_group=0
    )  # Ctrl-C is for us; we end it
    try:
        assert process.stdout is not None
        line = b""
        with trio.move_on_after(START_S) as starting:
            while not line.endswith(b"\n"):
                piece = await process.stdout.receive_some()
                if not piece:
                    raise LinkBroken("lost", "the other process ended at its start")
                line += piece
        if starting.cancelled_caught:
            raise LinkBroken("timeout", f"the other process did not start within {START_S:.0f} s")
        async with REACH[name](json.loads(line)) as plane:
            yield _FarEnd(process.pid, plane)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
