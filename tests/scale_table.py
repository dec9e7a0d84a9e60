"""How the coordinator's cost grows with the swarm, measured in the simulator.

    python tests/scale_table.py 64 330 1000

One line a size, for docs/lab.md: a calm swarm's messages and bytes a peer and second; then how long
until a peer's new record is known to all; then how long from a kill until the first and until all
hold it for dead. All times are virtual; nothing else is wrong with the swarm.
"""

from __future__ import annotations

import sys
import time

from swarmd.protocols import assignment, membership_limits
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.gossip_peer import gossip_factory
from swarmd.sim.network import NetworkProfile
from swarmd.sim.small_run import shape_of

STAGES = 7
START_S = 30.0
CALM_S = 20.0
WAIT_S = 60.0
STEP_S = 0.1


class Measured:
    """One swarm of so many peers."""

    def __init__(self, peers: int) -> None:
        self.world = World(7)
        limits = membership_limits.wan()
        self.cluster = Cluster(
            self.world,
            gossip_factory(limits, assignment.local()),
            shape_of(STAGES, 3, 7),
            NetworkProfile(delay_s=0.02, jitter=0.1, bandwidth_bytes_per_s=10e6),
            peers,
        )
        self.deaths_s: list[float] = []
        self.cluster.on_emit.append(
            lambda peer, emit: (
                self.deaths_s.append(self.world.now_s) if emit.name == "peer_dead" else None
            )
        )
        rng = self.world.rng_for("starts")
        self.cluster.start(0)
        for number in range(1, peers):
            entries = rng.sample(range(number), min(3, number))
            at_s = 10.0 * number / peers
            self.world.at(at_s, self.cluster.start, number, entries)

    def calm(self) -> tuple[float, float]:
        """(messages, bytes) a peer and second."""
        network = self.cluster.network
        self.world.run_until(START_S)
        messages, size = network.sent_messages, network.sent_bytes
        self.world.run_until(START_S + CALM_S)
        peer_seconds = CALM_S * len(self.cluster.peers)
        return (
            (network.sent_messages - messages) / peer_seconds,
            (network.sent_bytes - size) / peer_seconds,
        )

    def news_s(self) -> float:
        """Until a changed record is everywhere."""
        teller = self.cluster.peers[1]
        assert teller.machine is not None
        begun_s, now_s = self.world.now_s, self.cluster.clock_of(teller)
        self.cluster.tell(teller.number, teller.machine.membership.update_own(now_s, name="new"))
        while not all(self._knows(number) for number in range(len(self.cluster.peers))):
            assert self.world.now_s - begun_s < WAIT_S, "it never reached everybody"
            self.world.run_until(self.world.now_s + STEP_S)
        return self.world.now_s - begun_s

    def _knows(self, number: int) -> bool:
        machine = self.cluster.peers[number].machine
        assert machine is not None
        entry = machine.membership.roster.get(self.cluster.peers[1].peer)
        return entry is not None and entry.record.name == "new"

    def death_s(self) -> tuple[float, float]:
        """From a kill until (the first, everybody) holds it for dead."""
        assert not self.deaths_s, "somebody was held for dead that was not"
        begun_s = self.world.now_s
        self.cluster.crash(2, silently=True)
        while len(self.deaths_s) < len(self.cluster.peers) - 1:
            assert self.world.now_s - begun_s < WAIT_S, "some never noticed"
            self.world.run_until(self.world.now_s + STEP_S)
        return self.deaths_s[0] - begun_s, self.deaths_s[-1] - begun_s


def main(sizes: list[int]) -> None:
    print("| peers | messages/s | bytes/s | news to all, s | dead for one, s | dead for all, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for peers in sizes:
        begun_s = time.process_time()
        swarm = Measured(peers)
        messages, size = swarm.calm()
        news_s = swarm.news_s()
        first_s, all_s = swarm.death_s()
        cells = [
            f"{messages:.1f}",
            f"{size:.0f}",
            f"{news_s:.1f}",
            f"{first_s:.1f}",
            f"{all_s:.1f}",
        ]
        print(f"| {peers} | {' | '.join(cells)} |", flush=True)
        print(f"{peers}: {time.process_time() - begun_s:.0f} s of processor time", file=sys.stderr)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
