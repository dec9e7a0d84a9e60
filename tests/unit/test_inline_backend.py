"""The inline backend keeps the contract of every ComputeBackend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backend_contract import BackendContract, MakeBackend
from backend_toys import TOY, toy_config

from swarmd.buffers import SlotPool
from swarmd.compute.inline_backend import InlineBackend
from swarmd.compute_api import WorkerConfig


@pytest.fixture
def make_backend() -> Iterator[MakeBackend]:
    pool = SlotPool([(1 << 14, 8)])

    def make(config: WorkerConfig | None = None) -> InlineBackend:
        return InlineBackend(config or toy_config(), pool, factory=TOY)

    yield make
    pool.close()


class TestInlineBackend(BackendContract):
    pass
