"""`pause` in simulated runs: the device is given back, and nothing that was learned is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from swarmd.protocols import effects as fx
from swarmd.sim.run import OK, SimOptions, Simulation
from swarmd.sim.sim_peer import SimPeer
from swarmd.sim.whole_run import machine_of

PAUSED = 1


def run_with_a_pause(peers: int, command: str, **args: Any) -> tuple[Simulation, dict[str, Any]]:
    """Peer 1 is paused while round 1 is on, and resumed twenty seconds later."""
    simulation = Simulation(
        SimOptions(peers=peers, stages=2, rounds=3, seed=5, scenario="calm"), lambda text: None
    )
    cluster, world = simulation.cluster, simulation.world
    seen: dict[str, Any] = {"told": []}

    def look() -> None:
        machine = machine_of(cluster.peers[PAUSED])
        compute = cluster.peers[PAUSED].compute
        assert compute is not None
        seen["reason"] = machine.reasons.current
        seen["is_loaded"] = compute._is_loaded
        seen["alive"] = machine.membership.roster.present_count

    def listen(peer: SimPeer, emit: fx.Emit) -> None:
        if peer.number != PAUSED:
            return
        seen["told"].append(emit.name)
        if machine_of(peer).work.round == 1 and "stage" not in seen:
            seen["stage"] = machine_of(peer).work.stage
            world.after(0.5, partial(cluster.command, PAUSED, command, **args))
            world.after(19.5, look)
            if command == "rule":
                world.after(20.0, cluster.command, PAUSED, "rule")
            elif "for_s" not in args:
                world.after(20.0, cluster.command, PAUSED, "resume")

    cluster.on_emit.append(listen)
    simulation.go()
    return simulation, seen


@pytest.mark.parametrize("peers", [2, 6])
def test_paused_peer_frees_its_device_and_comes_back(peers: int) -> None:
    """With two peers it is the only one of its stage, and goes on with what it put aside."""
    simulation, seen = run_with_a_pause(peers, "pause")
    assert (seen["reason"].state, seen["reason"].code) == ("paused", "paused")
    assert "the device is free" in seen["reason"].text
    assert not seen["is_loaded"]
    assert seen["alive"] == peers, "it stays a member"
    assert "device_freed" in seen["told"]
    assert simulation.result().exit_code == OK
    assert ("state_restored" in seen["told"]) == (peers == 2)


def test_pause_with_an_end_resumes_by_itself() -> None:
    simulation, seen = run_with_a_pause(2, "pause", for_s=22.0)
    assert seen["reason"].eta_basis == "schedule"
    assert simulation.result().exit_code == OK


@pytest.mark.slow
def test_rule_of_the_user_pauses_with_its_own_code_until_it_no_longer_holds() -> None:
    simulation, seen = run_with_a_pause(6, "rule", code="on_battery", text="on battery")
    assert (seen["reason"].state, seen["reason"].code) == ("paused", "on_battery")
    assert not seen["is_loaded"]
    assert simulation.result().exit_code == OK
