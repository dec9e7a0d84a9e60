"""What a worker does with micro-batches, steps and state: recipes O2, O3 and O5, exact resuming."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from compute_helpers import Chain, RandomCorpus, backward, make_worker, micro_batches_of, small_run
from torch import Tensor

from swarmd.compute.graphs import GRAPHS_MAX
from swarmd.compute.peak import TURNS_MIN, WIDTH, measure
from swarmd.compute.stage_worker import StageWorker
from swarmd.compute.tensor_bytes import payload_bytes_max
from swarmd.errors import JobFailed
from swarmd.optim.schedule import learning_rate
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Forget, Forward, StageCall, Step
from swarmd.run_config import RunConfig

torch.set_num_threads(1)

FIRST = MicroBatchId(0, 0)


def slot_of(run: RunConfig) -> memoryview:
    return memoryview(bytearray(payload_bytes_max(run)))


def gradient_of(run: RunConfig, worker: StageWorker, seed: int = 3) -> memoryview:
    """A made-up gradient from the stage behind."""
    generator = torch.Generator().manual_seed(seed)
    shape = (run.micro_batch_samples, run.sequence_tokens, worker.codec.columns)
    view = slot_of(run)
    size = worker.codec.pack_gradient(view, torch.randn(shape, generator=generator))
    return view[:size]


def sums_of(worker: StageWorker) -> dict[str, Tensor]:
    """The accumulated gradients; the worker has none afterwards."""
    return worker.sums.take()[0]


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor], bound: float = 0.0) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=bound, atol=bound)


def digest(worker: StageWorker) -> str:
    return str(worker.run(StageCall("digest")).result.data["digest"])


# ------------------------------------------------------------------------------------ micro-batches


def test_every_stage_answers_with_what_its_neighbour_needs() -> None:
    run = small_run(4)
    chain = Chain(run)
    last = chain.micro_batch(FIRST).result
    assert last.samples == 2
    assert last.tokens == 24
    assert last.loss_sum == pytest.approx(2 * 4.57, abs=0.5)
    assert last.busy_s > 0
    assert last.cpu_s > 0
    assert [worker.sums.samples for worker in chain.workers] == [2, 2, 2, 2]
    assert [len(worker.graphs) for worker in chain.workers] == [0, 0, 0, 0]


def test_held_out_micro_batches_leave_no_trace() -> None:
    run = small_run(2)
    chain = Chain(run)
    before = [digest(worker) for worker in chain.workers]
    first_loss = chain.held_out()
    assert chain.held_out() == first_loss
    for worker, was in zip(chain.workers, before, strict=True):
        assert digest(worker) == was
        assert worker.sums.samples == 0
        assert len(worker.graphs) == 0
    chain.train(1)  # nothing of the forward-only mode stuck
    assert chain.held_out() != first_loss


def test_a_graph_keeps_the_version_it_was_made_with() -> None:
    """O3: forward at version v, a step to v+1, then the backward."""
    run = small_run(2)
    calm, moved = make_worker(run), make_worker(run)
    slot = slot_of(run)
    for worker in (calm, moved):
        worker.run(Forward(FIRST, 0, True), (), slot)
    other = MicroBatchId(0, 1)
    moved.run(Forward(other, 0, True), (), slot)
    moved.run(backward(other), [gradient_of(run, moved, seed=9)], slot)
    moved.run(Step(0))
    assert digest(moved) != digest(calm)
    for worker in (calm, moved):
        worker.run(backward(FIRST), [gradient_of(run, worker)], slot)
    assert_equal(sums_of(moved), sums_of(calm), bound=1e-6)


@pytest.mark.parametrize("ending", ["backward", "forget"])
def test_an_old_versions_memory_goes_with_its_last_graph(ending: str) -> None:
    run = small_run(2)
    worker = make_worker(run)
    slot = slot_of(run)
    held, other = FIRST, MicroBatchId(0, 1)
    worker.run(Forward(held, 0, True), (), slot)
    worker.run(Forward(other, 0, True), (), slot)
    worker.run(backward(other), [gradient_of(run, worker)], slot)
    old = [weakref.ref(weight) for weight in worker.params.values()]
    worker.run(Step(0))
    gc.collect()
    assert all(ref() is not None for ref in old)
    if ending == "backward":
        worker.run(backward(held), [gradient_of(run, worker)], slot)
        worker.sums.take()
    else:
        worker.run(Forget(held, 0))
    gc.collect()
    assert all(ref() is None for ref in old)


@pytest.mark.parametrize("micro_batch_max", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_slices_and_recomputation_change_nothing(micro_batch_max: int, recompute: bool) -> None:
    run = small_run(4, micro_batch_tokens=36)
    assert run.micro_batch_samples == 3
    whole = Chain(run)
    sliced = Chain(run, micro_batch_max=micro_batch_max, recompute=recompute)
    for chain in (whole, sliced):
        for micro_batch in micro_batches_of(run, 0):
            chain.micro_batch(micro_batch)
    for left, right in zip(whole.workers, sliced.workers, strict=True):
        assert_equal(sums_of(left), sums_of(right), bound=1e-6)
    assert sliced.held_out() == pytest.approx(whole.held_out(), abs=1e-6)


class Rows:
    """A corpus whose micro-batch `index` has the rows listed for it."""

    def __init__(self, run: RunConfig, parts: list[list[int]]) -> None:
        self._all = np.concatenate(
            [RandomCorpus(run).samples(MicroBatchId(0, index)) for index in range(7)]
        )
        self._parts = parts

    def samples(self, micro_batch: MicroBatchId) -> np.ndarray:
        return self._all[self._parts[micro_batch.index]]


@pytest.mark.parametrize("cut", [[14], [5, 9], [1, 4, 2, 1, 3, 1, 2]])
def test_how_samples_are_cut_into_micro_batches_does_not_matter(cut: list[int]) -> None:
    """O5, against one sample after the other."""
    run = small_run(1, micro_batch_tokens=14 * 12, batch_tokens=14 * 12)
    small = small_run(1)
    updates = []
    for sizes in (cut, [1] * 14):
        ends = np.cumsum(sizes)
        parts = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
        worker = make_worker(run)
        worker.corpus = Rows(small, parts)
        for index in range(len(sizes)):
            worker.run(Forward(MicroBatchId(0, index), 0, True))
        result = worker.run(Step(0)).result
        assert result.samples == 14
        updates.append(worker.params)
    for name in updates[0]:
        torch.testing.assert_close(updates[0][name], updates[1][name], rtol=0, atol=1e-6)


# -------------------------------------------------------------------------------------- double work


def test_a_micro_batch_is_counted_once_whatever_its_attempts() -> None:
    run = small_run(2)
    once, twice = Chain(run), Chain(run)
    once.micro_batch(FIRST)
    answers = [twice.micro_batch(FIRST, attempt=attempt).result for attempt in range(3)]
    assert [answer.data["counted"] for answer in answers] == [True, False, False]
    assert answers[0].loss_sum == answers[2].loss_sum
    for left, right in zip(once.workers, twice.workers, strict=True):
        assert right.sums.samples == 2
        assert_equal(sums_of(left), sums_of(right))


def test_a_backward_that_must_not_accumulate_gives_the_input_gradient_only() -> None:
    run = small_run(4)
    chain = Chain(run)
    middle, slot = chain.workers[1], slot_of(run)
    forward = chain.workers[0].run(Forward(FIRST, 0, True), (), slot)
    sent = memoryview(bytearray(slot[: forward.output_bytes]))
    gradient = gradient_of(run, middle)
    outputs = []
    for attempt, accumulate in ((0, False), (1, True)):
        middle.run(Forward(FIRST, attempt, True), [sent], slot)
        answer = middle.run(backward(FIRST, attempt, accumulate=accumulate), [gradient], slot)
        assert answer.result.data["counted"] is accumulate
        assert middle.sums.samples == (2 if accumulate else 0)
        outputs.append(bytes(slot[: answer.output_bytes]))
    assert outputs[0] == outputs[1]


def test_a_late_attempt_is_not_counted_into_the_next_step_either() -> None:
    run = small_run(2)
    chain = Chain(run)
    chain.step(0, [FIRST])
    chain.micro_batch(FIRST, attempt=1)
    assert [worker.sums.samples for worker in chain.workers] == [0, 0]


def test_what_nobody_holds_is_unknown() -> None:
    run = small_run(2)
    worker = make_worker(run)
    slot = slot_of(run)
    worker.run(Forward(FIRST, 0, True), (), slot)
    gradient = gradient_of(run, worker)
    for job in (backward(FIRST, attempt=1), backward(MicroBatchId(0, 1))):
        with pytest.raises(JobFailed) as caught:
            worker.run(job, [gradient], slot)
        assert caught.value.code == "unknown_micro_batch"
    assert worker.run(Forget(FIRST, 0)).result.data == {"was_held": True}
    assert worker.run(Forget(FIRST, 0)).result.data == {"was_held": False}
    with pytest.raises(JobFailed, match="unknown_micro_batch"):
        worker.run(backward(FIRST), [gradient], slot)


def test_graphs_are_bounded_and_the_oldest_goes_first() -> None:
    run = small_run(2, micro_batch_tokens=12, batch_tokens=12 * 80, inner_steps=1)
    worker = make_worker(run)
    slot = slot_of(run)
    for index in range(GRAPHS_MAX + 2):
        worker.run(Forward(MicroBatchId(0, index), 0, True), (), slot)
    info = worker.run(StageCall("info")).result.data
    assert (info["graphs_held"], info["graphs_evicted"]) == (GRAPHS_MAX, 2)
    gradient = gradient_of(run, worker)
    with pytest.raises(JobFailed, match="unknown_micro_batch"):
        worker.run(backward(MicroBatchId(0, 1)), [gradient], slot)
    worker.run(backward(MicroBatchId(0, 2)), [gradient], slot)


# -------------------------------------------------------------------------------------------- steps


def test_a_step_without_samples_does_nothing_and_decays_nothing() -> None:
    worker = make_worker(small_run(1))
    before = digest(worker)
    data = worker.run(Step(0)).result.data
    assert data == {"stepped": False, "reason": "no_samples"}
    assert digest(worker) == before
    assert worker.inner_state.updates == 0


def test_tags_spread_a_rounds_micro_batches_evenly_over_its_steps() -> None:
    """O2: M_b = 12, H = 3."""
    run = small_run(1, inner_steps=3, batch_tokens=96)
    assert run.micro_batches_of_round(0) == 12
    assert [run.step_of(0, index) for index in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_jump_over_a_tag_is_one_step_at_the_later_tags_rate() -> None:
    """O2: a replica that sees tags 0 and 2 only takes two steps, each at its tag's rate."""
    run = small_run(1)
    worker = make_worker(run)
    rates = []
    for step in (0, 2):
        worker.run(Forward(micro_batches_of(run, step)[0], 0, True))
        rates.append(worker.run(Step(step)).result.data["lr"])
    expected = [learning_rate(step, inner=run.inner, total_steps=20) for step in (0, 2)]
    assert rates == expected
    assert worker.inner_state.updates == 2
    assert worker.next_step == 3


# -------------------------------------------------------------------------------------------- state


def test_peers_start_equal_and_a_step_changes_the_digest() -> None:
    run = small_run(2)
    one, two = make_worker(run, 1), make_worker(run, 1)
    assert digest(one) == digest(two)
    chain = Chain(run)
    chain.step(0, [FIRST])
    assert digest(chain.workers[1]) != digest(one)


@pytest.mark.parametrize("way", ["file", "slot", "start"])
def test_training_goes_on_bit_for_bit_from_a_saved_state(way: str, tmp_path: Path) -> None:
    run = small_run(2)
    chain = Chain(run)
    chain.train(3)
    paths = [tmp_path / f"{stage}.safetensors" for stage in range(2)]
    bodies = []
    for worker, path in zip(chain.workers, paths, strict=True):
        worker.run(StageCall("state", {"path": str(path)}))
        slot = memoryview(bytearray(1 << 20))
        answer = worker.run(StageCall("state"), (), slot)
        bodies.append(slot[: answer.output_bytes])
    again = Chain(run)
    for stage, worker in enumerate(again.workers):
        if way == "file":
            worker.run(StageCall("load_state", {"path": str(paths[stage])}))
        elif way == "slot":
            worker.run(StageCall("load_state"), [bodies[stage]])
        else:
            again.workers[stage] = make_worker(run, stage, state_file=paths[stage])
        assert digest(again.workers[stage]) == digest(chain.workers[stage])
    for step in range(3, 6):
        micro_batches = micro_batches_of(run, step)
        assert again.step(step, micro_batches) == chain.step(step, micro_batches)
    for left, right in zip(again.workers, chain.workers, strict=True):
        assert digest(left) == digest(right)


def test_a_state_without_moments_starts_them_at_zero(tmp_path: Path) -> None:
    run = small_run(1)
    chain = Chain(run)
    chain.train(2)
    path = str(tmp_path / "bare.safetensors")
    chain.workers[0].run(StageCall("state", {"path": path, "moments": False}))
    worker = make_worker(run)
    data = worker.run(StageCall("load_state", {"path": path})).result.data
    assert data == {"digest": digest(chain.workers[0]), "next_step": 2}
    assert worker.inner_state.updates == 0
    assert not any(moment.any() for moment in worker.inner_state.first.values())


def test_a_state_that_is_not_this_stages_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run = small_run(2)
    worker = make_worker(run, 1)
    before = digest(worker)
    other_run = small_run(2, seed=8)
    poisoned = make_worker(run, 1)
    with torch.no_grad():
        poisoned.params["norm.final"][0] = torch.nan
    origins = {
        "wrong_stage": make_worker(run, 0),
        "wrong_run": make_worker(other_run, 1),
        "not_finite": poisoned,
        "malformed": make_worker(run, 1),
    }
    for code, origin in origins.items():
        path = tmp_path / code
        origin.run(StageCall("state", {"path": str(path)}))
        if code == "malformed":
            path.write_bytes(path.read_bytes()[:-3])
    for code in (*origins, "data_missing"):
        with pytest.raises(JobFailed) as caught:
            worker.run(StageCall("load_state", {"path": str(tmp_path / code)}))
        assert caught.value.code == code
        assert digest(worker) == before


def test_a_worker_says_what_it_is() -> None:
    run = small_run(2)
    info = make_worker(run).run(StageCall("info")).result.data
    assert info["device"] == "cpu"
    assert info["parameter_bytes"] == 4 * info["parameters"]
    assert info["payload_bytes_max"] == payload_bytes_max(run)
    assert info["flops_per_token"] > 2 * info["parameters"]
    assert info["data_hash"] == RandomCorpus.content_hash
    assert make_worker(run, 1).run(StageCall("info")).result.data["data_hash"] is None


def test_peak_of_a_device_is_that_of_its_best_product() -> None:
    peak = measure(torch.device("cpu"), 0.0)
    assert (peak["dtype"], peak["products"]) == ("float32", TURNS_MIN)
    assert peak["flops_per_s"] > 2.0 * WIDTH**3 / 60, "a product took a minute"
