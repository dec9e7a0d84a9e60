"""The `swarm` fixture for pytest: real peers on loopback, and their logs when a test fails.

    def test_training_goes_on_without_p1(swarm):
        peers = swarm(peers=2)
        peers.wait("training")
        peers.kill("p1")
        peers.wait("round=1", "p0")

An installed swarmd brings it by itself (entry point `swarmd`). Each call of the fixture makes a
swarm (testing.py has its values and methods) that ends with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from swarmd.cli.testing import Swarm

SWARMS = pytest.StashKey[list[Swarm]]()


@pytest.fixture
def swarm(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Callable[..., Swarm]]:
    """Make a swarm of real peers; every stage has one when it returns. Values: testing.py."""
    made: list[Swarm] = []
    request.node.stash[SWARMS] = made

    def make(**values: Any) -> Swarm:
        found = Swarm(tmp_path_factory.mktemp("swarm"), **values)
        made.append(found)
        found.wait_for_coverage()
        return found

    yield make
    for found in made:
        found.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """What the peers said goes below a failed test."""
    outcome = yield
    report = outcome.get_result()
    if report.when != "call" or not report.failed:
        return
    for found in item.stash.get(SWARMS, []):
        for name in found.names:
            report.sections.append((f"swarmd {name} ({found.home(name)})", found.log(name)))
