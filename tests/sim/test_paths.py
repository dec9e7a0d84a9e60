"""A peer that cannot reach the next stage says so, with whom and what would help, and goes on when
it can; replicas that have lost their link dial again."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from swarmd.protocols import effects as fx
from swarmd.protocols.reasons import Reason
from swarmd.sim.run import OK, SimOptions, Simulation
from swarmd.sim.sim_peer import SimPeer
from swarmd.sim.whole_run import machine_of

CUT_S, LOOK_S, HEAL_S = 0.5, 25.0, 26.0


def test_boot_07_without_a_path_to_the_next_stage_the_reason_is_no_dialable_path() -> None:
    simulation = Simulation(
        SimOptions(peers=4, stages=2, rounds=3, seed=3, scenario="calm"), lambda text: None
    )
    cluster, world = simulation.cluster, simulation.world
    apart: dict[str, Any] = {}
    seen: list[Reason] = []

    def others(stage: int) -> list[int]:
        return [p.number for p in cluster.peers if machine_of(p).work.stage == stage]

    def each_way(change: Any) -> None:
        for other in apart["from"]:
            change(apart["peer"], other)
            change(other, apart["peer"])

    def look() -> None:
        seen.append(machine_of(cluster.peers[apart["peer"]]).reasons.current)

    def listen(peer: SimPeer, emit: fx.Emit) -> None:
        if apart or machine_of(peer).work.round != 1 or not others(1) or not others(0):
            return
        apart.update({"peer": others(0)[0], "from": others(1)})
        world.after(CUT_S, partial(each_way, cluster.network.cut))
        world.after(LOOK_S, look)
        world.after(HEAL_S, partial(each_way, cluster.network.heal))

    cluster.on_emit.append(listen)
    simulation.go()
    (found,) = seen
    assert (found.state, found.code, found.stage) == ("waiting", "no_dialable_path", 1)
    assert found.peer in [cluster.peers[number].peer for number in apart["from"]]
    assert "no direct path to" in found.text
    assert "timeout" in found.text, "each address with its cause"
    assert "--announce" in str(found.hint)
    assert simulation.result().exit_code == OK, "it goes on once there is a path"


@pytest.mark.slow
def test_replicas_that_have_lost_their_link_dial_again_and_mix_on() -> None:
    simulation = Simulation(
        SimOptions(peers=4, stages=2, rounds=8, seed=3, scenario="calm"), lambda text: None
    )
    cluster = simulation.cluster
    pair: list[SimPeer] = []
    included: dict[tuple[str, int], list[str]] = {}

    def listen(peer: SimPeer, emit: fx.Emit) -> None:
        if emit.name in ("round_committed", "round_partial", "round_skipped"):
            included[peer.name, emit.fields["round"]] = emit.fields["included"]
        if not pair and emit.name == "round_committed" and emit.fields["round"] == 1:
            stage = machine_of(peer).work.stage
            pair.extend(p for p in cluster.peers if machine_of(p).work.stage == stage)
            cluster.network.break_link(pair[0].number, pair[1].number)

    cluster.on_emit.append(listen)
    simulation.go()
    assert simulation.result().exit_code == OK
    both = sorted(peer.peer for peer in pair)
    assert len(both) == 2
    for peer in pair:
        assert [sorted(included[peer.name, number]) for number in range(4, 8)] == [both] * 4
