"""How the coordinator's cost grows with the swarm, measured in the simulator.

    python tests/scale_table.py 64 330 1000 4000

One line a size, for docs/lab.md: a calm swarm's messages and bytes a peer and second; then how long
until a peer's new record is known to all; then how long from a kill whose connections stay open
until the first and until all hold it for dead. All times are virtual; nothing else is wrong.

The peers are membership alone, the very machines of a real peer: they hold a stage from the start,
tell how far they are, and get to a new round every so often. They begin as a swarm that has met:
all know the first record of all, and have links to make. For everybody knows everybody, so joining
one by one is work that grows with the square of the size, and says nothing of a calm swarm.
Memory grows so as well: 4,000 peers take some 6 GB.
"""

from __future__ import annotations

import gc
import math
import resource
import sys
import time

from swarmd.protocols import effects as fx
from swarmd.protocols import membership_limits
from swarmd.protocols.membership import Membership
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.roster import Entry
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.network import NetworkProfile
from swarmd.sim.sim_peer import PeerSpec
from swarmd.sim.small_run import shape_of

STAGES = 7
ROUND_S = 60.0
PROGRESS = "talker/progress"
PROGRESS_S = 2.0
START_S = 10.0
"""For links, and for rosters to be compared over each."""
CALM_S = 30.0
"""Each peer compares rosters with one other in about that time."""
WAIT_S = 60.0
STEP_S = 0.1


class Talker:
    """Membership, and something to tell."""

    def __init__(self, spec: PeerSpec, limits: MembershipLimits, peers: int) -> None:
        self._spec = spec
        self._limits = limits
        self._peers = peers
        self.membership = spec.membership_of(
            limits, phase="active", stage=int(spec.name[1:]) % STAGES, tokens_per_s=1_000.0
        )

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        if isinstance(event, fx.TimerFired) and event.name == PROGRESS:
            worked_s = now_s - self._spec.now_s
            told = {"step": int(worked_s), "round": int(worked_s / ROUND_S)}
            effects = self.membership.update_own(now_s, **told)
            return [fx.SetTimer(PROGRESS, PROGRESS_S), *effects]
        effects = self.membership.handle(event, now_s)
        if isinstance(event, fx.Started):
            effects.append(fx.SetTimer(PROGRESS, self._first_progress_s()))
        return effects

    def _first_progress_s(self) -> float:
        """Anywhere in the time in which all tell theirs once, as in a swarm that is long there."""
        return self._spec.rng.uniform(
            0.0, max(PROGRESS_S, self._peers / self._limits.progress_per_s)
        )


class Measured:
    """One swarm of so many peers."""

    def __init__(self, peers: int) -> None:
        self.world = World(7)
        limits = membership_limits.wan()
        self.cluster = Cluster(
            self.world,
            lambda spec: Talker(spec, limits, peers),
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
        for number in range(peers):
            self.cluster.start(number)
        self._meet()

    def _meet(self) -> None:
        """One peer takes in the record of everybody; the others get copies of what it knows."""
        memberships = [peer.machine.membership for peer in self.cluster.peers if peer.machine]
        first, *others = memberships
        first_s = self.cluster.clock_of(self.cluster.peers[0])
        for other in others:
            first.roster.merge(other.signed, first_s)
            first.rings.add(other.peer)
        for peer, other in zip(self.cluster.peers[1:], others, strict=True):
            _copy(first, other, self.cluster.clock_of(peer))
        for membership in memberships:
            membership.keeper.rings_changed()

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


def _copy(first: Membership, other: Membership, now_s: float) -> None:
    """Records, indexes and rings as `first` has them; opinions, times and its own entry are its
    own. Taking in one by one would cost 4,000 peers minutes to begin."""
    source, roster = first.roster, other.roster
    own = roster._entries[other.peer]
    own.revision = source._entries[other.peer].revision
    roster._entries = {
        peer: own
        if peer == other.peer
        else Entry(
            entry.record,
            entry.signed,
            entry.key,
            since_s=now_s,
            last_heard_s=now_s,
            stamp_hash=entry.fingerprint,
            revision=entry.revision,
        )
        for peer, entry in source._entries.items()
    }
    roster._by_change = dict(roster._entries)
    roster._ids = list(source._ids)
    roster._of_key, roster._of_body = dict(source._of_key), dict(source._of_body)
    roster.revision, roster.shape = source.revision, source.shape
    roster.present_count = source.present_count
    other.rings._rings = [list(ring) for ring in first.rings._rings]


def main(sizes: list[int]) -> None:
    gc.disable()
    print(
        "| peers | messages/s | bytes/s | bytes/s by log N | news to all, s | dead for one, all |"
    )
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
            f"{size / math.log2(peers):.0f}",
            f"{news_s:.1f}",
            f"{first_s:.1f}, {all_s:.1f}",
        ]
        print(f"| {peers} | {' | '.join(cells)} |", flush=True)
        spent_s = time.process_time() - begun_s
        memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            f"{peers}: {spent_s:.0f} s of processor time, at most {memory_bytes / 1e9:.1f} GB",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
