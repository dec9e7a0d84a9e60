"""Faults of the network between links that are the real code, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from transport_contract import Side, pattern

from swarmd.net.heap_store import HeapStore
from swarmd.net.link import LinkLimits
from swarmd.net.memory import MemoryNetwork
from swarmd.net.transport import DialEnded, LinkEnded, LinkOpened
from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId

pytestmark = pytest.mark.usefixtures("autojump_clock")
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SILENCE_S = LinkLimits().silence_s


class Swarm:
    """Some peers on one network."""

    def __init__(self, network: MemoryNetwork, nursery: trio.Nursery) -> None:
        self.network = network
        self._nursery = nursery
        self.sides: dict[PeerId, Side] = {}

    async def start(self, name: PeerId) -> Side:
        store = HeapStore()
        side = Side(self.network.transport(name, store), store)

        async def run(task_status: object = trio.TASK_STATUS_IGNORED) -> None:
            await side.transport.run(task_status=task_status)

        await self._nursery.start(run)
        self.sides[name] = side
        return side

    async def link(self, a: Side, b: Side) -> None:
        a.transport.dial(b.peer_id, b.transport.addresses())
        assert await a.next() == LinkOpened(b.peer_id)
        assert await b.next() == LinkOpened(a.peer_id)


@asynccontextmanager
async def swarm(**network: object) -> AsyncIterator[Swarm]:
    async with trio.open_nursery() as nursery:
        found = Swarm(MemoryNetwork(**network), nursery)  # type: ignore[arg-type]
        yield found
        for side in found.sides.values():
            await side.transport.aclose()
        nursery.cancel_scope.cancel()
    assert all(side.store.held == 0 for side in found.sides.values()), "slots leaked"


async def test_messages_take_the_paths_latency_and_rate(autojump_clock: object) -> None:
    async with swarm(latency_s=0.05, bandwidth_bytes_per_s=1e6) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        begun_s = trio.current_time()
        a.send(b, b"x")
        await b.arrival()
        assert trio.current_time() - begun_s == pytest.approx(0.05, abs=0.001)
        a.send_payload(b, b"t", bytes(2_000_000), Priority.MIX)
        await b.take()
        begun_s = trio.current_time()
        a.send_payload(b, b"t", bytes(2_000_000), Priority.MIX)
        await b.take()
        assert trio.current_time() - begun_s == pytest.approx(2.05, rel=0.02)
        await trio.sleep(0.2)
        assert a.statistics(b).up_bytes_per_s == pytest.approx(1e6, rel=0.1)
        assert b.statistics(a).down_bytes_per_s == pytest.approx(1e6, rel=0.1)
        assert a.statistics(b).rtt_s == pytest.approx(0.1, rel=0.1)


async def test_silence_ends_a_link_as_stalled_and_within_its_deadline(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        await trio.sleep(5)
        found.network.cut(A, B)
        begun_s = trio.current_time()
        assert await a.next() == LinkEnded(B, "stalled")
        assert trio.current_time() - begun_s <= SILENCE_S + 2
        assert await b.next() == LinkEnded(A, "stalled")
        found.network.heal(A, B)
        await found.link(a, b)


async def test_a_short_silence_costs_time_only(autojump_clock: object) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        told = a.send_payload(b, b"t", pattern(200_000)[:200_000], Priority.MIX)
        found.network.cut(A, B)
        await trio.sleep(SILENCE_S / 2)
        found.network.heal(A, B)
        assert await b.take() == pattern(200_000)[:200_000]
        await trio.sleep(0.1)
        assert told.said == [True]


async def test_one_lost_direction_ends_the_link_on_both_sides(autojump_clock: object) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        found.network.cut(A, B, both_ways=False)
        assert await b.next() == LinkEnded(A, "stalled")
        # B closed; its end comes through, for only A to B is cut.
        assert await a.next() == LinkEnded(B, "lost")


async def test_a_frozen_peer_is_stalled_and_a_killed_one_lost(autojump_clock: object) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b, c = await found.start(A), await found.start(B), await found.start(C)
        await found.link(a, b)
        await found.link(a, c)
        begun_s = trio.current_time()
        found.network.stop(C)
        assert await a.next() == LinkEnded(C, "lost")
        assert trio.current_time() - begun_s < 0.1
        found.network.freeze(B)
        assert await a.next() == LinkEnded(B, "stalled")
        found.network.thaw(B)
        await b.next()
        await c.next()


async def test_a_dial_into_silence_is_a_timeout_and_an_empty_place_a_refusal(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        found.network.cut(A, B)
        a.transport.dial(B, b.transport.addresses())
        assert await a.next() == DialEnded(B, {"/memory/b": "timeout"})
        a.transport.dial(C, ["/memory/c"])
        assert await a.next() == DialEnded(C, {"/memory/c": "refused"})
        a.transport.dial(C, ["/memory/b", "/memory/c"])
        found.network.heal(A, B)
        ended = await a.next()
        assert ended == DialEnded(C, {"/memory/b": "wrong_peer_id", "/memory/c": "refused"})


async def test_a_good_address_behind_two_silent_ones_costs_a_second(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.start(C)
        found.network.cut(A, C)
        begun_s = trio.current_time()
        a.transport.dial(B, ["/memory/c", "/other/c", "/memory/b"])
        assert await a.next() == LinkOpened(B)
        assert trio.current_time() - begun_s < 1.5
        await b.next()


async def test_a_restarted_peer_is_one_link_again(autojump_clock: object) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        found.network.stop(B)
        assert await a.next() == LinkEnded(B, "lost")
        again = await found.start(B)
        await found.link(a, again)
        a.send_payload(again, b"t", b"data", Priority.PIPELINE)
        assert await again.take() == b"data"
        assert await b.next() == LinkEnded(A, "lost")


async def test_a_peer_that_comes_again_replaces_its_old_link(autojump_clock: object) -> None:
    """It was restarted while we heard nothing: its new dial wins over the link we believe in."""
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        await trio.sleep(3)
        found.network.cut(A, B)
        found.network.stop(B)
        found.network.heal(A, B)
        again = await found.start(B)
        again.transport.dial(A, a.transport.addresses())
        assert await a.next() == LinkEnded(B, "lost")
        assert await a.next() == LinkOpened(B)
        assert await again.next() == LinkOpened(A)
        await b.next()


async def test_bulk_goes_on_where_it_stood_when_its_connection_breaks(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01, bandwidth_bytes_per_s=1e6) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        data = pattern(3_000_000)[:3_000_000]
        told = a.send_payload(b, b"t", data, Priority.STATE)
        begun_s = trio.current_time()
        await trio.sleep(2.0)
        found.network.break_bulk(A, B)
        assert await b.take() == data
        # From the beginning it would be 2 s more.
        assert trio.current_time() - begun_s < 4.0
        await trio.sleep(1)
        assert told.said == [True]
        assert a.statistics(b).wire_bytes_sent < 1.2 * len(data)


async def test_without_a_bulk_port_tensors_take_the_stream_and_say_why(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        found.network.block_bulk(A, B)
        await found.link(a, b)
        a.send_payload(b, b"t", b"data", Priority.PIPELINE)
        assert await b.take() == b"data"
        figures = a.statistics(b)
        assert figures.bulk_carrier == "stream"
        assert "refused" in figures.bulk_reason


async def test_the_fallback_is_left_when_the_bulk_port_answers_again(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        found.network.block_bulk(A, B)
        await found.link(a, b)
        a.send_payload(b, b"1", b"data", Priority.PIPELINE)
        await b.take()
        found.network.unblock_bulk(A, B)
        await trio.sleep(LinkLimits().bulk_retry_s + 5)
        a.send_payload(b, b"2", b"more", Priority.PIPELINE)
        assert await b.take() == b"more"
        assert a.statistics(b).bulk_carrier == "memory"


async def test_the_side_that_can_be_dialled_is_dialled(autojump_clock: object) -> None:
    """A cannot reach B's bulk port, B reaches A's: B opens the connection and A sends on it."""
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        found.network.block_bulk(A, B, both_ways=False)
        await found.link(a, b)
        a.send_payload(b, b"t", b"data", Priority.PIPELINE)
        assert await b.take() == b"data"
        assert a.statistics(b).bulk_carrier == "memory"


async def test_an_idle_bulk_connection_is_closed_and_comes_back(autojump_clock: object) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        a.send_payload(b, b"t", b"1", Priority.PIPELINE)
        await b.take()
        await trio.sleep(2 * LinkLimits().bulk_idle_s)
        assert a.statistics(b).bulk_carrier == "none"
        a.send_payload(b, b"t", b"2", Priority.PIPELINE)
        assert await b.take() == b"2"


async def test_a_full_peer_says_so_and_the_dial_counts_as_refused(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.01, limits=LinkLimits(links_max=1)) as found:
        a, b, c = await found.start(A), await found.start(B), await found.start(C)
        await found.link(a, b)
        c.transport.dial(A, a.transport.addresses())
        assert await c.next() == DialEnded(A, {"/memory/a": "refused"})
        assert a.transport.counters()["full"] == 1


async def test_probes_do_not_wait_behind_tensors(autojump_clock: object) -> None:
    """The control plane has its own connection: its round trip stays that of the path."""
    async with swarm(latency_s=0.01, bandwidth_bytes_per_s=1e6) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        a.send_payload(b, b"t", bytes(8_000_000), Priority.STATE)
        await trio.sleep(5)
        assert a.statistics(b).rtt_s == pytest.approx(0.02, abs=0.005)
        await b.take()


async def test_a_flood_of_small_messages_is_slowed_to_a_bounded_rate(
    autojump_clock: object,
) -> None:
    async with swarm(latency_s=0.001) as found:
        a, b = await found.start(A), await found.start(B)
        await found.link(a, b)
        for number in range(12_000):
            a.send(b, b"gossip %05d" % number)
        got = 0
        with trio.move_on_after(10):
            while True:
                await b.arrival()
                got += 1
        assert got < 2000 + 10 * 200 + 1000
        assert b.transport.counters()["control_flood"] >= 1


async def test_figures_of_a_peer_count_on_over_its_links(autojump_clock: object) -> None:
    async with swarm(latency_s=0.01) as found:
        a, b = await found.start(A), await found.start(B)
        for _ in range(2):
            await found.link(a, b)
            a.send_payload(b, b"t", bytes(100_000), Priority.PIPELINE)
            await b.take()
            await trio.sleep(0.5)
            found.network.break_links(A, B)
            await a.next()
            await b.next()
        figures = a.statistics(b)
        assert figures.path == "none"
        assert figures.bytes_by_purpose["pipeline"][0] > 200_000
        assert a.transport.totals()[0] >= figures.wire_bytes_sent > 200_000
        await trio.sleep(LinkLimits().remember_s + 1)
        assert a.transport.statistics() == []
        sent = a.transport.sent_by_purpose()
        assert sent["pipeline"] == figures.bytes_by_purpose["pipeline"][0]
