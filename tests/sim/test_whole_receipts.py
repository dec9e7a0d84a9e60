"""Receipts in simulated runs of whole peers: real faults, and the same proofs for everybody."""

from __future__ import annotations

import pytest

from swarmd.protocols import effects as fx
from swarmd.protocols.receipts import Witnessed, tag_of
from swarmd.sim.run import OK, SimOptions, Simulation
from swarmd.sim.sim_peer import SimPeer
from swarmd.sim.whole_run import machine_of

Proved = dict[int, dict[bytes, Witnessed]]


@pytest.mark.parametrize(("name", "stages"), [("calm", 3), ("partition_heal", 2)])
def test_whoever_ends_its_run_proves_the_same_of_every_peer(name: str, stages: int) -> None:
    """But for the last rounds: their receipts may still be on their way when a peer ends."""
    options = SimOptions(peers=6, stages=stages, rounds=2, seed=11, scenario=name)
    simulation = Simulation(options, lambda text: None)
    ends: dict[str, Proved] = {}
    members: set[bytes] = set()

    def listen(peer: SimPeer, emit: fx.Emit) -> None:
        if emit.name == "peer_ended" and emit.fields["code"] == "run_complete":
            ledger = machine_of(peer).leases.ledger
            kept = range(ledger.base, ledger.shape.rounds - 2)
            ends[peer.name] = {number: ledger.witnessed(number) for number in kept}
            members.add(tag_of(machine_of(peer).peer))

    simulation.cluster.on_emit.append(listen)
    simulation.go()
    assert simulation.result().exit_code == OK
    assert len(ends) == 6
    rounds = set.intersection(*(set(proved) for proved in ends.values()))
    assert rounds
    shown = [{number: proved[number] for number in rounds} for proved in ends.values()]
    assert all(one == shown[0] for one in shown)
    vouched = {tag for proved in shown[0].values() for tag in proved}
    assert vouched <= members
    assert len(vouched) >= 5
