"""The whole contract between the daemon's process and the compute worker. stdlib only.

The daemon never imports torch, the worker never imports trio or opens a socket. Between them cross
job values (swarmd.protocols.jobs) over a socket pair, and bytes in shared slots (swarmd.buffers).

One lane: jobs run one at a time in the order of submission; only they touch parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from swarmd.buffers import SlotPool
from swarmd.errors import ComputeLost
from swarmd.protocols.jobs import Job, JobResult
from swarmd.run_config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to load its stage."""

    run: RunConfig
    stage: int
    device: str = "cpu"
    """cpu, cuda:N or mps, as torch counts. Chosen by swarmd.devices."""
    threads: int | None = None
    """None: the library's own choice. Tests and local swarms say 1."""
    micro_batch_max: int | None = None
    """Most sequences computed at a time; None: the whole micro-batch."""
    recompute: bool = False
    """Recompute activations in the backward rather than keep them."""
    memory_max_bytes: int | None = None
    """Most memory for the stage and its work, on the device; None: what there is."""
    cache_dir: Path
    """Where the corpus is packed and mapped from."""
    data_source: str = ""
    """Where this peer has the run's data, if not where the run says; their hash decides."""
    state_file: Path | None = None
    """A checkpoint of this stage to start from; None: the identical start state of every peer."""
    injection: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputeStatistics:
    """Frozen and cheap, for status."""

    pid: int | None
    jobs_done: int
    jobs_failed: int
    busy_s: float
    """Wall seconds inside jobs."""
    cpu_s: float
    """CPU seconds of the worker; below busy_s on a crowded machine."""
    queue_length: int
    restarts: int
    started_s_ago: float | None
    info: dict[str, Any] = field(default_factory=dict)


class ComputeBackend(Protocol):
    """Runs jobs one at a time, in the order of submission.

    Two implementations, one contract test suite: node/process_backend.py (product) and
    compute/inline_backend.py (tests, debugging). The simulator has a fake above this level.
    """

    buffers: SlotPool
    config: WorkerConfig
    """Read at each start, so a newer one (another stage, a later checkpoint) holds from then on."""
    on_lost: Callable[[ComputeLost], None] | None
    """Called once when the worker is gone unasked, after every job it had has failed; also when it
    had none."""

    async def start(self) -> dict[str, Any]:
        """Start (or start again after ComputeLost), load the stage, return what the worker says:
        device, device_name, parameters, parameter_bytes, payload_bytes_max, flops_per_token,
        data_hash (None if not a head), torch_version, pid.

        Raises ComputeError: model_does_not_fit, data_missing, device_lost, compute_failed ...
        """
        ...

    async def submit(self, job: Job) -> JobResult:
        """Run `job` after all that were submitted before: a call takes its place in the order
        before it first yields. The slots it reads are held until it ended, however that was.

        Raises JobFailed (the worker goes on) or ComputeLost (it is gone). Cancelling the caller
        does not cancel the job: its result is dropped and its output slot released."""
        ...

    def statistics(self) -> ComputeStatistics: ...

    async def aclose(self) -> None:
        """Bounded: asks, waits, then kills."""
        ...
