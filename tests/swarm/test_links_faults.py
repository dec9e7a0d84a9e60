"""Links between real processes: one is killed, frozen, restarted, or lied to (MEMB-04, WIRE-01,
WIRE-04)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hostile_peers import connect, push_unread, say_on_control, stock_host, strangers
from transport_contract import PATIENT, Side, pattern

from swarmd.net import stream_carrier, tls_bulk
from swarmd.net.addresses import parse_address
from swarmd.net.heap_store import HeapStore
from swarmd.net.link import LinkLimits
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import FrameArrived, LinkEnded, LinkOpened
from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId

pytestmark = pytest.mark.process
CHILD = Path(__file__).parent.parent / "link_child.py"
SILENCE_S = 2.0


class Child:
    """A peer in a process of its own."""

    def __init__(self, process: trio.Process, where: dict[str, Any]) -> None:
        self.process = process
        self.peer = PeerId(where["peer"])
        self.addresses: list[str] = where["addresses"]
        self.bulk: list[str] = where["bulk"]

    @property
    def port(self) -> int:
        return parse_address(self.addresses[0]).port

    def signal(self, number: int) -> float:
        """Returns the time at which it was sent."""
        os.kill(self.process.pid, number)
        return trio.current_time()


@asynccontextmanager
async def child(**options: object) -> AsyncIterator[Child]:
    """Ends with the block, whatever happened to it."""
    words = [f"{name}={value}" for name, value in options.items()]
    process = await trio.lowlevel.open_process(
        [sys.executable, str(CHILD), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        assert process.stdout is not None
        line = b""
        with trio.fail_after(60):
            while not line.endswith(b"\n"):
                piece = await process.stdout.receive_some()
                assert piece, "the child ended at its start"
                line += piece
        yield Child(process, json.loads(line))
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@asynccontextmanager
async def us(silence_s: float = SILENCE_S) -> AsyncIterator[Side]:
    store = HeapStore()
    limits = replace(PATIENT, silence_s=silence_s)
    transport = SwarmTransport(os.urandom(32), ["/ip4/127.0.0.1/tcp/0"], store, limits=limits)

    async def run(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await transport.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        yield Side(transport, store)
        with trio.fail_after(20):
            await transport.aclose()
        nursery.cancel_scope.cancel()
    assert store.held == 0


async def link(side: Side, to: Child) -> None:
    side.transport.dial(to.peer, to.addresses)
    assert await side.next() == LinkOpened(to.peer)


async def echo(side: Side, to: Child, data: bytes) -> None:
    """A payload there and back."""
    ref = side.store.put(data)
    side.transport.send(
        to.peer, b"e", payload=ref, priority=Priority.MIX, on_sent=lambda _: side.store.release(ref)
    )
    assert await side.take() == data


async def figures(side: Side, of: Child) -> dict[str, Any]:
    side.transport.send(of.peer, b"figures")
    found: dict[str, Any] = json.loads((await side.arrival()).body)
    return found


async def test_a_killed_peer_is_lost_at_once_and_not_by_its_silence() -> None:
    """Within a second on a machine that has one (docs/lab.md)."""
    async with child() as other, us() as side:
        await link(side, other)
        killed_s = other.signal(signal.SIGKILL)
        assert await side.next() == LinkEnded(other.peer, "lost")
        assert trio.current_time() - killed_s < LinkLimits().silence_s / 2


async def test_a_peer_that_leaves_is_closed_and_not_lost() -> None:
    async with child() as other, us() as side:
        await link(side, other)
        side.transport.send(other.peer, b"leave")
        assert await side.next() == LinkEnded(other.peer, "closed")


async def test_a_frozen_peer_is_stalled_within_its_deadline_and_others_are_not_touched() -> None:
    async with child() as frozen, child() as other, us() as side:
        await link(side, frozen)
        await link(side, other)
        frozen_s = frozen.signal(signal.SIGSTOP)
        for _ in range(10):
            await echo(side, other, b"not touched")
        assert await side.next() == LinkEnded(frozen.peer, "stalled")
        assert trio.current_time() - frozen_s < SILENCE_S + 2.5
        await echo(side, other, b"not touched")


async def test_a_short_freeze_costs_time_only() -> None:
    async with child() as other, us() as side:
        await link(side, other)
        await echo(side, other, b"before")
        other.signal(signal.SIGSTOP)
        ref = side.store.put(b"meanwhile")
        side.transport.send(
            other.peer, b"e", payload=ref, on_sent=lambda _: side.store.release(ref)
        )
        await trio.sleep(SILENCE_S / 2)
        other.signal(signal.SIGCONT)
        assert await side.take() == b"meanwhile"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "freeze"])
async def test_a_transfer_to_a_peer_that_goes_is_never_reported_as_complete(number: int) -> None:
    async with child() as other, us() as side:
        await link(side, other)
        await echo(side, other, b"warm")
        said: list[bool] = []

        def done(ref: Any, sent: bool) -> None:
            said.append(sent)
            side.store.release(ref)

        for _ in range(2):
            ref = side.store.put(bytes(30_000_000))
            side.transport.send(
                other.peer,
                b"big",
                payload=ref,
                priority=Priority.STATE,
                on_sent=lambda sent, ref=ref: done(ref, sent),
            )
        with trio.fail_after(30):
            while side.statistics_of(other.peer).wire_bytes_sent < 8_000_000:
                await trio.sleep(0.002)
        begun_s = other.signal(number)
        ended = await side.next(SILENCE_S + 10)
        while isinstance(ended, FrameArrived):
            if ended.payload is not None:
                side.store.release(ended.payload)
            ended = await side.next(SILENCE_S + 10)
        assert ended == LinkEnded(other.peer, "lost" if number == signal.SIGKILL else "stalled")
        assert trio.current_time() - begun_s < SILENCE_S + 3
        assert False in said
        assert side.store.held == 0


async def test_a_frozen_peer_with_a_full_pipe_is_dropped_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the stop afterwards does not wait for anything that hangs in it."""
    for module in (tls_bulk, stream_carrier):
        monkeypatch.setattr(module, "STALL_S", 60.0)
    async with child() as other:
        async with us(silence_s=60.0) as side:
            await link(side, other)
            await echo(side, other, b"warm")
            other.signal(signal.SIGSTOP)
            for priority in Priority:
                ref = side.store.put(bytes(30_000_000))
                side.transport.send(
                    other.peer,
                    b"x",
                    payload=ref,
                    priority=priority,
                    on_sent=lambda _, ref=ref: side.store.release(ref),
                )
                for _ in range(3):
                    side.transport.send(other.peer, bytes(1 << 20), priority=priority)
            await trio.sleep(1.0)
            dropped_s = trio.current_time()
            side.transport.drop(other.peer, "frozen")
            assert await side.next() == LinkEnded(other.peer, "dropped")
            assert trio.current_time() - dropped_s < 10.0
        assert trio.current_time() - dropped_s < 20.0, "what hangs would hang for a minute"


async def test_a_transport_stops_in_time_while_a_frozen_peer_hangs_in_it() -> None:
    async with child() as other:
        async with us(silence_s=60.0) as side:
            await link(side, other)
            other.signal(signal.SIGSTOP)
            for _ in range(3):
                side.transport.send(other.peer, bytes(1 << 20))
            await trio.sleep(0.5)
            begun_s = trio.current_time()
        assert trio.current_time() - begun_s < 20.0, "what hangs would hang for a minute"


async def test_a_restarted_peer_is_linked_again_at_once_on_the_same_port() -> None:
    seed = os.urandom(32).hex()
    async with us() as side:
        async with child(seed=seed) as other:
            await link(side, other)
            port = other.port
            other.signal(signal.SIGKILL)
            assert await side.next() == LinkEnded(other.peer, "lost")
        async with child(seed=seed, port=port) as again:
            assert again.peer == other.peer
            assert again.port == port
            begun_s = trio.current_time()
            await link(side, again)
            assert trio.current_time() - begun_s < LinkLimits().dial_each_s, "no wait was in it"
            await echo(side, again, pattern(300_000)[:300_000])


async def test_a_hostile_peer_cannot_make_us_grow_and_others_are_served() -> None:
    """300 MiB that nobody reads, floods of streams and strangers: less than 64 MiB in all."""
    async with (
        child(silence_s=60.0) as victim,
        us(silence_s=60.0) as side,
        trio.open_nursery() as nursery,
    ):
        await link(side, victim)
        await echo(side, victim, bytes(1 << 20))
        before = await figures(side, victim)
        async with stock_host() as host:
            await push_unread(host, victim.addresses[0], 300)
        async with stock_host() as host:
            await say_on_control(host, victim.addresses[0], os.urandom(100_000))
        await nursery.start(strangers, victim.port, 300)
        await nursery.start(strangers, parse_address(victim.bulk[0]).port, 300)
        with trio.fail_after(30.0):
            async with stock_host() as host:
                await connect(host, victim.addresses[0])
        await echo(side, victim, b"still served")
        after = await figures(side, victim)
        nursery.cancel_scope.cancel()
        assert after["resident_bytes"] - before["resident_bytes"] < 64 << 20
        assert after["files"] - before["files"] < 200
        assert after["counters"]["half_open_evicted"] > 100
        assert after["counters"]["malformed"] >= 1


async def churn(cycles: int, warm_up: int) -> None:
    """Connect, exchange, leave, with a new identity each time; then look at what is left."""
    async with child(silence_s=60.0) as other:
        async with us(silence_s=60.0) as watcher:
            await link(watcher, other)
            before: dict[str, Any] = {}
            for cycle in range(cycles):
                async with us() as side:
                    await link(side, other)
                    await echo(side, other, b"x" * 1000)
                    if cycle % 2:
                        side.transport.drop(other.peer, "a test wants it")
                        assert await side.next() == LinkEnded(other.peer, "dropped")
                if cycle + 1 == warm_up:
                    await trio.sleep(1.0)
                    before = await figures(watcher, other)
            await trio.sleep(1.0)
            after = await figures(watcher, other)
            assert after["files"] == before["files"]
            assert after["tasks"] == before["tasks"]
            grown = after["resident_bytes"] - before["resident_bytes"]
            assert grown < 8 << 20, f"{grown >> 10} KiB after {cycles - warm_up} cycles"


async def test_thirty_connects_and_disconnects_leave_nothing() -> None:
    await churn(cycles=30, warm_up=10)


@pytest.mark.slow
async def test_five_hundred_connects_and_disconnects_leave_nothing() -> None:
    await churn(cycles=500, warm_up=100)
