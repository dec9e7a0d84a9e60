"""STATE-06 in the simulator: everybody dies at some moment, and comes back in some order."""

from __future__ import annotations

import pytest

from swarmd.protocols import assignment, membership_limits
from swarmd.protocols.audit import audit
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.files import saved_on
from swarmd.sim.network import NetworkProfile
from swarmd.sim.small_run import shape_of
from swarmd.sim.whole_peer import fixed_map, whole_factory
from swarmd.sim.whole_run import machine_of

PEERS, STAGES, ROUNDS = 4, 2, 6


class Swarm:
    def __init__(self, seed: int, *, places: bool = False) -> None:
        """places: the swarm decides who takes which stage."""
        print(f"seed {seed}")
        self.world = World(seed)
        self.rng = self.world.rng_for("test")
        limits = membership_limits.local()
        stages = {f"p{number}": number % STAGES for number in range(PEERS)}
        stage_of = (lambda spec: None) if places else fixed_map(stages)
        self.cluster = Cluster(
            self.world,
            whole_factory(limits, stage_of, PipelineLimits(), assignment.local()),
            shape_of(STAGES, ROUNDS, seed),
            NetworkProfile(delay_s=0.01, jitter=0.1, bandwidth_bytes_per_s=10e6),
            PEERS,
        )
        self.restored: dict[str, list[dict[str, object]]] = {}
        self.cluster.on_emit.append(self._note)

    def _note(self, peer: object, emit: object) -> None:
        if getattr(emit, "name", "") == "state_restored":
            name, fields = peer.name, emit.fields  # type: ignore[attr-defined]
            self.restored.setdefault(name, []).append(fields)

    def start(self, order: list[int]) -> None:
        """One after the other; the first founds, the others know it."""
        for place, number in enumerate(order):
            self.cluster.start(number, () if place == 0 else (order[0],))
            self.run(self.rng.uniform(0.0, 3.0))

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_s + seconds)

    def rounds(self) -> list[int]:
        return [machine_of(peer).work.round for peer in self.cluster.peers if peer.is_running]


@pytest.mark.parametrize("seed", range(4))
def test_a_swarm_that_was_killed_whole_loses_at_most_one_round(seed: int) -> None:
    swarm = Swarm(seed)
    swarm.start(list(range(PEERS)))
    while max(swarm.rounds()) < 3:
        swarm.run(0.5)
    swarm.run(swarm.rng.uniform(0.0, 5.0))
    before = max(swarm.rounds())
    for number in range(PEERS):
        swarm.cluster.crash(number)
    order = list(range(PEERS))
    swarm.rng.shuffle(order)
    swarm.start(order)
    deadline_s = swarm.world.now_s + 600.0
    while not all(machine_of(p).leases.is_complete for p in swarm.cluster.peers if p.is_running):
        assert swarm.world.now_s < deadline_s, swarm.rounds()
        swarm.run(1.0)
    for told in swarm.restored.values():
        assert told[0]["round"] >= before - 1
        assert told[0]["rounds_lost"] <= 1
    assert len(swarm.restored) >= STAGES
    for peer in swarm.cluster.peers:
        assert saved_on(peer.disk), peer.name
        if peer.is_running:
            assert audit(machine_of(peer).leases.ledger, 0).clean


@pytest.mark.parametrize("places", [False, True])
def test_stage_that_lost_all_its_peers_goes_on_when_one_of_them_comes_back(places: bool) -> None:
    """STAG-01: its home holds the state, whether or not somebody else has moved there meanwhile."""
    swarm = Swarm(5, places=places)
    swarm.start(list(range(PEERS)))
    while max(swarm.rounds()) < 3:
        swarm.run(0.5)
    cluster, running = swarm.cluster, swarm.cluster.running()
    gone = [peer.number for peer in running if machine_of(peer).work.stage == 1]
    before = max(swarm.rounds())
    for number in gone:
        cluster.crash(number)
    swarm.run(20.0)
    told = {machine_of(peer).reasons.current.code for peer in cluster.running()}
    assert told <= {"waiting_for_stage", "run_state_lost"}, told
    stayed = [peer.number for peer in cluster.running()]
    cluster.start(gone[0], stayed[:1])
    deadline_s = swarm.world.now_s + 600.0
    while not all(machine_of(peer).leases.is_complete for peer in cluster.running()):
        assert swarm.world.now_s < deadline_s, swarm.rounds()
        swarm.run(1.0)
    (restored,) = swarm.restored[f"p{gone[0]}"]
    assert restored["stage"] == 1
    assert restored["round"] >= before - 1
    for peer in cluster.running():
        assert audit(machine_of(peer).leases.ledger, 0).clean
