"""STAG-01, STATE-05: the last peers of a stage die, and others have kept a snapshot of it."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.protocols import assignment, membership_limits
from swarmd.protocols import effects as fx
from swarmd.protocols.audit import audit
from swarmd.protocols.guard import GuardRules
from swarmd.protocols.reasons import Reason
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.files import guarded_on, saved_on
from swarmd.sim.network import NetworkProfile
from swarmd.sim.sim_peer import SimPeer
from swarmd.sim.small_run import shape_of
from swarmd.sim.whole_peer import whole_factory
from swarmd.sim.whole_run import machine_of

STAGES, ROUNDS, GUARD_ROUNDS = 2, 7, 2


class Swarm:
    """Peers settle by themselves who takes which stage."""

    def __init__(self, seed: int, peers: int, **rules: Any) -> None:
        print(f"seed {seed}")
        self.world = World(seed)
        self.cluster = Cluster(
            self.world,
            whole_factory(
                membership_limits.local(),
                lambda spec: None,
                placing=assignment.local(),
                guard=GuardRules(**{"rounds": GUARD_ROUNDS, **rules}),
            ),
            shape_of(STAGES, ROUNDS, seed),
            NetworkProfile(delay_s=0.01, jitter=0.1, bandwidth_bytes_per_s=10e6),
            peers,
        )
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.cluster.on_emit.append(self._note)
        self.cluster.start(0)
        for number in range(1, peers):
            self.cluster.start(number, (0,))

    def _note(self, peer: SimPeer, emit: fx.Emit) -> None:
        self.told.append((peer.name, emit.name, emit.fields))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [fields for _, told, fields in self.told if told == name]

    def run_until(self, condition: Any, within_s: float = 600.0) -> None:
        until_s = self.world.now_s + within_s
        while not condition():
            assert self.world.now_s < until_s, [
                (p.name, machine_of(p).reasons.current.text) for p in self.cluster.running()
            ]
            self.world.run_until(self.world.now_s + 0.5)

    def on(self, stage: int) -> list[SimPeer]:
        return [p for p in self.cluster.running() if machine_of(p).work.stage == stage]

    def round(self) -> int:
        return max((machine_of(p).work.round for p in self.cluster.running()), default=ROUNDS)

    def is_over(self) -> bool:
        running = self.cluster.running()
        return all(machine_of(p).leases.is_complete for p in running)


@pytest.mark.parametrize(("seed", "peers"), [(1, 4), (2, 5)])
def test_a_stage_whose_peers_all_died_with_their_disks_goes_on_from_a_guardian(
    seed: int, peers: int
) -> None:
    swarm = Swarm(seed, peers)
    swarm.run_until(lambda: swarm.round() >= 3 and len(swarm.of("state_guarded")) >= 2)
    lost_stage = 1
    others = {p.name: machine_of(p).work.round for p in swarm.on(0)}
    for peer in swarm.on(lost_stage):
        swarm.cluster.crash(peer.number, keep_disk=False)
    told: set[str] = set()

    def is_restored() -> bool:
        told.update(machine_of(p).reasons.current.code for p in swarm.cluster.running())
        return bool(swarm.of("state_restored"))

    swarm.run_until(is_restored)
    assert "run_state_lost" not in told, "a guardian has it"
    restored = swarm.of("state_restored")[0]
    assert restored["stage"] == lost_stage
    assert 0 < restored["rounds_lost"] <= GUARD_ROUNDS
    assert restored["saved_round"] >= GUARD_ROUNDS
    kept = [p for p in swarm.on(0) if p.name in others]
    assert kept, "the other stage has its peers still"
    assert all(machine_of(p).work.round >= others[p.name] for p in kept)
    swarm.run_until(swarm.is_over)
    for peer in swarm.cluster.running():
        assert audit(machine_of(peer).leases.ledger, 0).clean


@pytest.mark.parametrize("guardian_stays", [True, False])
def test_who_comes_back_with_an_older_state_than_a_guardian_has_takes_the_guardians(
    guardian_stays: bool,
) -> None:
    """And its own, if the guardian has gone when it would be asked."""
    swarm = Swarm(4, 3)
    swarm.run_until(lambda: swarm.round() >= 1 and len(swarm.on(0)) + len(swarm.on(1)) == 3)
    lost_stage = 0 if len(swarm.on(0)) == 2 else 1
    early, late = swarm.on(lost_stage)
    (guardian,) = swarm.on(1 - lost_stage)
    swarm.run_until(lambda: saved_on(early.disk))
    swarm.cluster.crash(early.number)
    had = saved_on(early.disk)[0].round
    swarm.run_until(lambda: any(f["round"] > had + 1 for f in swarm.of("state_guarded")))
    kept = max(f["round"] for f in swarm.of("state_guarded") if f["stage"] == lost_stage)
    swarm.cluster.crash(late.number, keep_disk=False)
    swarm.cluster.start(early.number, (guardian.number,))
    if not guardian_stays:
        swarm.run_until(lambda: machine_of(early).work.seat.resuming is None)
        swarm.cluster.crash(guardian.number, keep_disk=False)
        swarm.cluster.start(guardian.number, (early.number,))
    swarm.run_until(lambda: swarm.of("state_restored"))
    restored = swarm.of("state_restored")[0]
    assert restored["stage"] == lost_stage
    assert restored["saved_round"] == (kept if guardian_stays else had)


@pytest.mark.parametrize(("seed", "peers"), [(5, 2), (6, 4)])
def test_a_stage_that_lost_its_peers_in_the_first_round_begins_it_anew(
    seed: int, peers: int
) -> None:
    """Nobody has a snapshot then, and none is needed: the seed says what the round began with."""
    swarm = Swarm(seed, peers)

    def is_under_way() -> bool:
        return any(p.leases.ledger.contributions() for p in map(machine_of, swarm.on(0)))

    swarm.run_until(is_under_way)
    assert swarm.round() == 0
    lost = swarm.on(1)
    for peer in lost:
        swarm.cluster.crash(peer.number, keep_disk=False)
    left = swarm.on(0)
    if len(left) == 1:  # nobody to spare: one comes back, without its disk
        swarm.cluster.start(lost[0].number, (left[0].number,))
    swarm.run_until(swarm.is_over)
    for peer in swarm.cluster.running():
        assert audit(machine_of(peer).leases.ledger, 0).clean


def test_at_the_end_of_a_run_every_stage_is_guarded_at_its_last_round() -> None:
    swarm = Swarm(3, 4)
    swarm.run_until(lambda: not swarm.cluster.running())
    rounds = {
        (guarded.stage, guarded.round)
        for peer in swarm.cluster.peers
        for guarded in guarded_on(peer.disk)
    }
    assert {(stage, ROUNDS) for stage in range(STAGES)} <= rounds


def test_the_last_holder_that_leaves_hands_its_stage_over_first() -> None:
    swarm = Swarm(4, 3, rounds=1000)
    swarm.run_until(lambda: swarm.round() >= 2)
    alone = next(stage for stage in range(STAGES) if len(swarm.on(stage)) == 1)
    (last,) = swarm.on(alone)
    machine = machine_of(last)
    left_round = machine.work.round
    swarm.cluster.command(last.number, "leave")
    swarm.run_until(lambda: not last.is_running)
    assert last.ended == "drained"
    assert machine.work.states.handed_to, "somebody has it"
    swarm.run_until(lambda: swarm.of("state_restored") or swarm.is_over())
    for restored in swarm.of("state_restored"):
        assert restored["saved_round"] >= left_round
    swarm.run_until(swarm.is_over)


def test_a_stage_whose_state_is_gone_is_told_by_everybody_until_a_holder_is_back() -> None:
    swarm = Swarm(6, 4, bytes_max=10)  # so that nobody guards it
    swarm.run_until(lambda: swarm.round() >= 2)
    holders = [peer.number for peer in swarm.on(1)]
    for number in holders:
        swarm.cluster.crash(number)
    gone_s = swarm.world.now_s

    def reasons() -> list[Reason]:
        return [machine_of(peer).reasons.current for peer in swarm.cluster.running()]

    swarm.run_until(lambda: {(r.code, r.stage) for r in reasons()} == {("run_state_lost", 1)})
    assert swarm.world.now_s - gone_s <= 30.0
    assert all(reason.round is not None for reason in reasons()), "the last good one"
    swarm.cluster.start(holders[0], [peer.number for peer in swarm.cluster.running()])
    swarm.run_until(lambda: all(reason.code != "run_state_lost" for reason in reasons()))
    round_then = swarm.round()
    swarm.run_until(lambda: swarm.round() > round_then)


def test_what_does_not_fit_into_the_quota_is_not_kept_and_said() -> None:
    swarm = Swarm(5, 4, bytes_max=10)
    swarm.run_until(lambda: swarm.of("guard_failed"))
    assert {fields["code"] for fields in swarm.of("guard_failed")} == {"disk_limit"}
    assert not any(guarded_on(peer.disk) for peer in swarm.cluster.peers)
    assert not [name for p in swarm.cluster.peers for name in p.disk["files"] if "guard" in name]


@pytest.mark.parametrize("first", [0, 1])
def test_a_whole_swarm_comes_back_though_one_stage_is_in_a_guardians_hands_alone(
    first: int,
) -> None:
    """STATE-06 with STAG-01: nobody who trains knows what was done, and the disks do."""
    swarm = Swarm(6, 2)
    swarm.run_until(lambda: swarm.round() >= 3 and bool(swarm.of("state_guarded")))
    (lost,) = swarm.on(1)
    done = swarm.round()
    for peer in swarm.cluster.running():
        swarm.cluster.crash(peer.number, keep_disk=peer is not lost)
    order = [lost.number, 1 - lost.number] if first else [1 - lost.number, lost.number]
    swarm.cluster.start(order[0])
    swarm.cluster.start(order[1], (order[0],))
    swarm.run_until(lambda: len(swarm.of("state_restored")) == 2)
    assert all(told["saved_round"] >= done - GUARD_ROUNDS for told in swarm.of("state_restored"))
    swarm.run_until(swarm.is_over)
    for peer in swarm.cluster.running():
        found = audit(machine_of(peer).leases.ledger, 0)
        assert found.clean, found
    expired = [name for _, name, _ in swarm.told if name == "lease_expired"]
    assert len(expired) < 100, "no storm of leases that are too late"
