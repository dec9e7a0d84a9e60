"""DATA-01 with whole peers in virtual time: heads are killed ten times, and come back each time.

The same story with real processes is tests/swarm/test_head_kills.py. A seed costs about two seconds
of a processor here, so many can be tried: SWARMD_HEAD_KILL_SEEDS=1000, from _FIRST on.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from swarmd.protocols import assignment, membership_limits
from swarmd.protocols.audit import Audit
from swarmd.protocols.effects import Emit
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.files import saved_on
from swarmd.sim.network import NetworkProfile
from swarmd.sim.sim_peer import SimPeer
from swarmd.sim.small_run import shape_of
from swarmd.sim.whole_peer import fixed_map, whole_factory
from swarmd.sim.whole_run import machine_of

SEEDS = int(os.environ.get("SWARMD_HEAD_KILL_SEEDS", "1"))
FIRST = int(os.environ.get("SWARMD_HEAD_KILL_FIRST", "0"))
KILLS, ROUNDS = 10, 6
STAGE_OF = {"p0": 0, "p1": 1, "p2": 0, "p3": 1}
HEADS, OTHERS = (0, 2), (1, 3)
PATIENCE_S = 120.0
"""Virtual; for anything that is waited for."""
STILL_S_MAX = 5.0
"""Virtual, of a swarm in which a head is left. 1.8 s were seen."""


class Story:
    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.world = World(seed)
        self.rng = self.world.rng_for("kills")
        limits, placing = membership_limits.local(), assignment.local()
        self.cluster = Cluster(
            self.world,
            whole_factory(limits, fixed_map(STAGE_OF), PipelineLimits(), placing),
            shape_of(2, ROUNDS, seed),
            NetworkProfile(delay_s=0.01, jitter=0.1, bandwidth_bytes_per_s=10e6),
            len(STAGE_OF),
        )
        self.done = 0
        """Micro-batches that heads had done in the lives that are over."""
        self.audits: list[Audit] = []
        """Of those that went through to the end of the run."""
        self.still_s = self._moved_s = 0.0
        """The longest that nothing was done though a head was there that had worked."""
        self._seen = 0
        self.cluster.on_emit.append(self._note)

    def _note(self, peer: SimPeer, emit: Emit) -> None:
        if emit.name == "peer_ended" and emit.fields["code"] == "run_complete":
            self.done += self.led(peer.number)
            leases = machine_of(peer).leases
            self.audits.append(leases.audit(self.cluster.clock_of(peer)))

    def machine(self, number: int) -> PeerMachine:
        return machine_of(self.cluster.peers[number])

    def led(self, number: int) -> int:
        """Micro-batches that a peer has led to their end in its present life."""
        return self.machine(number).leases.counters["done"]

    def start(self) -> None:
        """Until every home holds a state: a stage that loses all of them at once is lost before."""
        self.cluster.start(0)
        for number in range(1, len(STAGE_OF)):
            self.cluster.start(number, (0,))
        self.wait(lambda: all(saved_on(peer.disk) for peer in self.cluster.peers))

    def wait(self, condition: Callable[[], bool]) -> None:
        until_s = self.world.now_s + PATIENCE_S
        while not condition():
            assert self.world.now_s < until_s, self.reasons()
            self.world.run_until(self.world.now_s + self.rng.uniform(0.0, 0.2))
            self._look()

    def _look(self) -> None:
        led = [self.led(head) for head in HEADS if self.cluster.peers[head].is_running]
        if self.done + sum(led) != self._seen or not any(led):
            self._seen, self._moved_s = self.done + sum(led), self.world.now_s
        self.still_s = max(self.still_s, self.world.now_s - self._moved_s)

    def kill_a_head(self) -> None:
        """In the middle of something, and back within a second."""
        head, count = self.rng.choice(HEADS), self.rng.randint(1, 4)
        self.wait(lambda: self.led(head) >= count)
        self.done += self.led(head)
        self.cluster.crash(head)
        self.world.run_until(self.world.now_s + self.rng.uniform(0.2, 1.0))
        self.cluster.start(head, OTHERS)

    def reasons(self) -> dict[str, str]:
        running = self.cluster.running()
        return {peer.name: str(machine_of(peer).reasons.current) for peer in running}


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_ten_kills_of_heads_leave_every_sample_counted_once_by_every_peer(seed: int) -> None:
    story = Story(seed)
    story.start()
    for _ in range(KILLS):
        story.kill_a_head()
    assert not story.audits, "the run went on through all kills"
    story.wait(lambda: not story.cluster.running())
    shape = story.cluster.shape
    in_truth = story.done * shape.micro_batch_samples
    assert len(story.audits) == len(STAGE_OF)
    for found in story.audits:
        assert found.clean, found
        assert found.complete, found
        assert found.samples_completed == found.samples_total
        assert found.processed_twice <= in_truth - found.samples_completed
    twice = {found.processed_twice for found in story.audits}
    assert len(twice) == 1, "what was worked on twice is the same to all"
    assert story.still_s < STILL_S_MAX
    print(f"nothing done for {story.still_s:.1f} s at most, with a head there")
    print(f"worked on twice: {twice} samples counted, {in_truth - found.samples_total} in truth")
