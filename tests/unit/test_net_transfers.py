"""Large transfers over real sockets: what overtakes them, what cuts them, and which way they go."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from hashlib import blake2b
from itertools import count

import pytest
import trio
from cutting_proxy import cutting_proxy
from free_ports import dead_address
from transport_contract import PATIENT, Pair, running_pair

from swarmd.net.addresses import ip_address
from swarmd.net.heap_store import HeapStore
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.protocols.effects import Priority

IPV4, IPV6 = "127.0.0.1", "::1"
both_families = pytest.mark.parametrize("host", [IPV4, IPV6])


@asynccontextmanager
async def pair_on(host: str, *, bulk_is_dead: bool = False) -> AsyncIterator[Pair]:
    seeds = count()

    def make(store: HeapStore) -> SwarmTransport:
        return SwarmTransport(
            blake2b(b"transfers %d" % next(seeds), digest_size=32).digest(),
            [str(ip_address(host, 0))],
            store,
            announce_bulk=[dead] if dead else (),
            limits=PATIENT,
        )

    with dead_address(host) if bulk_is_dead else nullcontext() as dead:
        async with running_pair(make) as pair:
            await pair.link()
            yield pair


@both_families
async def test_a_probe_and_an_activation_overtake_200_mb(host: str) -> None:
    async with pair_on(host) as pair:
        state = bytes(200_000_000)
        pair.a.send_payload(pair.b, b"state", state, Priority.STATE)
        while pair.b.statistics(pair.a).bytes_by_purpose["state"][1] < 1_000_000:
            await trio.sleep(0.001)
        pair.a.send(pair.b, b"probe")
        pair.a.send_payload(pair.b, b"activation", bytes(1 << 16), Priority.PIPELINE)
        early = set()
        for _ in range(2):
            arrived = await pair.b.arrival()
            early.add(arrived.body)
            if arrived.payload is not None:
                pair.b.store.release(arrived.payload)
        assert early == {b"probe", b"activation"}
        assert pair.b.statistics(pair.a).bytes_by_purpose["state"][1] < len(state)
        assert len(await pair.b.take()) == len(state)
        assert pair.a.statistics(pair.b).bulk_carrier == "tls"


@pytest.mark.parametrize("seed", range(3))
async def test_a_transfer_cut_anywhere_goes_on_where_it_stood(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(3_000_000)
    async with pair_on(IPV4) as pair:
        async with cutting_proxy(pair.b, rng.randrange(20_000, len(data))) as cut:
            pair.a.transport._links[pair.b.peer_id].ways.addresses = (cut.address,)
            pair.a.send_payload(pair.b, b"state", data, Priority.STATE)
            assert blake2b(await pair.b.take()).digest() == blake2b(data).digest()
            assert cut.count == 1
        received = pair.b.statistics(pair.a).bytes_by_purpose["state"][1]
        assert len(data) < received < 1.01 * len(data), f"seed {seed}: bytes came twice"


@both_families
async def test_with_dead_bulk_ports_the_same_transfer_takes_a_stream(host: str) -> None:
    async with pair_on(host, bulk_is_dead=True) as pair:
        data = os.urandom(1_000_000)
        pair.a.send_payload(pair.b, b"state", data, Priority.STATE)
        assert await pair.b.take() == data
        figures = pair.a.statistics(pair.b)
        assert (figures.path, figures.bulk_carrier) == ("direct", "stream")
        assert "refused" in figures.bulk_reason


async def test_a_reader_that_pauses_long_on_a_stream_loses_nothing() -> None:
    """The library ends a stream whose reader pauses for 5 s; ours never pauses, its owner may."""
    async with pair_on(IPV4, bulk_is_dead=True) as pair:
        chunks = [bytes([number]) * (4 << 20) for number in range(10)]
        for chunk in chunks:
            pair.a.send_payload(pair.b, b"state", chunk, Priority.STATE)
        await trio.sleep(6)  # the time is the trap's own; nothing waits for a condition here
        for chunk in chunks:
            assert await pair.b.take() == chunk
        assert pair.a.statistics(pair.b).bulk_carrier == "stream"
