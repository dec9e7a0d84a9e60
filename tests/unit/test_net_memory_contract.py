"""The in-memory twin keeps the Transport contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count

import pytest
from transport_contract import Pair, TransportContract, running_pair

from swarmd.net.memory import MemoryNetwork
from swarmd.protocols.ids import PeerId


def network_pair(store_bytes: int) -> object:
    network, names = MemoryNetwork(latency_s=0.01, bandwidth_bytes_per_s=100e6), count()
    return running_pair(
        lambda store: network.transport(PeerId(f"peer{next(names)}"), store),
        store_bytes=store_bytes,
    )


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with network_pair(1 << 30) as found:  # type: ignore[attr-defined]
        yield found


@pytest.fixture
async def small_pair() -> AsyncIterator[Pair]:
    async with network_pair(1 << 20) as found:  # type: ignore[attr-defined]
        yield found


class TestMemory(TransportContract):
    def dead_address(self) -> AbstractContextManager[str]:
        return nullcontext("/memory/nobody")

    def without_id(self, addresses: object) -> list[str]:
        return list(addresses)  # type: ignore[call-overload]
