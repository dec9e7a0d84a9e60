"""What every test gets: one thread for torch, no verdict by the clock, `--slow` for the slow."""

from __future__ import annotations

import os

import hypothesis
import pytest
from idle_clock import IdleClock

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Spinning OpenMP threads on few cores slow everything; set before anybody imports torch."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""An installed program has its byte code. Else every daemon, worker and command that a test starts
would compile swarmd anew: more than a third of what it takes to import a daemon (docs/lab.md)."""

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

pytest.register_assert_rewrite("backend_contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture
def idle_clock() -> IdleClock:
    """For a swarm in the test's own process."""
    return IdleClock()
