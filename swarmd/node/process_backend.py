"""The compute worker in a process of its own, seen from the daemon. torch is never imported here.

Jobs wait in one queue. The sender lends each its output slot and hands it over; the worker does
them one after the other. A pool without a free slot holds the whole queue back, so the order stays.
When the worker is lost, for whatever reason (worker_life.py), every job it had and every one that
waited fails with that reason, and their slots go back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from swarmd.buffers import SlotPool
from swarmd.compute_api import ComputeStatistics, WorkerConfig
from swarmd.errors import ComputeError, ComputeLost, JobFailed
from swarmd.job_wire import (
    config_to_plain,
    inputs_of,
    output_bytes_of,
    pack_job,
    result_from_plain,
)
from swarmd.node.spare_worker import SpareWorker
from swarmd.node.worker_life import WorkerLife, WorkerLimits
from swarmd.protocols.jobs import BufferRef, Job, JobResult, StageCall
from swarmd.worker_spawn import spawn_worker

log = logging.getLogger("swarmd.worker")

STAGE_FACTORY = "swarmd.compute.stage_loader:load_stage_worker"
RESTARTABLE = ("worker_died", "device_lost")
"""Losses after which another start may well succeed. Every other refusal to load would repeat."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One submitted job until it ended."""

    job: Job
    body: bytes
    output_bytes: int
    lent: BufferRef | None = None
    """Its output slot."""
    running_s: float = 0.0
    outcome: JobResult | ComputeError | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    is_abandoned: bool = False
    """Whoever asked no longer waits."""

    @property
    def kind(self) -> str:
        return self.job.name if isinstance(self.job, StageCall) else type(self.job).__name__


class ProcessBackend:
    """A `ComputeBackend`. Its tasks run in `nursery`; cancelling that kills the worker.

    factory: "module:function" that builds the worker inside the process.
    spare: a process for the first start that was started ahead, if it still lives.
    environment: added to ours, for the worker only (devices.py may ask for it).
    """

    def __init__(
        self,
        config: WorkerConfig,
        buffers: SlotPool,
        *,
        nursery: trio.Nursery,
        limits: WorkerLimits | None = None,
        factory: str = STAGE_FACTORY,
        environment: Mapping[str, str] | None = None,
        spare: SpareWorker | None = None,
    ) -> None:
        self.config = config
        self.buffers = buffers
        self.on_lost: Callable[[ComputeLost], None] | None = None
        self._nursery = nursery
        self._limits = limits or WorkerLimits()
        self._factory = factory
        self._environment = dict(environment or {})
        self._spare = spare or SpareWorker()
        self._life: WorkerLife | None = None
        self._loaded = trio.Event()
        """Set when it is loaded, and when it is gone."""
        self._gone = trio.Event()
        self._info: dict[str, Any] = {}
        self._is_stopping = False
        self._waiting: deque[_Flight] = deque()
        self._sent: dict[int, _Flight] = {}
        """By number, in the order of sending: the first one is running."""
        self._wake = trio.Event()
        self._lives = 0
        self._numbers = 0
        self._slowest_s: dict[str, float] = {}
        self._jobs_done = 0
        self._jobs_failed = 0
        self._busy_s = 0.0
        self._cpu_s = 0.0

    # ------------------------------------------------------------------------------ ComputeBackend

    async def start(self) -> dict[str, Any]:
        """See ComputeBackend. Cancelling it kills the worker."""
        assert self._life is None, "the worker is running"
        try:
            spawned = self._spare.take() or spawn_worker(self.buffers.fd, self._environment)
        except OSError as error:
            raise ComputeLost("worker_died", f"cannot be started: {error}") from error
        life = self._life = WorkerLife(spawned, self._limits)
        self._lives += 1
        self._is_stopping = False
        self._loaded = trio.Event()
        self._gone = trio.Event()
        self._nursery.start_soon(self._live, life)
        try:
            await self._loaded.wait()
        except trio.Cancelled:
            await self._end(life, ask=False)
            raise
        if life.is_loaded:
            self._check_slots()
            return dict(self._info)
        assert life.loss is not None, "a worker is gone for a reason"
        if life.loss.code in RESTARTABLE:
            raise life.loss
        raise ComputeError(life.loss.code, life.loss.text)

    async def submit(self, job: Job) -> JobResult:
        """See ComputeBackend."""
        if self._life is None or not self._life.is_loaded or self._is_stopping:
            raise ComputeLost("worker_died", "no worker takes jobs now")
        # One that is being ended takes them too, and fails them once it is reaped: whoever hears of
        # a loss may start again at once.
        output_bytes = output_bytes_of(job, self._info["payload_bytes_max"])
        if output_bytes > self.buffers.slot_bytes_max:
            raise JobFailed("too_large", f"no slot holds an output of {output_bytes} bytes")
        flight = _Flight(job, pack_job(job), output_bytes)
        for ref in inputs_of(job):
            self.buffers.retain(ref)
        self._waiting.append(flight)
        self._wake.set()
        try:
            await flight.ended.wait()
        except trio.Cancelled:
            flight.is_abandoned = True
            self._drop_if_abandoned(flight)
            raise
        if isinstance(flight.outcome, ComputeError):
            raise flight.outcome
        assert flight.outcome is not None, "an ended job has an outcome"
        return flight.outcome

    def statistics(self) -> ComputeStatistics:
        life = self._life
        return ComputeStatistics(
            pid=life.pid if life else None,
            jobs_done=self._jobs_done,
            jobs_failed=self._jobs_failed,
            busy_s=self._busy_s,
            cpu_s=self._cpu_s,
            queue_length=len(self._waiting) + len(self._sent),
            restarts=max(0, self._lives - 1),
            started_s_ago=trio.current_time() - life.started_s if life else None,
            info=dict(self._info) if life and life.is_loaded else {},
        )

    async def aclose(self) -> None:
        """Asks, waits `stop_s`, kills. What is not done by then fails as cancelled. Bounded."""
        if self._life is not None:
            await self._end(self._life, ask=True)

    # ------------------------------------------------------------------------------------ one life

    async def _live(self, life: WorkerLife) -> None:
        self.buffers.call_when_freed(self._wake_if_waiting)
        try:
            await life.run(speak=self._speak, take=self._take, overdue=self._overdue)
        finally:
            self.buffers.stop_calling(self._wake_if_waiting)
            self._settle(life)

    async def _speak(self) -> None:
        """Sends the config, then jobs in their order, then the wish that it stop."""
        life = self._life
        assert life is not None, "it is spoken to while it lives"
        load = {
            "config": config_to_plain(self.config),
            "slot_classes": [list(one) for one in self.buffers.classes],
            "life": self._lives - 1,
            "factory": self._factory,
        }
        await life.send(["load", load])
        while not self._is_stopping:
            if self._waiting and self._lend_output(self._waiting[0]):
                flight = self._waiting.popleft()
                self._numbers += 1
                self._sent[self._numbers] = flight
                slot = flight.lent.slot if flight.lent else None
                await life.send(["job", self._numbers, flight.body, slot])
            else:
                await self._wake.wait()
                self._wake = trio.Event()
        await life.send(["stop"])

    def _lend_output(self, flight: _Flight) -> bool:
        """Give a job the slot it writes to. False: none is free yet."""
        if flight.output_bytes == 0:
            return True
        flight.lent = self.buffers.acquire_output(flight.output_bytes)
        return flight.lent is not None

    def _wake_if_waiting(self) -> None:
        if self._waiting:
            self._wake.set()

    def _take(self, message: list[Any]) -> None:
        match message:
            case ["ready", info]:
                assert self._life is not None, "it lives, since it speaks"
                self._info = info
                self._life.is_loaded = True
                self._loaded.set()
            case ["done", number, plain, output_bytes]:
                flight = self._sent.pop(number)
                output = None
                if flight.lent is not None and output_bytes:
                    output = self.buffers.resized(flight.lent, output_bytes)
                result = result_from_plain(plain, output)
                self._learn_from(flight, result)
                self._finish(flight, result)
            case ["failed", number, code, text]:
                self._finish(self._sent.pop(number), JobFailed(code, text))
            case _:
                raise AssertionError(f"the worker said {message!r:.200}")

    def _learn_from(self, flight: _Flight, result: JobResult) -> None:
        self._busy_s += result.busy_s
        self._cpu_s += result.cpu_s
        slowest_s = self._slowest_s.get(flight.kind, 0.0)
        self._slowest_s[flight.kind] = max(slowest_s, result.busy_s)
        lowered_to = result.data.get("micro_batch_lowered_to")
        if lowered_to:  # what did not fit once will not fit after a restart
            self.config = replace(self.config, micro_batch_max=lowered_to)

    def _overdue(self, passed_s: float) -> str | None:
        """A job over its deadline: something in the worker does not come back."""
        for flight in self._sent.values():
            flight.running_s += passed_s
            if flight.running_s > self._deadline_s(flight.kind):
                return f"{flight.kind} not done after {flight.running_s:.1f} s"
            break  # only the first one runs
        return None

    def _deadline_s(self, kind: str) -> float:
        limits = self._limits
        slowest_s = self._slowest_s.get(kind)
        if slowest_s is None:
            return limits.job_timeout_s
        usual_s = max(limits.job_timeout_s_min, limits.job_timeout_ratio * slowest_s)
        return min(limits.job_timeout_s, usual_s)

    # ----------------------------------------------------------------------------------------- end

    async def _end(self, life: WorkerLife, *, ask: bool) -> None:
        self._is_stopping = True
        life.loss = life.loss or ComputeLost("cancelled", "the worker was stopped")
        with trio.CancelScope(shield=True):
            if ask:
                self._wake.set()
                with trio.move_on_after(self._limits.stop_s):
                    await self._gone.wait()
                    return
            life.kill("cancelled", "the worker was stopped")
            await self._gone.wait()

    def _settle(self, life: WorkerLife) -> None:
        """The process is reaped: fail what it had, free what it held, tell."""
        assert life.loss is not None, "a life ends for a reason"
        flights = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for flight in flights:
            if not life.is_reaped:
                flight.lent = None  # it might still write there: that slot is given up
            self._finish(flight, life.loss)
        self._life = None
        self._loaded.set()
        self._gone.set()
        if life.loss.code != "cancelled":
            log.warning("worker_lost pid=%d code=%s %s", life.pid, life.loss.code, life.loss.text)
            if life.is_loaded and self.on_lost is not None:
                self.on_lost(life.loss)

    def _finish(self, flight: _Flight, outcome: JobResult | ComputeError) -> None:
        flight.outcome = outcome
        output = outcome.output if isinstance(outcome, JobResult) else None
        if flight.lent is not None and output is None:
            self.buffers.release(flight.lent)
        for ref in inputs_of(flight.job):
            self.buffers.release(ref)
        if isinstance(outcome, JobResult):
            self._jobs_done += 1
        else:
            self._jobs_failed += 1
        self._drop_if_abandoned(flight)
        flight.ended.set()

    def _drop_if_abandoned(self, flight: _Flight) -> None:
        outcome = flight.outcome
        if flight.is_abandoned and isinstance(outcome, JobResult) and outcome.output is not None:
            self.buffers.release(outcome.output)

    def _check_slots(self) -> None:
        needed, there_is = self._info["payload_bytes_max"], self.buffers.slot_bytes_max
        assert needed <= there_is, f"the stage sends {needed} bytes, slots hold {there_is}"
