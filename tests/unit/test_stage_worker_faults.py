"""Whatever arrives, breaks or runs out: the job fails with its code and nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from compute_helpers import Chain, RandomCorpus, backward, make_worker, micro_batches_of, small_run

from swarmd.compute.stage_worker import StageWorker
from swarmd.compute.tensor_bytes import payload_bytes_max
from swarmd.errors import JobFailed, StoreError
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Forward, Job, StageCall, Step
from swarmd.run_config import RunConfig

torch.set_num_threads(1)

FIRST = MicroBatchId(0, 0)


def slot_of(run: RunConfig) -> memoryview:
    return memoryview(bytearray(payload_bytes_max(run)))


def payload_for(run: RunConfig, stage: int) -> memoryview:
    """What stage `stage` receives for the first micro-batch."""
    chain = Chain(run)
    slot = slot_of(run)
    payload: list[memoryview] = []
    for worker in chain.workers[:stage]:
        answer = worker.run(Forward(FIRST, 0, True), payload, slot)
        payload = [memoryview(bytearray(slot[: answer.output_bytes]))]
    return payload[0]


def gradient_for(worker: StageWorker, value: float) -> memoryview:
    run = worker.run_config
    shape = (run.micro_batch_samples, run.sequence_tokens, worker.codec.columns)
    view = slot_of(run)
    return view[: worker.codec.pack_gradient(view, torch.full(shape, value))]


def state_of(worker: StageWorker) -> tuple[str, int, int, int]:
    """Everything that a failed job must not change."""
    digest = worker.run(StageCall("digest")).result.data["digest"]
    return digest, worker.sums.samples, len(worker.graphs), worker.inner_state.updates


def code_of(worker: StageWorker, job: Job, inputs: list[memoryview], slot: memoryview) -> str:
    with pytest.raises(JobFailed) as caught:
        worker.run(job, inputs, slot)
    return caught.value.code


@pytest.mark.parametrize("stage", [1, 3])
def test_bad_bytes_from_a_peer_fail_the_job_and_change_nothing(stage: int) -> None:
    run = small_run(4)
    worker = make_worker(run, stage)
    good = payload_for(run, stage)
    before = state_of(worker)
    not_finite = memoryview(bytearray(good))
    not_finite[-4:] = b"\x00\x00\x80\x7f"
    unknown_token = memoryview(bytearray(good))
    unknown_token[32] = 97
    cases = {
        "not_finite": not_finite,
        "malformed": unknown_token,
        "wrong_shape": _changed(good, 12),
        "wrong_dtype": _changed(good, 6),
    }
    for code, payload in cases.items():
        assert code_of(worker, Forward(FIRST, 0, True), [payload], slot_of(run)) == code
    assert code_of(worker, Forward(FIRST, 0, True), [], slot_of(run)) == "malformed"
    assert state_of(worker) == before


def _changed(payload: memoryview, place: int) -> memoryview:
    copy = memoryview(bytearray(payload))
    copy[place] ^= 1
    return copy


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("train", [True, False])
def test_poisoned_weights_are_noticed_and_never_reach_the_sums(stage: int, train: bool) -> None:
    run = small_run(4)
    worker = make_worker(run, stage)
    inputs = [payload_for(run, stage)] if stage else []
    name = next(name for name in worker.params if "gate" in name)
    with torch.no_grad():
        worker.params[name][0, 0] = math.nan
    before = state_of(worker)
    assert code_of(worker, Forward(FIRST, 0, train), inputs, slot_of(run)) == "not_finite"
    assert state_of(worker) == before


@pytest.mark.parametrize("micro_batch_max", [None, 1])
@pytest.mark.parametrize("stage", [0, 1])
def test_an_overflowing_gradient_is_refused_and_the_graph_serves_another(
    stage: int, micro_batch_max: int | None
) -> None:
    run = small_run(4)
    worker, calm = (make_worker(run, stage, micro_batch_max=micro_batch_max) for _ in range(2))
    inputs = [payload_for(run, stage)] if stage else []
    slot = slot_of(run)
    for each in (worker, calm):
        each.run(Forward(FIRST, 0, True), inputs, slot)
    before = state_of(worker)
    assert code_of(worker, backward(FIRST), [gradient_for(worker, 3e38)], slot) == "not_finite"
    assert state_of(worker) == before
    for each in (worker, calm):
        each.run(backward(FIRST), [gradient_for(each, 1.0)], slot)
    left, right = worker.sums.take(), calm.sums.take()
    assert left[1] == right[1] == 2
    for name in left[0]:
        torch.testing.assert_close(left[0][name], right[0][name], rtol=1e-6, atol=1e-6)


def test_a_step_whose_sum_is_not_finite_is_skipped_and_counted() -> None:
    run = small_run(1)
    worker = make_worker(run)
    before = state_of(worker)
    huge = {name: torch.full_like(weight, 3e38) for name, weight in worker.params.items()}
    worker.sums.add(huge, 1)
    worker.sums.add(huge, 1)  # each is finite, their sum is not
    assert worker.run(Step(0)).result.data == {"stepped": False, "reason": "not_finite"}
    assert state_of(worker) == before
    assert worker.run(StageCall("info")).result.data["steps_skipped"] == 1
    worker.run(Forward(FIRST, 0, True))
    assert worker.run(Step(1)).result.data["stepped"] is True


def test_sums_refuse_what_is_not_finite() -> None:
    worker = make_worker(small_run(1))
    good = {name: torch.ones_like(weight) for name, weight in worker.params.items()}
    bad = {name: value.clone() for name, value in good.items()}
    next(iter(bad.values())).view(-1)[0] = math.nan
    worker.sums.add(good, 3)
    with pytest.raises(JobFailed, match="not_finite"):
        worker.sums.add(bad, 2)
    sums, samples = worker.sums.take()
    assert samples == 3
    assert all(torch.equal(sums[name], good[name]) for name in good)


# ------------------------------------------------------------------------------------------ memory


class Fails:
    """A `before_job` that fails the first `count` jobs of a kind."""

    def __init__(self, error: Exception, count: int, kind: type = Forward) -> None:
        self.error, self.left, self.kind = error, count, kind

    def __call__(self, job: Job) -> None:
        if isinstance(job, self.kind) and self.left:
            self.left -= 1
            raise self.error


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_when_memory_runs_out_the_slice_is_halved_and_the_job_redone(stage: int) -> None:
    run = small_run(4, micro_batch_tokens=48, batch_tokens=48)
    worker, calm = make_worker(run, stage), make_worker(run, stage)
    inputs = [payload_for(run, stage)] if stage else []
    worker.before_job = Fails(MemoryError(), 2)
    outputs = []
    for each in (worker, calm):
        slot = slot_of(run)
        answer = each.run(Forward(FIRST, 0, True), inputs, slot)
        outputs.append((answer, bytes(slot[: answer.output_bytes])))
    assert outputs[0][0].result.data["micro_batch_lowered_to"] == 1
    assert "micro_batch_lowered_to" not in outputs[1][0].result.data
    assert worker.run(StageCall("info")).result.data["micro_batch"] == 1
    assert outputs[0][0].output_bytes == outputs[1][0].output_bytes


def test_with_nothing_left_to_halve_the_job_fails_for_want_of_memory() -> None:
    run = small_run(2)
    worker = make_worker(run)
    worker.before_job = Fails(torch.OutOfMemoryError("CUDA out of memory."), 2)
    assert code_of(worker, Forward(FIRST, 0, True), [], slot_of(run)) == "out_of_memory"
    assert worker.slice_samples == 1
    worker.run(Forward(FIRST, 0, True), (), slot_of(run))


def test_memory_that_runs_out_inside_a_backward_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = small_run(2)
    worker, calm = make_worker(run), make_worker(run)
    slot = slot_of(run)
    for each in (worker, calm):
        each.run(Forward(FIRST, 0, True), (), slot)
    add = worker.sums.add
    failures = [MemoryError()]

    def add_once_out_of_memory(grads: dict[str, torch.Tensor], samples: int) -> None:
        if failures:
            raise failures.pop()
        add(grads, samples)

    monkeypatch.setattr(worker.sums, "add", add_once_out_of_memory)
    answer = worker.run(backward(FIRST), [gradient_for(worker, 1.0)], slot)
    assert answer.result.data["micro_batch_lowered_to"] == 1
    calm.run(backward(FIRST), [gradient_for(calm, 1.0)], slot)
    left, right = worker.sums.take(), calm.sums.take()
    assert left[1] == right[1] == 2
    for name in left[0]:
        torch.testing.assert_close(left[0][name], right[0][name], rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------------------- data and slots


class NoData:
    def samples(self, micro_batch: MicroBatchId) -> None:
        raise StoreError(Path("corpus.bin"), "gone")


def test_data_that_are_not_there_are_named_as_such() -> None:
    run = small_run(2)
    worker = make_worker(run)
    for corpus in (None, NoData()):
        worker.corpus = corpus  # type: ignore[assignment]
        assert code_of(worker, Forward(FIRST, 0, True), [], slot_of(run)) == "data_missing"
    worker.corpus = RandomCorpus(run)
    worker.run(Forward(FIRST, 0, True), (), slot_of(run))


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_no_view_of_a_slot_is_kept(wire: str) -> None:
    """A slot is given to somebody else as soon as the job has ended."""
    run = small_run(4, wire=wire)
    chain = Chain(run)
    backings = []
    slot = bytearray(payload_bytes_max(run))
    payload: list[bytearray] = []
    for worker in chain.workers:
        answer = worker.run(
            Forward(FIRST, 0, True), [memoryview(each) for each in payload], memoryview(slot)
        )
        payload = [slot[: answer.output_bytes]]
        backings += payload
    for worker in reversed(chain.workers[:-1]):
        answer = worker.run(
            backward(FIRST), [memoryview(each) for each in payload], memoryview(slot)
        )
        payload = [slot[: answer.output_bytes]]
        backings += payload
    for backing in [slot, *backings]:
        backing.append(0)  # BufferError while a view is alive


def test_a_call_nobody_knows_fails() -> None:
    assert code_of(make_worker(small_run(1)), StageCall("fly"), [], slot_of(small_run(1))) == (
        "compute_failed"
    )


def test_a_chain_with_failures_between_trains_as_one_without() -> None:
    """Refused payloads, forgotten attempts and repeated ones leave the curve where it was."""
    run = small_run(2)
    clean, rough = Chain(run), Chain(run)
    bad = gradient_for(rough.workers[0], 3e38)
    for step in range(4):
        losses = clean.step(step, micro_batches_of(run, step))
        for micro_batch in micro_batches_of(run, step):
            slot = slot_of(run)
            rough.workers[0].run(Forward(micro_batch, 7, True), (), slot)
            assert code_of(rough.workers[0], backward(micro_batch, 7), [bad], slot) == "not_finite"
        assert rough.step(step, micro_batches_of(run, step)) == losses
