"""The real transport keeps the Transport contract, on loopback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence

import pytest
from transport_contract import Pair, TransportContract, loopback_pair


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with loopback_pair(1 << 30) as found:
        yield found


@pytest.fixture
async def small_pair() -> AsyncIterator[Pair]:
    async with loopback_pair(1 << 20) as found:
        yield found


class TestSwarmTransport(TransportContract):
    def dead_address(self, pair: Pair) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"

    def without_id(self, addresses: Sequence[str]) -> list[str]:
        return [address.partition("/p2p/")[0] for address in addresses]
