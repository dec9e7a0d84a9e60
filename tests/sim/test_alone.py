"""Who is left alone: after a farewell it waits for somebody, else its network may be ill."""

from __future__ import annotations

import pytest

from swarmd.protocols import membership_limits
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.network import NetworkProfile
from swarmd.sim.small_run import shape_of
from swarmd.sim.whole_peer import whole_factory
from swarmd.sim.whole_run import machine_of

LIMITS = membership_limits.local()


@pytest.mark.parametrize("is_polite", [True, False])
def test_only_who_was_left_without_a_word_calls_itself_isolated(is_polite: bool) -> None:
    world = World(3)
    profile = NetworkProfile(delay_s=0.01, jitter=0.1, bandwidth_bytes_per_s=10e6)
    cluster = Cluster(world, whole_factory(LIMITS, lambda spec: 0), shape_of(2, 14, 5), profile, 2)
    cluster.start(0)
    cluster.start(1, (0,))
    stays = machine_of(cluster.peers[0])
    world.run_until(20.0)
    assert stays.was_with_others
    if is_polite:
        cluster.command(1, "leave")
    else:
        cluster.crash(1)
    world.run_until(60.0 + 2 * LIMITS.dead_after_s)
    assert len(cluster.running()) == 1
    reason = stays.reasons.current
    assert (reason.code == "isolated") != is_polite, reason
    if is_polite:
        assert reason.eta_at_s is None, "nobody is coming"
