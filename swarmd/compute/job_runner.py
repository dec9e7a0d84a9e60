"""Runs jobs on a worker and tells their failures apart.

What is the same for the worker process and for the inline backend, so that both give the same bytes
and fail in the same way. A worker is anything that satisfies `Worker`; the product's is StageWorker
(stage_worker.py), which also halves its slices by itself when memory runs out.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from swarmd.compute.failure_codes import failure_of
from swarmd.compute.worker_faults import WorkerFaults
from swarmd.compute_api import WorkerConfig
from swarmd.errors import ComputeLost, JobFailed
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Job, JobResult, StageCall
from swarmd.units import BadValue

DEFAULT_FACTORY = "swarmd.compute.stage_loader:load_stage_worker"


class Answer(Protocol):
    @property
    def result(self) -> JobResult: ...

    @property
    def output_bytes(self) -> int:
        """Written at the front of the output view; 0: there is no output."""
        ...


class Worker(Protocol):
    """One stage in memory. `StageCall("info")` gives what `ComputeBackend.start` promises."""

    before_job: Callable[[Job], None]
    """Called inside `run`, where an error is handled as one of the job's own."""
    reads: Callable[[MicroBatchId], MicroBatchId]
    """Whose samples are computed for a micro-batch."""

    def run(
        self, job: Job, inputs: Sequence[memoryview] = (), output: memoryview | None = None
    ) -> Answer:
        """`inputs`: exactly the bytes the job reads. Keeps no view. Raises JobFailed, or whatever
        went wrong, with nothing changed."""
        ...


WorkerFactory = Callable[[WorkerConfig], Worker]


class JobRunner:
    """A loaded worker. `info` is what it said of itself.

    factory_name: "module:function" of a WorkerFactory.
    life: how many workers of this backend went before; 0 for the first.
    Raises ComputeError, or whatever went wrong, if the stage cannot be loaded.
    """

    def __init__(
        self, config: WorkerConfig, factory_name: str = DEFAULT_FACTORY, *, life: int = 0
    ) -> None:
        self._faults = WorkerFaults(config.injection, config.run, stage=config.stage, life=life)
        time.sleep(self._faults.start_delay_s)
        module, _, function = factory_name.partition(":")
        factory: WorkerFactory = getattr(importlib.import_module(module), function)
        self._worker = factory(config)
        self.info: dict[str, Any] = self._worker.run(StageCall("info")).result.data
        self._worker.before_job = self._faults.strike
        self._worker.reads = self._faults.reads

    def run(
        self, job: Job, inputs: Sequence[memoryview], output: memoryview | None
    ) -> tuple[JobResult, int]:
        """The result (`output` left out) and the bytes written to the front of `output`.

        Raises JobFailed (the worker goes on) or ComputeLost (it must be replaced)."""
        if isinstance(job, StageCall) and job.name == "inject":
            return self._inject(job), 0
        self._faults.overhear(job, inputs)
        try:
            answer = self._worker.run(job, inputs, output)
        except Exception as error:
            failure = failure_of(error)
            if failure.code == "device_lost":
                raise ComputeLost(failure.code, failure.text) from error
            if failure.code == "compute_failed":
                traceback.print_exc(file=sys.stderr)
            raise JobFailed(failure.code, failure.text) from error
        output_bytes = self._faults.spoil(job, output, answer.output_bytes)
        slowed_s = self._faults.stretch(answer.result.busy_s)
        busy_s = answer.result.busy_s + slowed_s
        return replace(answer.result, output=None, busy_s=busy_s), output_bytes

    def _inject(self, job: StageCall) -> JobResult:
        """`inject`, args specs: suffer these from now on, and no others. data: active."""
        try:
            self._faults.replace(job.args["specs"])
        except BadValue as error:
            raise JobFailed("malformed", str(error)) from None
        return JobResult(data={"active": self._faults.active})
