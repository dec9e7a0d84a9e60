"""How differently replicas predict: a last stage compares its start with the mean of the starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compute_helpers import make_worker, small_run
from mixing_world import World
from outer_helpers import one_stage_run, real_world, worker_of

from swarmd.compute.stage_worker import StageWorker
from swarmd.optim.disagreement import JS_DISTANCE_MAX, js_distance
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Forward, StageCall
from swarmd.protocols.outer_rules import Range, divergence_call, snapshot_call
from swarmd.protocols.round_surroundings import DIVERGENCE_ROUNDS

HELD_OUT = MicroBatchId(0, 0, held_out=True)


def call(worker: StageWorker, job: StageCall) -> dict[str, Any]:
    return worker.run(job).result.data


def looked(worker: StageWorker) -> StageWorker:
    worker.run(Forward(HELD_OUT, 0, train=False))
    return worker


def set_delta(worker: StageWorker, scale: float) -> torch.Tensor:
    """xmix - x, at random; returned as the worker keeps it."""
    assert worker.outer is not None
    elements = worker.outer.layout.elements
    delta_N = scale * torch.randn(elements, generator=torch.Generator().manual_seed(3))
    worker.outer.set_delta(Range(0, elements), delta_N)
    assert worker.outer.delta is not None
    return worker.outer.delta.float()


def test_it_is_the_js_distance_between_the_two_whole_models() -> None:
    worker = looked(make_worker(one_stage_run()))
    call(worker, snapshot_call(0))
    delta_N = set_delta(worker, 0.02)
    told = call(worker, divergence_call())["divergence"]
    assert worker.fixed_batch is not None
    logits = []
    first = 0
    mixed = {}
    for name, value in worker.params.items():
        mixed[name] = value.detach() + delta_N[first : first + value.numel()].view(value.shape)
        first += value.numel()
    for params in (worker.params, mixed):
        with torch.no_grad():
            hidden = worker.stage.forward(params, worker.fixed_batch.ids_BT)
            logits.append(worker.stage.logits(params, hidden).flatten(0, 1))
    assert told == pytest.approx(js_distance(*logits), rel=1e-5)
    assert 0 < told < JS_DISTANCE_MAX


def test_equal_starts_predict_alike_and_farther_ones_less_so() -> None:
    worker = looked(make_worker(one_stage_run()))
    found = []
    for scale in (0.0, 0.01, 0.04):
        call(worker, snapshot_call(0))
        set_delta(worker, scale)
        found.append(call(worker, divergence_call())["divergence"])
    assert found[0] < 1e-3
    assert found[0] < found[1] < found[2]


def test_nothing_is_told_before_there_is_something_to_compare_on() -> None:
    worker = make_worker(one_stage_run())
    call(worker, snapshot_call(0))
    set_delta(worker, 0.02)
    assert call(worker, divergence_call()) == {"divergence": None}
    call(looked(worker), snapshot_call(0))
    assert call(worker, divergence_call()) == {"divergence": None}, "Mix1 gave nothing"


def test_measuring_adds_nothing_to_what_a_round_holds_and_changes_no_weight() -> None:
    worker = looked(make_worker(one_stage_run()))
    call(worker, snapshot_call(0))
    set_delta(worker, 0.02)
    assert worker.outer is not None
    before = {name: value.detach().clone() for name, value in worker.params.items()}
    held = worker.outer.bytes_held
    call(worker, divergence_call())
    assert worker.outer.bytes_held == held
    for name, value in worker.params.items():
        assert torch.equal(value, before[name])


def test_the_batch_that_came_first_stays_the_one() -> None:
    worker = looked(make_worker(one_stage_run()))
    first = worker.fixed_batch
    worker.run(Forward(MicroBatchId(3, 1, held_out=True), 0, train=False))
    assert worker.fixed_batch is first
    head = make_worker(small_run(2))
    head.run(
        Forward(HELD_OUT, 0, train=False), (), memoryview(bytearray(head.codec.forward_bytes(8)))
    )
    assert head.fixed_batch is None, "the last stage alone sees what is predicted"


def divergences(world: World) -> list[dict[int, float]]:
    return [
        {
            fields["round"]: fields["disagreement_js"]
            for fields in replica.rounds
            if fields["disagreement_js"] is not None
        }
        for replica in world.replicas
    ]


def test_rounds_tell_it_every_few_rounds() -> None:
    rounds = DIVERGENCE_ROUNDS + 3
    world = real_world(one_stage_run(mix2_group=1), 2, rounds)
    for replica in world.replicas:
        looked(worker_of(replica))
        replica.start()
    world.run()
    for told in divergences(world):
        assert sorted(told) == [1, 1 + DIVERGENCE_ROUNDS]
        assert all(0 < value < JS_DISTANCE_MAX for value in told.values())
