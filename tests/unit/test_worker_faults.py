"""Failures are told apart; faults on purpose come when they should and no more often."""

from __future__ import annotations

import pytest
from backend_toys import TINY_RUN, forward

from swarmd.compute.failure_codes import DeviceLost, failure_of
from swarmd.compute.worker_faults import Wedged, WorkerExit, WorkerFaults
from swarmd.errors import Corrupt, JobFailed, UserError
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Forward, Job, StageCall, Step
from swarmd.units import BadValue


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class AcceleratorError(RuntimeError):
    """Named as torch's, from 2.8 on."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "out_of_memory"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out_of_memory"),
        (AcceleratorError("CUDA error: unspecified launch failure"), "device_lost"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device_lost"),
        (RuntimeError("HIP error: the operation cannot be performed"), "device_lost"),
        (RuntimeError("No CUDA GPUs are available"), "device_lost"),
        (DeviceLost("gone"), "device_lost"),
        (RuntimeError("shape '[3]' is invalid"), "compute_failed"),
        (ValueError("a text with cuda error: in it"), "compute_failed"),
        (KeyError("name"), "compute_failed"),
        (JobFailed("unknown_micro_batch", "m0.1"), "unknown_micro_batch"),
        (RemoteProtocolError("wrong_shape"), "wrong_shape"),
        (UserError("no data", code="data_missing", exit_code=1), "data_missing"),
        (Corrupt(__file__, "half a file"), "data_missing"),  # type: ignore[arg-type]
    ],
)
def test_every_failure_has_its_code(error: Exception, code: str) -> None:
    assert failure_of(error).code == code


def test_a_failure_is_told_in_one_line_with_its_type() -> None:
    failure = failure_of(RuntimeError("\nmat1 and mat2 " + "x" * 999 + "\nsecond line"))
    assert failure.text.startswith("RuntimeError: mat1 and mat2")
    assert "second" not in failure.text
    assert len(failure.text) < 330


# ------------------------------------------------------------------------------------------- faults


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def struck(faults: WorkerFaults, job: Job) -> type[BaseException] | None:
    try:
        faults.strike(job)
    except BaseException as error:
        return type(error)
    return None


def test_a_fault_without_a_share_strikes_once() -> None:
    faults = WorkerFaults(["oom"], TINY_RUN)
    assert [struck(faults, forward(number)) for number in range(3)] == [MemoryError, None, None]
    assert faults.active == []


def test_memory_runs_out_where_the_large_jobs_are() -> None:
    faults = WorkerFaults(["oom"], TINY_RUN)
    assert struck(faults, StageCall("digest")) is None
    assert struck(faults, Step(0)) is None
    assert struck(faults, forward(0)) is MemoryError


def test_a_fault_waits_for_its_step_its_round_or_its_time() -> None:
    faults = WorkerFaults(["device_lost@step=2"], TINY_RUN)
    assert [struck(faults, forward(n)) for n in range(5)] == [None] * 4 + [DeviceLost]
    faults = WorkerFaults(["worker_exit@step=3"], TINY_RUN)
    assert struck(faults, Step(2)) is None
    assert struck(faults, Step(3)) is WorkerExit
    faults = WorkerFaults(["wedge=compute@round=1"], TINY_RUN)
    assert struck(faults, forward(0)) is None
    assert struck(faults, Forward(MicroBatchId(1, 0), 0, True)) is Wedged
    clock = Clock()
    faults = WorkerFaults(["oom@after=10s"], TINY_RUN, clock=clock)
    clock.now_s = 9.9
    assert struck(faults, forward(0)) is None
    clock.now_s = 10.0
    assert struck(faults, forward(0)) is MemoryError


def test_a_share_strikes_that_share_of_jobs_the_same_ones_each_time() -> None:
    one, other = (WorkerFaults(["oom=0.25"], TINY_RUN) for _ in range(2))
    first = [struck(one, forward(0)) for _ in range(400)]
    assert first == [struck(other, forward(0)) for _ in range(400)]
    assert 60 < first.count(MemoryError) < 140


def test_a_repeated_batch_is_the_first_after_its_time_has_come_and_never_held_out() -> None:
    faults = WorkerFaults(["repeat_batch@round=1"], TINY_RUN)
    early, first, later = MicroBatchId(0, 3), MicroBatchId(1, 2), MicroBatchId(2, 5)
    held_out = MicroBatchId(2, 0, held_out=True)
    assert faults.reads(early) == early
    struck(faults, Forward(first, 0, True))
    assert [faults.reads(one) for one in (first, later, held_out)] == [first, first, held_out]
    faults.replace([])
    assert faults.reads(later) == later


def test_a_restarted_worker_is_spared_what_killed_the_last_one_but_not_a_share() -> None:
    specs = ["worker_exit", "device_lost", "wedge=compute", "busy_start=60s"]
    faults = WorkerFaults(specs, TINY_RUN, life=1)
    assert struck(faults, forward(0)) is None
    assert faults.start_delay_s == 0
    assert WorkerFaults(specs, TINY_RUN).start_delay_s == 60
    assert struck(WorkerFaults(["oom"], TINY_RUN, life=1), forward(0)) is MemoryError
    assert struck(WorkerFaults(["worker_exit=1"], TINY_RUN, life=5), forward(0)) is WorkerExit


def test_kinds_of_other_parts_are_ignored_and_nonsense_is_not() -> None:
    faults = WorkerFaults(["gossip_delay=1s", "wedge=drain", "serve_stall@round=2"], TINY_RUN)
    assert faults.active == []
    assert struck(faults, forward(0)) is None
    with pytest.raises(BadValue):
        WorkerFaults(["omo"], TINY_RUN)


def test_slow_makes_a_job_take_longer_and_says_by_how_much() -> None:
    assert WorkerFaults(["slow=3"], TINY_RUN).stretch(0.001) == pytest.approx(0.002)
    assert WorkerFaults(["slow=3@step=5"], TINY_RUN).stretch(60.0) == 0
