"""A virtual compute worker and the slots it works on, with the contracts of the real ones.

Slots   every BufferRef is released exactly once and never read afterwards
Worker  one job at a time, in order; knows which bytes each graph was made from, so a gradient of
        anything else is noticed; writes down its jobs and what each step was made of
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import MicroBatchId, PeerId, RunId
from swarmd.protocols.jobs import (
    Backward,
    BufferRef,
    Forget,
    Forward,
    Job,
    JobFailure,
    JobResult,
    Step,
)
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape
from swarmd.protocols.run_shape import RunShape

PAYLOAD_BYTES = 10_000
FAST_LIMITS = PipelineLimits(
    in_flight_max=6, forward_queue_max=4, micro_batch_s=8.0, hop_s_min=0.2, hop_s_max=1.5
)


def run_shape(
    stages: int, *, rounds: int = 1, steps: int = 3, per_step: int = 4, held_out: int = 0
) -> RunShape:
    return RunShape(
        run_id=RunId("0" * 64),
        stages=stages,
        inner_steps=steps,
        total_steps=rounds * steps,
        micro_batches_per_step=per_step,
        micro_batch_samples=2,
        sequence_tokens=8,
        held_out_micro_batches=held_out,
        width=8,
    )


@dataclass(frozen=True)
class Bytes:
    """What a payload says: an activation, or a gradient of one, with where it came from."""

    kind: str
    micro_batch: MicroBatchId
    stage: int
    origin: int
    """Unique for each forward that was ever computed."""


class Slots:
    """One peer's slots. `free_max` below what is in use makes the next arrival lose its bytes."""

    def __init__(self) -> None:
        self._content: dict[BufferRef, Bytes] = {}
        self._numbers = itertools.count()
        self.free_max: int | None = None

    def acquire(self, content: Bytes) -> BufferRef:
        ref = BufferRef(next(self._numbers), 0, PAYLOAD_BYTES)
        self._content[ref] = content
        return ref

    def has_room(self) -> bool:
        return self.free_max is None or len(self._content) < self.free_max

    def read(self, ref: BufferRef) -> Bytes:
        assert ref in self._content, f"slot {ref.slot} was released before it was read"
        return self._content[ref]

    def release(self, ref: BufferRef) -> None:
        assert ref in self._content, f"slot {ref.slot} was released twice"
        del self._content[ref]

    def __len__(self) -> int:
        return len(self._content)


class Host(Protocol):
    """What the worker needs of the peer it works for."""

    id: PeerId
    shape: PipelineShape
    slots: Slots
    is_alive: bool
    is_frozen: bool

    def deliver(self, event: fx.Event) -> None: ...

    def after(self, delay_s: float, action: Callable[[], None]) -> None: ...

    def next_origin(self) -> int: ...


class Worker:
    """A compute worker with a cost model: `duration_s` a forward, twice that a backward."""

    def __init__(self, peer: Host, duration_s: float) -> None:
        self.peer = peer
        self.duration_s = duration_s
        self.fail_with: Callable[[Job], str | None] = lambda job: None
        self.log: list[str] = []
        self.counted: Counter[MicroBatchId] = Counter()
        self.steps: list[tuple[int, tuple[MicroBatchId, ...]]] = []
        self.graphs: dict[tuple[MicroBatchId, int], tuple[Bytes | None, int]] = {}
        """What each graph was made from (input bytes), and the origin of its output."""
        self._pending: list[MicroBatchId] = []
        self._queue: list[tuple[int, Job, Bytes | None]] = []
        self._running = False
        self.epoch = 0
        self.queued_max = 0

    def submit(self, job_id: int, job: Job) -> None:
        """Read the slots now, as the lane holds them from here on."""
        match job:
            case Forward(input=BufferRef() as ref) | Backward(gradient=BufferRef() as ref):
                given: Bytes | None = self.peer.slots.read(ref)
            case _:
                given = None
        self._queue.append((job_id, job, given))
        waiting = sum(isinstance(item[1], Forward | Backward) for item in self._queue)
        self.queued_max = max(self.queued_max, waiting)
        if not self._running:
            self._run_next()

    def die(self) -> None:
        """As the driver tells it: each job failed, then the worker lost; then a new one."""
        lost = [job_id for job_id, _, _ in self._queue]
        self._queue.clear()
        self.graphs.clear()
        self._pending.clear()
        self._running = False
        self.epoch += 1
        for job_id in lost:
            self.peer.deliver(fx.ComputeFailed(job_id, JobFailure("worker_died")))
        self.peer.deliver(fx.ComputeLost("killed"))

    def _run_next(self) -> None:
        self._running = bool(self._queue)
        if not self._queue:
            return
        job = self._queue[0][1]
        cost_s = {Forward: 1.0, Backward: 2.0, Step: 0.5}.get(type(job), 0.0) * self.duration_s
        epoch = self.epoch
        self.peer.after(cost_s, lambda: self._done(epoch, cost_s))

    def _done(self, epoch: int, cost_s: float) -> None:
        if epoch != self.epoch or not self.peer.is_alive:
            return
        if self.peer.is_frozen:
            self.peer.after(0.05, lambda: self._done(epoch, cost_s))
            return
        job_id, job, given = self._queue.pop(0)
        code = self.fail_with(job)
        if isinstance(job, Backward) and (job.micro_batch, job.attempt) not in self.graphs:
            assert self.epoch, "a graph that never was"
            code = "unknown_micro_batch"
        if code is None:
            event: fx.Event = fx.ComputeDone(job_id, self._result(job, given, cost_s))
        else:
            self.log.append(f"!{type(job).__name__}")
            event = fx.ComputeFailed(job_id, JobFailure(code))
        self._run_next()
        self.peer.deliver(event)

    def _result(self, job: Job, given: Bytes | None, cost_s: float) -> JobResult:
        stage = self.peer.shape.stage
        match job:
            case Forward(micro_batch, attempt, train):
                self.log.append(f"F{micro_batch.index}" if train else f"H{micro_batch.index}")
                return self._forward(job, given, cost_s)
            case Backward(micro_batch, attempt, _, accumulate):
                self.log.append(f"B{micro_batch.index}")
                made_from, origin = self.graphs.pop((micro_batch, attempt))
                assert given == Bytes("gradient", micro_batch, stage + 1, origin), "another's"
                self._count(micro_batch, accumulate)
                output = None
                if made_from is not None:
                    output = self._gradient_of(made_from)
                return JobResult(output=output, samples=2, tokens=16, busy_s=cost_s)
            case Forget(micro_batch, attempt):
                self.graphs.pop((micro_batch, attempt), None)
            case Step(step):
                self.log.append(f"S{step}")
                self.steps.append((step, tuple(self._pending)))
                self._pending.clear()
        return JobResult(busy_s=cost_s)

    def _forward(self, job: Forward, given: Bytes | None, cost_s: float) -> JobResult:
        stage, is_last = self.peer.shape.stage, self.peer.shape.is_last
        if stage:
            assert given is not None
            assert (given.kind, given.stage) == ("activation", stage - 1)
            assert given.micro_batch == job.micro_batch
        output = None
        if not is_last:
            origin = self.peer.next_origin()
            output = self.peer.slots.acquire(Bytes("activation", job.micro_batch, stage, origin))
            if job.train:
                self.graphs[job.micro_batch, job.attempt] = (given, origin)
        elif job.train:
            self._count(job.micro_batch, job.accumulate)
            output = self._gradient_of(given) if given is not None else None
        loss_sum = loss_of(job.micro_batch) if is_last else None
        return JobResult(output=output, samples=2, tokens=16, loss_sum=loss_sum, busy_s=cost_s)

    def _gradient_of(self, activation: Bytes) -> BufferRef:
        stage = self.peer.shape.stage
        return self.peer.slots.acquire(
            Bytes("gradient", activation.micro_batch, stage, activation.origin)
        )

    def _count(self, micro_batch: MicroBatchId, accumulate: bool) -> None:
        if accumulate:
            self.counted[micro_batch] += 1
            self._pending.append(micro_batch)
            assert self.counted[micro_batch] == 1, f"{micro_batch} counted twice at {self.peer.id}"


def loss_of(micro_batch: MicroBatchId) -> float:
    """Any function of the micro-batch alone: replicas are equal here."""
    return 2.0 * (3.0 + 0.01 * micro_batch.index)
