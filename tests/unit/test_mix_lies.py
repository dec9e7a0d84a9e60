"""Lies on purpose about what a replica brings to a mix: what leaves it, what others make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compute_helpers import make_worker
from outer_helpers import one_stage_run
from torch import Tensor

from swarmd.compute.job_runner import JobRunner
from swarmd.compute.stage_worker import StageWorker
from swarmd.compute.worker_faults import WorkerFaults
from swarmd.compute_api import WorkerConfig
from swarmd.node.mix_lies import MixLies
from swarmd.optim import compress
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import BufferRef, Forward
from swarmd.protocols.messages import mixing as wire
from swarmd.protocols.mix_parts import HEADER_BYTES, Wire
from swarmd.protocols.mixing import MIX1, MIX2
from swarmd.protocols.outer_rules import Range, part_call, reduce_call, snapshot_call

FP32 = Wire("fp32")
WHERE = Range(0, 1_000)
NO_SLOT = BufferRef(0, 0, 0)


@pytest.fixture(scope="module")
def worker() -> StageWorker:
    """Its outer gradient is 0.01 everywhere."""
    worker = make_worker(one_stage_run())
    worker.run(snapshot_call(0))
    worker.params = {
        name: (weight.detach() - 0.01).requires_grad_() for name, weight in worker.params.items()
    }
    return worker


def sent(worker: StageWorker, faults: WorkerFaults, mix: int = MIX2) -> bytes:
    """What leaves a replica with these faults."""
    job = part_call(mix, FP32, WHERE)
    part = memoryview(bytearray(job.output_bytes))
    size = worker.run(job, (), part).output_bytes
    return bytes(part[: faults.spoil(job, part, size)])


def lying(*specs: str) -> WorkerFaults:
    return WorkerFaults(specs, one_stage_run())


def numbers(part: bytes) -> Tensor:
    return compress.unpack_dense(memoryview(part), "fp32", WHERE.count)


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ("nan_update", "not_finite"),
        ("inf_update", "not_finite"),
        ("huge_update", "norm_too_large"),
        ("wrong_dtype", "wrong_dtype"),
        ("sign_flip", ""),
        ("zero_update", ""),
    ],
)
def test_a_reducer_names_the_liar_and_leaves_it_out(
    worker: StageWorker, lie: str, code: str
) -> None:
    honest, spoilt = sent(worker, lying()), sent(worker, lying(lie))
    job = reduce_call(
        MIX2,
        FP32,
        WHERE,
        [NO_SLOT] * 3,
        [1, 1, 1],
        own=0,
        usual_norm=float(numbers(honest).norm()),
        is_clipped=False,
        members=3,
    )
    mean = memoryview(bytearray(job.output_bytes))
    views = [memoryview(bytearray(part)) for part in (honest, honest, spoilt)]
    answer = worker.run(job, views, mean)
    assert answer.result.data["codes"] == ["", "", code]
    if code:
        mixed = numbers(bytes(mean[: answer.output_bytes]))
        torch.testing.assert_close(mixed, numbers(honest))


def test_a_liar_without_a_code_sends_what_it_is_told_to(worker: StageWorker) -> None:
    honest = numbers(sent(worker, lying()))
    assert torch.equal(numbers(sent(worker, lying("sign_flip"))), -honest)
    assert not numbers(sent(worker, lying("zero_update"))).any()
    assert torch.equal(numbers(sent(worker, lying("huge_update=8"))), 8 * honest)
    assert len(sent(worker, lying("wrong_shape"))) < len(sent(worker, lying()))


def test_lies_about_updates_leave_parameters_alone(worker: StageWorker) -> None:
    assert sent(worker, lying("nan_update"), MIX1) == sent(worker, lying(), MIX1)
    assert len(sent(worker, lying("wrong_shape"), MIX1)) < len(sent(worker, lying(), MIX1))


def test_an_old_update_is_that_of_so_many_rounds_ago(worker: StageWorker) -> None:
    faults = lying("stale_update=2")
    parts = []
    for number in range(4):
        faults.strike(Forward(MicroBatchId(number, 0), number, train=True))
        worker.params = {n: (w.detach() - 0.01).requires_grad_() for n, w in worker.params.items()}
        honest = sent(worker, lying())
        parts.append((honest, sent(worker, faults)))
    assert parts[1][1] == parts[1][0], "there is no older one yet"
    assert parts[3][1] == parts[1][0] != parts[3][0]


def test_a_copied_update_is_what_a_neighbour_sent_last(worker: StageWorker) -> None:
    faults = lying("copy_update")
    honest = sent(worker, lying())
    assert sent(worker, faults) == honest, "nobody has sent anything yet"
    neighbours = bytearray(honest)
    compress.section(memoryview(neighbours), HEADER_BYTES, WHERE.count, torch.float32)[:] = 0.5
    job = reduce_call(
        MIX2, FP32, WHERE, [NO_SLOT] * 2, [1, 1],
        own=0, usual_norm=0.0, is_clipped=False, members=2,
    )  # fmt: skip
    faults.overhear(job, [memoryview(bytearray(honest)), memoryview(neighbours)])
    assert sent(worker, faults) == bytes(neighbours)
    assert sent(worker, faults, MIX1) == sent(worker, lying(), MIX1)


def test_one_batch_for_ever_is_one_loss_as_long_as_no_step_is_taken() -> None:
    losses = {}
    for injection in ((), ("repeat_batch",)):
        runner = JobRunner(
            WorkerConfig(
                run=one_stage_run(),
                stage=0,
                cache_dir=Path("/nonexistent"),
                injection=injection,
            ),
            "outer_helpers:load_worker",
        )
        jobs = [Forward(MicroBatchId(0, number), 0, train=False) for number in range(3)]
        losses[injection] = {runner.run(job, (), None)[0].loss_sum for job in jobs}
    assert [len(found) for found in losses.values()] == [3, 1]


def test_a_lie_waits_for_its_round(worker: StageWorker) -> None:
    faults = lying("nan_update@round=3")
    assert sent(worker, faults) == sent(worker, lying())
    faults.strike(Forward(MicroBatchId(3, 0), 0, train=True))
    assert sent(worker, faults) != sent(worker, lying())


# ----------------------------------------------------------------------------------------- messages

REF = wire.MixRef(round=7, mix=2, stage=1, group=b"12345678")
PART = wire.Part(ref=REF, part=4)


def test_messages_are_changed_as_they_leave_and_only_those_of_the_lie() -> None:
    told = MixLies(["wrong_round"], lambda: 0.0).told
    assert told(PART) == replace(PART, ref=replace(REF, round=4))
    assert told(wire.Taken(ref=REF, part=4)) == wire.Taken(ref=REF, part=4)
    early = replace(PART, ref=replace(REF, round=2))
    assert told(early) == early, "there is no such round"
    assert MixLies(["wrong_stage"], lambda: 0.0).told(PART).ref.stage == 2  # type: ignore[attr-defined]
    offer = wire.Offer(ref=REF, elements=9, wire="fp32", weight=8)
    boast = MixLies(["lie_samples=10"], lambda: 0.0).told(offer)
    assert boast == replace(offer, weight=80)
    assert not MixLies(["nan_update", "cut=k4Qe"], lambda: 0.0)


def test_messages_are_true_until_the_lie_is_due() -> None:
    now_s = 0.0
    late = MixLies(["wrong_stage@after=10s"], lambda: now_s)
    assert late.told(PART) == PART
    now_s = 10.0
    assert late.told(PART) != PART
    assert MixLies(["wrong_stage@round=8"], lambda: 0.0).told(PART) == PART
