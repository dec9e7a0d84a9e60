"""RND-06 and a newcomer's first round: it warms up, says until when, and is caught up at last."""

from __future__ import annotations

from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols import membership_limits
from swarmd.protocols.peer import PeerMachine
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster, SimPeer
from swarmd.sim.network import NetworkProfile
from swarmd.sim.small_run import shape_of
from swarmd.sim.whole_peer import whole_factory
from swarmd.sim.whole_run import machine_of

ROUNDS = 14


class Swarm:
    """Two replicas of one stage train; a third comes."""

    def __init__(self, bytes_per_s: float) -> None:
        self.world = World(5)
        self.told: list[tuple[str, str, dict[str, Any], int]] = []
        self.cluster = Cluster(
            self.world,
            whole_factory(membership_limits.local(), lambda spec: 0),
            shape_of(1, ROUNDS, 5),
            NetworkProfile(delay_s=0.01, jitter=0.1, bandwidth_bytes_per_s=bytes_per_s),
            3,
        )
        self.cluster.on_emit.append(self._note)
        self.cluster.start(0)
        self.cluster.start(1, (0,))

    def _note(self, peer: SimPeer, emit: fx.Emit) -> None:
        self.told.append((peer.name, emit.name, emit.fields, self.round()))

    def of(self, name: str) -> list[tuple[dict[str, Any], int]]:
        """(fields, the swarm's round then) of what the newcomer told."""
        return [(f, number) for who, told, f, number in self.told if (who, told) == ("p2", name)]

    def machine(self, number: int) -> PeerMachine:
        return machine_of(self.cluster.peers[number])

    def round(self) -> int:
        running = [p for p in self.cluster.running() if p.number < 2]
        return max((machine_of(p).work.round for p in running), default=0)

    def run_until(self, condition: Any, what: str) -> None:
        until_s = self.world.now_s + 600.0
        while not condition():
            assert self.world.now_s < until_s, what
            self.world.run_until(self.world.now_s + 0.1)


def test_a_newcomer_warms_up_for_one_round_and_says_until_when() -> None:
    swarm = Swarm(10e6)
    swarm.run_until(lambda: swarm.round() >= 3, "three rounds")
    swarm.cluster.start(2, (0,))
    texts: dict[str, float | None] = {}

    def look() -> bool:
        reason = swarm.machine(2).reasons.current
        if reason.text.startswith("warms up"):
            eta_at_s = reason.eta_at_s
            if eta_at_s is not None:
                texts[reason.text] = eta_at_s - swarm.cluster.clock_of(swarm.cluster.peers[2])
            else:
                texts.setdefault(reason.text, None)
        rounds = swarm.machine(2).work.rounds
        return rounds is not None and bool(texts) and not rounds.keeper.is_newcomer

    swarm.run_until(look, "it counts")
    (text,) = texts
    assert texts[text] is not None, "an ETA, once something has ended"
    counts_from = int(text.rpartition(" ")[2])
    swarm.run_until(
        lambda: swarm.machine(2).work.round > counts_from, "the round in which it counts"
    )
    reports = [fields for fields, _ in swarm.of("round_committed")]
    assert len(reports[-1]["included"]) == 3


def test_a_state_that_takes_rounds_to_come_is_caught_up_in_the_end() -> None:
    swarm = Swarm(0.25e6)
    swarm.run_until(lambda: swarm.round() >= 2, "two rounds")
    swarm.cluster.start(2, (0,))
    swarm.run_until(lambda: swarm.of("transfer_verified"), "the state has come")
    ((verified, then),) = swarm.of("transfer_verified")
    assert then - verified["round"] >= 2, "rounds ended meanwhile"
    assert verified["bytes_refetched"] == 0, "it never chased a newer one"
    swarm.run_until(
        lambda: any(len(f["included"]) == 3 for f, _ in swarm.of("round_committed")),
        "it takes part",
    )
    first = next(f for f, _ in swarm.of("round_committed") if len(f["included"]) == 3)
    assert first["round"] < ROUNDS - 2, "long before the run's end"
