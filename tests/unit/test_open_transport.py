"""A peer's own settings reach its links: shape, caps and announced addresses, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b

import pytest
import trio
from free_ports import free_ports
from tcp_proxy import tcp_proxy
from transport_contract import Pair, running_pair

from swarmd.net.heap_store import HeapStore
from swarmd.net.shaping import BURST_S
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.node.open_transport import open_transport
from swarmd.peer_config import PeerConfig
from swarmd.protocols.effects import Priority
from swarmd.settings import HostPort, parse_host_port
from swarmd.units import parse_rate, parse_shape

BUSY = 0.6
"""Whoever gets no processor sends less; the lower bounds allow for it."""
LOOPBACK = parse_host_port("127.0.0.1:0")


@asynccontextmanager
async def peers_with(ours: PeerConfig, theirs: PeerConfig) -> AsyncIterator[Pair]:
    """Two linked transports, opened as the daemon opens its own."""
    configs = iter((ours, theirs))

    def make(store: HeapStore) -> SwarmTransport:
        config = next(configs)
        seed = blake2b(config.name.encode() if config.name else b"", digest_size=32).digest()
        return open_transport(config, seed, store)

    async with running_pair(make) as pair:
        await pair.link()
        yield pair


async def goodput_bytes_per_s(pair: Pair, sizes: list[int]) -> float:
    """Of messages after the first, which brings the bulk connection and empties the buckets."""
    for size in sizes:
        pair.a.send_payload(pair.b, b"t", bytes(size), Priority.MIX)
    await pair.b.take()
    begun_s = trio.current_time()
    for _ in sizes[1:]:
        await pair.b.take()
    return sum(sizes[1:]) / (trio.current_time() - begun_s)


async def test_a_shape_of_the_settings_is_met_within_15_percent() -> None:
    shape = parse_shape("8mbit,60ms")
    ours = PeerConfig(name="a", listen=LOOPBACK, shape=shape)
    theirs = PeerConfig(name="b", listen=LOOPBACK, shape=shape)
    async with peers_with(ours, theirs) as pair:
        found = await goodput_bytes_per_s(pair, [300_000, 600_000, 600_000])
        assert BUSY * 1e6 < found < 1.15e6
        with trio.fail_after(10):
            while pair.a.statistics(pair.b).rtt_s is None:
                await trio.sleep(0.05)
        rtt_s = pair.a.statistics(pair.b).rtt_s
        assert rtt_s is not None
        assert rtt_s >= 0.06


@pytest.mark.parametrize("side", ["up", "down"])
async def test_a_limit_of_the_settings_is_met_within_10_percent(side: str) -> None:
    rate = parse_rate("8mbit")
    ours = PeerConfig(name="a", listen=LOOPBACK, limit_up=rate if side == "up" else None)
    theirs = PeerConfig(name="b", listen=LOOPBACK, limit_down=rate if side == "down" else None)
    async with peers_with(ours, theirs) as pair:
        sizes = [300_000, 800_000, 800_000, 800_000]
        took_s = sum(sizes[1:]) / await goodput_bytes_per_s(pair, sizes)
        (cap,) = (pair.a if side == "up" else pair.b).transport.caps()
        assert (cap.way, cap.bytes_per_s) == (side, rate)
        assert cap.share > 0.03, "it is known that the cap bites"
        # Whoever wakes late on a busy machine finds the bucket full once.
        assert BUSY * rate * took_s < sum(sizes[1:]) < (1.1 * took_s + BURST_S) * rate


async def test_without_settings_links_are_as_fast_as_they_are() -> None:
    ours, theirs = PeerConfig(name="a", listen=LOOPBACK), PeerConfig(name="b", listen=LOOPBACK)
    async with peers_with(ours, theirs) as pair:
        assert await goodput_bytes_per_s(pair, [300_000, 3_000_000, 3_000_000]) > 3e6


@pytest.mark.parametrize(("count", "carrier"), [(2, "tls"), (1, "stream")])
async def test_announced_addresses_stand_for_both_ports_and_one_that_is_forwarded_will_do(
    count: int, carrier: str
) -> None:
    """Behind a router only what it forwards can be reached. Without the bulk port: slower.

    The other side cannot be reached at all: one direction would be enough.
    """
    inside, outside, nowhere = free_ports(3)
    ours = PeerConfig(name="a", listen=LOOPBACK, announce=(f"/ip4/127.0.0.1/tcp/{nowhere}",))
    announce = (f"/ip4/127.0.0.1/tcp/{outside}",)
    theirs = PeerConfig(name="b", listen=HostPort("127.0.0.1", inside), announce=announce)
    async with AsyncExitStack() as router:
        for place in range(count):
            await router.enter_async_context(
                tcp_proxy("127.0.0.1", inside + place, port=outside + place)
            )
        async with peers_with(ours, theirs) as pair:
            (told,) = pair.b.transport.addresses()
            assert told.startswith(announce[0])
            assert pair.b.transport.bulk_addresses() == [f"/ip4/127.0.0.1/tcp/{outside + 1}"]
            pair.a.send_payload(pair.b, b"t", bytes(100_000), Priority.MIX)
            assert len(await pair.b.take()) == 100_000
            assert pair.a.statistics(pair.b).bulk_carrier == carrier


def test_a_bulk_port_that_is_named_is_announced_under_its_own_number() -> None:
    config = PeerConfig(bulk_port=9000, announce=("/ip4/203.0.113.7/tcp/4710", "/dns/a.org/tcp/1"))
    assert config.announced_bulk == ("/ip4/203.0.113.7/tcp/9000", "/dns/a.org/tcp/9000")
