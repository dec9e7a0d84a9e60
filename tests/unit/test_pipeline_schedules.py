"""Hundreds of random schedules of faults: whatever happens, nothing is lost, leaked or doubled.

Goal: conservation (docs/faults.md: STAG-04, DATA-01). Method: a few peers in two to four
stages under virtual time; kills and restarts, freezes, broken links, lost messages, full slots, a
worker that dies or fails at jobs, all drawn from the seed. Checked: each start ends exactly once at
its head; each index is done once in the end; no slot and no graph is left; no peer counts a
gradient twice; steps only rise; at most `lane_depth` jobs wait at a worker.
"""

from __future__ import annotations

import random

import pytest
from pipeline_harness import VirtualPeer, World
from pipeline_worker import FAST_LIMITS, loss_of, run_shape

from swarmd.protocols.effects import ComputeReady
from swarmd.protocols.jobs import Backward, Forward, Job

SEEDS_PER_TEST = 25
STORM_S = 1.2
CALM_AFTER_S = 5.0
"""Faults end here; then everything must come right by itself."""


def stormy_world(seed: int) -> World:
    rng = random.Random(f"storm {seed}")
    stages = rng.choice((2, 2, 3, 4))
    durations_s = tuple(
        tuple(rng.uniform(0.005, 0.04) for _ in range(rng.choice((1, 2, 3)))) for _ in range(stages)
    )
    run = run_shape(stages, rounds=rng.choice((1, 2, 3)), steps=2, per_step=rng.choice((4, 10)))
    world = World(durations_s, seed=seed, run=run, loss=rng.choice((0.0, 0.0, 0.02, 0.1)))
    for _ in range(rng.randrange(9)):
        when_s = rng.uniform(0.02, STORM_S)
        draw_fault(world, rng, when_s)
    world.at(CALM_AFTER_S, lambda: calm(world))
    return world


def draw_fault(world: World, rng: random.Random, when_s: float) -> None:
    victim, other = rng.sample(world.peers, 2)
    span_s = rng.uniform(0.05, 2.0)
    match rng.choice(("kill", "freeze", "cut", "slots", "worker", "jobs", "drop")):
        case "kill":
            world.at(when_s, lambda: world.kill(victim) if victim.is_alive else None)
            world.at(when_s + span_s, lambda: world.restart(victim))
        case "freeze":
            world.at(when_s, lambda: victim.freeze(span_s) if victim.is_alive else None)
        case "cut":
            world.at(when_s, lambda: world.cut(victim, other, span_s))
        case "slots":
            world.at(when_s, lambda: set_slots(victim, rng.randrange(3)))
            world.at(when_s + span_s, lambda: set_slots(victim, None))
        case "worker":
            world.at(when_s, lambda: kill_worker(world, victim, span_s))
        case "jobs":
            codes = ("not_finite", "out_of_memory", "malformed", "compute_failed")
            code, share = rng.choice(codes), rng.uniform(0.1, 1.0)

            def fail(job: Job) -> str | None:
                is_hit = isinstance(job, Forward | Backward) and world.rng.random() < share
                return code if is_hit else None

            world.at(when_s, lambda: setattr(victim.worker, "fail_with", fail))
            world.at(when_s + span_s, lambda: setattr(victim.worker, "fail_with", lambda job: None))
        case "drop":
            world.at(when_s, lambda: setattr(victim, "drop_share", rng.uniform(0.2, 1.0)))
            world.at(when_s + span_s, lambda: setattr(victim, "drop_share", 0.0))


def set_slots(peer: VirtualPeer, free_max: int | None) -> None:
    peer.slots.free_max = free_max


def kill_worker(world: World, victim: VirtualPeer, span_s: float) -> None:
    if victim.is_alive:
        victim.worker.die()
        machine = victim.machine
        world.after(
            span_s,
            lambda: victim.deliver(ComputeReady({})) if victim.machine is machine else None,
        )


def calm(world: World) -> None:
    world.loss = 0.0
    for peer in world.peers:
        world.restart(peer)
        peer.drop_share = 0.0
        peer.slots.free_max = None
        peer.worker.fail_with = lambda job: None


@pytest.mark.parametrize("block", range(8))
def test_every_index_is_done_once_and_nothing_is_left(block: int) -> None:
    run_block(block)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8, 88))
def test_every_index_is_done_once_over_two_thousand_more_seeds(block: int) -> None:
    run_block(block)


def run_block(block: int) -> None:
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        print("seed", seed)
        world = stormy_world(seed)
        world.run_all()
        assert "late" not in world.ended.reasons
        for micro_batch, fields in world.ended.done.items():
            assert fields["loss_sum"] == pytest.approx(loss_of(micro_batch))
            assert fields["samples"] == 2
        for peer in world.peers:
            if peer.is_alive:
                check_nothing_is_left(world, peer)


def check_nothing_is_left(world: World, peer: VirtualPeer) -> None:
    statistics = peer.machine.statistics(world.now_s)
    assert statistics.in_flight == {}
    assert statistics.slots_held == 0
    assert len(peer.slots) == 0
    assert peer.worker.graphs == {}
    assert peer.machine._table.hop._open == {}
    assert all(traffic.outstanding == 0 for traffic in statistics.peers)
    assert peer.worker.queued_max <= FAST_LIMITS.lane_depth
    steps = [step for step, _ in peer.worker.steps]
    assert steps == sorted(set(steps))
    assert statistics.pending == 0


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (stormy_world(4) for _ in range(2))
    first.run_all()
    second.run_all()
    assert first.events == second.events
    assert first.now_s == second.now_s
    assert [p.worker.log for p in first.peers] == [p.worker.log for p in second.peers]
