"""Order of jobs, inner steps and ends of rounds: what makes the swarm equal to the plain loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_harness import World
from pipeline_worker import FAST_LIMITS, run_shape

from swarmd.protocols import effects as fx
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.limits import ROUNDS_OPEN_MAX

ONE_IN_FLIGHT = replace(FAST_LIMITS, in_flight_max=1)


def plain_loop(rounds: int, steps: int, per_step: int, *, is_last: bool) -> list[str]:
    """What one process would do, written as a worker's log."""
    log = []
    for round_number in range(rounds):
        for step in range(steps):
            for index in range(step * per_step, (step + 1) * per_step):
                log += [f"F{index}"] if is_last else [f"F{index}", f"B{index}"]
            log.append(f"S{round_number * steps + step}")
    return log


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_one_micro_batch_in_flight_is_the_plain_loop_job_by_job(stages: int) -> None:
    run = run_shape(stages, rounds=2, steps=3, per_step=4)
    world = World(((0.01,),) * stages, run=run, bounds=ONE_IN_FLIGHT)
    world.run_all()
    for peer in world.peers:
        assert peer.worker.log == plain_loop(2, 3, 4, is_last=peer.shape.is_last), peer.id


@pytest.mark.parametrize("seed", range(5))
def test_fast_and_slow_replicas_take_the_same_steps_on_different_numbers(seed: int) -> None:
    run = run_shape(2, rounds=2, steps=4, per_step=12)
    world = World(((0.005,), (0.02, 0.06)), run=run, seed=seed)
    world.run_all()
    fast, slow = world["1a"].worker, world["1b"].worker
    assert [step for step, _ in fast.steps] == [step for step, _ in slow.steps] == list(range(8))
    assert len(fast.counted) > 1.8 * len(slow.counted)
    assert len(fast.counted) + len(slow.counted) == 96


def test_each_step_is_made_of_its_own_tag_when_nothing_is_late() -> None:
    run = run_shape(2, rounds=2, steps=3, per_step=4)
    world = World(((0.01,), (0.01,)), run=run, bounds=ONE_IN_FLIGHT)
    world.run_all()
    for step, parts in world["1a"].worker.steps:
        assert [run.step_of(micro_batch) for micro_batch in parts] == [step] * 4


def test_many_in_flight_lose_no_gradient_and_step_late_by_little() -> None:
    run = run_shape(3, rounds=3, steps=3, per_step=6)
    world = World(((0.01,), (0.01,), (0.01,)), run=run)
    world.run_all()
    for peer in world.peers:
        parts = [part for _, step_parts in peer.worker.steps for part in step_parts]
        assert len(parts) == len(set(parts)) == 54
        for step, step_parts in peer.worker.steps:
            assert max(run.step_of(part) for part in step_parts) <= step
            assert min(run.step_of(part) for part in step_parts) >= step - 1


def test_backward_goes_before_forward() -> None:
    world = World(((0.02,), (0.001,)), bounds=replace(FAST_LIMITS, in_flight_max=4))
    world.run_all()
    log = [entry for entry in world["0a"].worker.log if not entry.startswith("S")]
    ahead = 0
    for entry in log:
        ahead += 1 if entry.startswith("F") else -1
        assert ahead <= 3, "one gradient away, two jobs at the lane"


def test_each_peer_announces_each_later_round_once() -> None:
    world = World(((0.01, 0.02), (0.01, 0.03)), run=run_shape(2, rounds=3))
    world.run_all()
    for peer in world.peers:
        assert peer.rounds_announced == [1, 2]


def test_nothing_of_the_next_round_is_computed_while_weights_are_mixed() -> None:
    run = run_shape(2, rounds=2, steps=2, per_step=2)
    world = World(((0.01,), (0.01,)), run=run, mix_s=0.5)
    callee = world["1a"]
    world.run_until(lambda: callee.rounds_announced == [1])
    world.run_for(0.45)
    assert {micro_batch.round for micro_batch in callee.worker.counted} == {0}
    assert [step for step, _ in callee.worker.steps] == [0, 1]
    assert callee.machine.statistics(world.now_s).in_flight == {"queued": 4}
    world.run_all()
    assert len(callee.worker.counted) == 8
    assert callee.machine.statistics(world.now_s).wait_s["mixing"] == pytest.approx(0.5, abs=0.02)


def test_round_ended_by_other_means_is_not_announced_and_holds() -> None:
    world = World(((0.01,),), run=run_shape(1, rounds=2, steps=1, per_step=2))
    kept_back, world._free[1] = world._free[1], []
    world.run_until(lambda: len(world.ended.done) == 2)
    peer = world["0a"]
    peer.carry_out(peer.machine.finish_round(0, world.now_s))
    assert peer.machine.round == 1
    assert peer.machine.finish_round(0, world.now_s) == []
    world._free[1] = kept_back
    world.run_for(1.0)
    assert peer.worker.log == ["F0", "F1", "S0"]
    peer.carry_out(peer.machine.hold(False, world.now_s))
    world.run_all()
    assert peer.rounds_announced == []


def test_hold_cannot_end_before_the_announced_round_is_finished() -> None:
    world = World(((0.01,),), run=run_shape(1, rounds=2))
    machine = world["0a"].machine
    machine.set_round_gate(1)
    effects = machine.start(MicroBatchId(1, 0), 0.0)
    assert effects[-1] == fx.Emit("pipeline/first_of_round", {"round": 1})
    with pytest.raises(LocalProtocolError, match="wrong_round"):
        machine.hold(False, 0.0)
    machine.finish_round(0, 0.0)
    machine.hold(False, 0.0)


def test_the_last_step_follows_every_job_that_was_given_before_it() -> None:
    world = World(((0.001,), (0.05,)), run=run_shape(2, rounds=2, steps=1, per_step=6))
    world.run_all()
    parts = dict(world["1a"].worker.steps)
    assert {part.round for part in parts[0]} == {0}
    assert len(parts[0]) + len(parts[1]) == 12


def test_held_out_micro_batches_are_looked_at_and_never_learned_from() -> None:
    run = run_shape(3, rounds=1, steps=2, per_step=2, held_out=2)
    world = World(((0.01,), (0.01,), (0.01,)), run=run)
    world.run_all()
    head = world["0a"]
    before = [len(peer.worker.steps) for peer in world.peers]
    for index in range(2):
        held_out = MicroBatchId(0, index, held_out=True)
        world._leased[held_out] = head.id
        head.carry_out(head.machine.hold(False, world.now_s))
        for peer in world.peers:
            peer.carry_out(peer.machine.hold(False, world.now_s))
        head.carry_out(head.machine.start(held_out, world.now_s))
    world.run_until(lambda: sum(m.held_out for m in world.ended.done) == 2)
    world.run_until(world.is_quiet)
    for peer, steps in zip(world.peers, before, strict=True):
        assert peer.worker.log[-2:] == ["H0", "H1"]
        assert len(peer.worker.steps) == steps
        assert len(peer.worker.counted) == 4
        assert len(peer.slots) == 0
        assert peer.worker.graphs == {}
        assert peer.machine.statistics(world.now_s).pending == 0
    assert head.machine.statistics(world.now_s).counters.done == 4


def test_gate_turns_away_rounds_that_are_not_open_and_late_ones_for_good() -> None:
    world = World(((0.01,), (0.01,)), run=run_shape(2, rounds=20))
    head = world["0a"].machine
    with pytest.raises(LocalProtocolError, match="wrong_round"):
        head.start(MicroBatchId(1, 0), 0.0)
    head.set_round_gate(3)
    head.set_round_gate(1)
    head.finish_round(ROUNDS_OPEN_MAX, 0.0)
    head.hold(False, 0.0)
    late = head.start(MicroBatchId(0, 0), 0.0)
    assert [effect.fields["reason"] for effect in late if isinstance(effect, fx.Emit)] == ["late"]
    assert head.is_empty
