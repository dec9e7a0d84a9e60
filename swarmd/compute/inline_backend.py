"""The compute worker without a process: jobs run where they are submitted, and block there.

For tests and for debugging with a plain stack trace. The same worker, the same slots, the same
failures as node/process_backend.py, held to the same contract tests. What it cannot do is survive:
a hang hangs, and a crash of torch takes everything with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from swarmd.buffers import SlotPool
from swarmd.compute.failure_codes import failure_of
from swarmd.compute.job_runner import DEFAULT_FACTORY, JobRunner
from swarmd.compute.worker_faults import Wedged, WorkerExit
from swarmd.compute_api import ComputeStatistics, WorkerConfig
from swarmd.errors import ComputeError, ComputeLost, JobFailed
from swarmd.job_wire import (
    config_from_plain,
    config_to_plain,
    inputs_of,
    output_bytes_of,
    pack_frame,
    pack_job,
    result_from_plain,
    result_to_plain,
    unpack_frame,
    unpack_job,
)
from swarmd.protocols.jobs import BufferRef, Job, JobResult


class InlineBackend:
    """A `ComputeBackend` that has done a job when `submit` returns. It never yields."""

    def __init__(
        self, config: WorkerConfig, buffers: SlotPool, *, factory: str = DEFAULT_FACTORY
    ) -> None:
        self.config = config
        self.buffers = buffers
        self.on_lost: Callable[[ComputeLost], None] | None = None
        self._factory = factory
        self._runner: JobRunner | None = None
        self._lives = 0
        self._jobs_done = 0
        self._jobs_failed = 0
        self._busy_s = 0.0
        self._cpu_s = 0.0

    async def start(self) -> dict[str, Any]:
        """See ComputeBackend."""
        assert self._runner is None, "the worker is running"
        life, self._lives = self._lives, self._lives + 1
        try:
            config = config_from_plain(config_to_plain(self.config))
            self._runner = JobRunner(config, self._factory, life=life)
        except Exception as error:
            failure = failure_of(error)
            if failure.code == "device_lost":
                raise ComputeLost(failure.code, failure.text) from error
            code = "model_does_not_fit" if failure.code == "out_of_memory" else failure.code
            raise ComputeError(code, failure.text) from error
        return {**self._runner.info, "pid": os.getpid()}

    async def submit(self, job: Job) -> JobResult:
        """See ComputeBackend. Without a free slot it cannot wait: that is a bug of the test."""
        if self._runner is None:
            raise ComputeLost("worker_died", "no worker takes jobs now")
        size_bytes = output_bytes_of(job, self._runner.info["payload_bytes_max"])
        if size_bytes > self.buffers.slot_bytes_max:
            raise JobFailed("too_large", f"no slot holds an output of {size_bytes} bytes")
        lent = None
        if size_bytes:
            lent = self.buffers.acquire_output(size_bytes)
            assert lent is not None, "no slot is free"
        try:
            result = self._run(self._runner, unpack_job(pack_job(job)), lent)
        except BaseException as error:
            if lent is not None:
                self.buffers.release(lent)
            self._jobs_failed += 1
            if isinstance(error, (ComputeLost, WorkerExit, Wedged)):
                raise self._lose(error) from error
            raise
        if lent is not None and result.output is None:
            self.buffers.release(lent)
        self._jobs_done += 1
        self._busy_s += result.busy_s
        self._cpu_s += result.cpu_s
        return result

    def statistics(self) -> ComputeStatistics:
        return ComputeStatistics(
            pid=os.getpid() if self._runner else None,
            jobs_done=self._jobs_done,
            jobs_failed=self._jobs_failed,
            busy_s=self._busy_s,
            cpu_s=self._cpu_s,
            queue_length=0,
            restarts=max(0, self._lives - 1),
            started_s_ago=None,
            info=dict(self._runner.info) if self._runner else {},
        )

    async def aclose(self) -> None:
        """See ComputeBackend."""
        self._runner = None

    def _run(self, runner: JobRunner, job: Job, lent: BufferRef | None) -> JobResult:
        inputs = [self.buffers.view(ref) for ref in inputs_of(job)]
        output = self.buffers.whole_view(lent) if lent else None
        result, output_bytes = runner.run(job, inputs, output)
        ref = self.buffers.resized(lent, output_bytes) if lent and output_bytes else None
        return result_from_plain(unpack_frame(pack_frame(result_to_plain(result))), ref)

    def _lose(self, error: BaseException) -> ComputeLost:
        loss = error if isinstance(error, ComputeLost) else ComputeLost("worker_died", "injected")
        self._runner = None
        if self.on_lost is not None:
            self.on_lost(loss)
        return loss
