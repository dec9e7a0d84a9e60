"""The real transport keeps the Transport contract, on loopback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from itertools import count

import pytest
from transport_contract import Pair, TransportContract, running_pair

from swarmd.net.swarm_transport import SwarmTransport

LISTEN = ["/ip4/127.0.0.1/tcp/0"]


def loopback_pair(store_bytes: int) -> object:
    seeds = count()
    return running_pair(
        lambda store: SwarmTransport(
            blake2b(b"%d" % next(seeds), digest_size=32).digest(), LISTEN, store
        ),
        store_bytes=store_bytes,
    )


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with loopback_pair(1 << 30) as found:  # type: ignore[attr-defined]
        yield found


@pytest.fixture
async def small_pair() -> AsyncIterator[Pair]:
    async with loopback_pair(1 << 20) as found:  # type: ignore[attr-defined]
        yield found


class TestSwarmTransport(TransportContract):
    def dead_address(self, pair: Pair) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"

    def without_id(self, addresses: Sequence[str]) -> list[str]:
        return [address.partition("/p2p/")[0] for address in addresses]
