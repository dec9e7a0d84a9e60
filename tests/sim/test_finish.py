"""`finish` in a simulated run: the peer goes when the running outer round is in the weights."""

from __future__ import annotations

from swarmd.protocols import effects as fx
from swarmd.sim.run import OK, SimOptions, Simulation
from swarmd.sim.sim_peer import SimPeer
from swarmd.sim.whole_run import machine_of

LEAVES = 1


def test_finish_ends_the_running_round_and_leaves_the_others_to_end_the_run() -> None:
    options = SimOptions(peers=6, stages=2, rounds=3, seed=11, scenario="calm")
    simulation = Simulation(options, lambda text: None)
    cluster = simulation.cluster
    asked: list[int] = []
    ended: dict[str, tuple[str, int]] = {}

    def listen(peer: SimPeer, emit: fx.Emit) -> None:
        machine = machine_of(peer)
        if peer.number == LEAVES and machine.work.round == 1 and not asked:
            asked.append(machine.work.round)
            simulation.world.after(0.5, cluster.command, LEAVES, "finish")
        if emit.name == "peer_ended":
            ended[peer.name] = (emit.fields["code"], machine.work.round)

    cluster.on_emit.append(listen)
    simulation.go()
    assert asked == [1]
    name = cluster.peers[LEAVES].name
    assert ended.pop(name) == ("drained", 2)
    assert {code for code, _ in ended.values()} == {"run_complete"}
    assert simulation.result().exit_code == OK
