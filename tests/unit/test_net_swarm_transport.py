"""The real transport keeps the Transport contract, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager

import pytest
from free_ports import dead_address
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
    def dead_address(self) -> AbstractContextManager[str]:
        return dead_address()

    def without_id(self, addresses: Sequence[str]) -> list[str]:
        return [address.partition("/p2p/")[0] for address in addresses]
