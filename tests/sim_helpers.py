"""A simulated swarm under the test's own hand."""

from __future__ import annotations

from typing import Any

from swarmd.protocols import assignment, membership_limits
from swarmd.protocols import effects as fx
from swarmd.protocols.assignment import AssignmentLimits, stage_map
from swarmd.protocols.membership import Membership
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.roster import Entry, Liveness
from swarmd.sim.checkers import GOSSIP_CHECKERS, Checkers, unsettled
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.gossip_peer import gossip_factory
from swarmd.sim.network import NetworkProfile
from swarmd.sim.sim_peer import Factory, SimPeer
from swarmd.sim.small_run import shape_of


class Swarm:
    """`Swarm(seed=7, peers=5)`: started, settled, with all checkers on. Times are virtual."""

    def __init__(
        self,
        seed: int = 1,
        peers: int = 6,
        stages: int = 2,
        *,
        limits: MembershipLimits | None = None,
        placing: AssignmentLimits | None = None,
        rtt_s: float = 0.04,
        spare: int = 0,
        factory: Factory | None = None,
        start: bool = True,
    ) -> None:
        print(f"seed {seed}")
        self.limits = limits or membership_limits.wan()
        self.world = World(seed)
        profile = NetworkProfile(delay_s=rtt_s / 2, jitter=0.1, bandwidth_bytes_per_s=10e6)
        self.cluster = Cluster(
            self.world,
            factory or gossip_factory(self.limits, placing or assignment.local()),
            shape_of(stages, 3, seed),
            profile,
            peers + spare,
        )
        self.checkers = Checkers(self.cluster, [kind(self.cluster) for kind in GOSSIP_CHECKERS])
        self.emits: list[tuple[float, str, str, dict[str, Any]]] = []
        """(when, who, name, fields)."""
        self.cluster.on_emit.append(self._note)
        if start:
            self.cluster.start(0)
            for number in range(1, peers):
                self.cluster.start(number, (0,))
            self.run(15.0)
            assert unsettled(self.cluster) == []

    def _note(self, peer: SimPeer, emit: fx.Emit) -> None:
        self.emits.append((self.world.now_s, peer.name, emit.name, emit.fields))

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_s + seconds)

    def run_until_settled(self, within_s: float) -> float:
        """Seconds until everybody agrees; fails if that takes longer."""
        begun_s = self.world.now_s
        problems = unsettled(self.cluster)
        while problems:
            assert self.world.now_s - begun_s < within_s, problems
            self.run(0.25)
            problems = unsettled(self.cluster)
        return self.world.now_s - begun_s

    def membership(self, number: int) -> Membership:
        machine = self.cluster.peers[number].machine
        assert machine is not None
        return machine.membership

    def entry(self, observer: int, number: int) -> Entry:
        found = self.membership(observer).roster.get(self.cluster.peers[number].peer)
        assert found is not None
        return found

    def liveness(self, observer: int, number: int) -> Liveness:
        return self.entry(observer, number).liveness

    def told(self, name: str, about: int | None = None) -> list[float]:
        """When such an event was told, about that peer if given."""
        peer = None if about is None else self.cluster.peers[about].peer
        return [
            at_s
            for at_s, _, told, fields in self.emits
            if told == name and (peer is None or fields.get("peer") == peer)
        ]

    def cut(self, inside: set[int]) -> None:
        self._each_pair(inside, self.cluster.network.cut)
        until_s = self.world.now_s + 1e6
        self.cluster.disturbed_until_s = until_s

    def heal(self, inside: set[int]) -> None:
        self._each_pair(inside, self.cluster.network.heal)
        self.cluster.disturbed_until_s = self.world.now_s + 2 * self.limits.dead_after_s

    def _each_pair(self, inside: set[int], act: Any) -> None:
        for a in sorted(inside):
            for b in range(len(self.cluster.peers)):
                if b not in inside:
                    act(a, b)
                    act(b, a)

    def map_sizes(self, observer: int = 0) -> list[int]:
        peer = self.cluster.peers[observer]
        view = self.membership(observer).view(self.cluster.clock_of(peer))
        return [len(peers) for peers in stage_map(view, self.cluster.shape.stages).stages]

    def moves(self) -> list[str]:
        """Who moved to another stage, in order."""
        return [
            who
            for _, who, name, fields in self.emits
            if name == "placement" and fields["why"] in ("fill", "move")
        ]

    @property
    def violations(self) -> list[str]:
        return [str(violation) for violation in self.checkers.violations]
