"""Liveness is progress: who answers probes but completes nothing, and who joins in any phase."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.protocols.reasons import STATE_OF_CODE
from swarmd.sim.fake_compute import FakeCompute
from swarmd.sim.run import SimOptions, Simulation
from swarmd.sim.whole_run import machine_of


class Wedge:
    """A worker whose jobs do not end until it is released. It is not slow, dead or silent."""

    def __init__(self, compute: FakeCompute) -> None:
        self._compute = compute
        self._held: list[tuple[Any, ...]] = []
        compute._finish = lambda *args: self._held.append(args)  # type: ignore[method-assign]

    def release(self) -> None:
        del self._compute.__dict__["_finish"]
        for args in self._held:
            self._compute._finish(*args)


def simulated(rounds: int, peers: int, seed: int, round_s: float) -> Simulation:
    print(f"seed {seed}")
    options = SimOptions(
        peers=peers, stages=2, rounds=rounds, seed=seed, scenario="calm", round_s=round_s
    )
    return Simulation(options, lambda text: None)


def wedged_swarm(stage: int) -> tuple[Simulation, Any, list[Any], Wedge]:
    """Four peers that train; one of the two of `stage` answers every probe and completes nothing,
    and has said so."""
    simulation = simulated(rounds=100, peers=4, seed=5, round_s=3.0)
    world, cluster = simulation.world, simulation.cluster
    simulation._start_all()
    world.run_until(25.0)
    machines = {peer.number: machine_of(peer) for peer in cluster.running()}
    number = next(n for n, machine in machines.items() if machine.work.stage == stage)
    for each in machines:
        cluster.command(each, "cordon")
    useless, others = machines[number], [m for n, m in machines.items() if n != number]
    assert useless.membership.record.micro_batches > 0
    compute = cluster.peers[number].compute
    assert compute is not None
    wedge, wedged_s = Wedge(compute), world.now_s
    while not useless.standstill.is_ours_alone:
        world.run_until(world.now_s + 1.0)
        assert world.now_s - wedged_s < 90.0, useless.reasons.current
    assert useless.reasons.current.code == "stalled"
    assert "while others did" in useless.reasons.current.text
    return simulation, useless, others, wedge


@pytest.mark.slow
def test_iden_05_who_answers_but_completes_nothing_is_stalled_for_all_and_comes_back() -> None:
    simulation, useless, others, wedge = wedged_swarm(stage=1)
    world = simulation.world
    until_s = world.now_s + 150.0
    while not all(is_stalled_for(simulation, machine, useless) for machine in others):
        world.run_until(world.now_s + 5.0)
        assert world.now_s < until_s, "it is stalled for all"
    heads = [machine for machine in others if machine.work.stage == 0]
    view = heads[0].membership.view(clock(simulation, heads[0])).get(useless.peer)
    assert view is not None
    assert view.is_present, "it answers every probe"
    assert not any(m.standstill.contributes(useless.peer) for m in others)
    assert all(m.standstill.contributes(m.peer) and m.standstill.since_s is None for m in others)
    shares = [share_of(simulation, head, useless) for head in heads]
    assert sum(shares) / len(shares) < 0.25, "a trickle, of what would be half"

    before = useless.membership.record.micro_batches
    wedge.release()
    world.run_until(world.now_s + 90.0)
    assert useless.standstill.since_s is None, useless.reasons.current
    assert useless.membership.record.micro_batches > before
    assert max(share_of(simulation, head, useless) for head in heads) > 0.25
    assert simulation.checkers.violations == []


@pytest.mark.slow
def test_iden_05_head_that_completes_nothing_keeps_no_micro_batch_from_the_others() -> None:
    """What it held goes back, and is trained though its round is over for all."""
    simulation, useless, others, wedge = wedged_swarm(stage=0)
    world = simulation.world
    settled = others[0].leases.ledger.settled
    assert useless.leases.held() == []
    world.run_until(world.now_s + 60.0)
    assert useless.leases.held() == []
    assert others[0].leases.ledger.settled >= settled + 3
    assert all(machine.standstill.since_s is None for machine in others)
    wedge.release()
    world.run_until(world.now_s + 30.0)
    assert useless.standstill.since_s is None, useless.reasons.current
    assert simulation.checkers.violations == []


def clock(simulation: Simulation, machine: Any) -> float:
    """Everybody has one of its own."""
    peers = simulation.cluster.peers
    return simulation.cluster.clock_of(next(peer for peer in peers if peer.machine is machine))


def is_stalled_for(simulation: Simulation, machine: Any, peer: Any) -> bool:
    found: bool = machine.standstill.is_stalled(peer.peer, clock(simulation, machine))
    return found


def share_of(simulation: Simulation, head: Any, peer: Any) -> float:
    """Of the work that this head gives away."""
    told = head.work.pipeline.statistics(clock(simulation, head)).peers
    share: float = {found.peer: found for found in told}[peer.peer].traffic_share
    return share


def test_rnd_01_joiner_in_any_phase_says_why_it_waits_until_it_trains() -> None:
    """Twelve moments of a round and a half, one joiner each; looked at four times a second."""
    founders, joiners = 4, 12
    simulation = simulated(rounds=100, peers=founders + joiners, seed=3, round_s=3.0)
    world, cluster = simulation.world, simulation.cluster
    cluster.start(0)
    for number in range(1, founders):
        cluster.start(number, (0,))
    world.run_until(20.0)
    round_s = machine_of(cluster.peers[0]).work.round_median_s or 5.0
    for place in range(joiners):
        at_s = world.now_s + place * 1.5 * round_s / joiners
        world.at(at_s, cluster.start, founders + place, (place % founders,))
    until_s = world.now_s + 1.5 * round_s + 60.0
    waiting, promised = set(range(founders, founders + joiners)), set()
    while waiting and world.now_s < until_s:
        world.run_until(world.now_s + 0.25)
        for number in sorted(waiting):
            peer = cluster.peers[number]
            if not peer.is_running:
                continue
            machine = machine_of(peer)
            reason = machine.reasons.current
            assert reason.text
            assert reason.state in STATE_OF_CODE[reason.code]
            assert reason.code not in ("training", "mixing") or machine.work.is_held, reason
            assert reason.code != "state_verifying" or reason.eta_at_s is not None, reason
            if reason.eta_at_s is not None:
                promised.add(number)
            if machine.membership.record.micro_batches:
                waiting.discard(number)
    told = {n: machine_of(cluster.peers[n]).reasons.current for n in waiting}
    assert not waiting, told
    assert promised == set(range(founders, founders + joiners)), "an ETA on the way"


@pytest.mark.slow
def test_micro_batch_given_back_while_it_is_under_way_goes_on_when_it_is_leased_again() -> None:
    simulation = simulated(rounds=100, peers=4, seed=6, round_s=3.0)
    world, cluster = simulation.world, simulation.cluster
    simulation._start_all()
    world.run_until(25.0)
    heads = [m for m in map(machine_of, cluster.running()) if m.work.stage == 0]
    tried = 0
    for _ in range(20):
        world.run_until(world.now_s + 0.5)
        for head in heads:
            given_back = head.leases.give_back_all(clock(simulation, head))
            assert head.work.pipeline is not None
            tried += sum(map(head.work.pipeline.leads, given_back))
    print(f"{tried} given back under way")
    assert tried > 0
    settled = heads[0].leases.ledger.settled
    world.run_until(world.now_s + 20.0)
    assert all(head.leases.ledger.settled > settled for head in heads)
    assert simulation.checkers.violations == []
