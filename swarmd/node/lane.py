"""The one queue in front of a compute worker, and who starts that worker again.

Jobs go in as the driver meets them and come out as events: ComputeDone or ComputeFailed, once for
each. One task reads the queue, so the order is the queue's (the order in which trio starts tasks is
random). Two jobs are with the worker at a time: it finds the next one when it has done one, and a
third would only wait where nobody sees it. What should go first is the machine's decision.

When the worker is lost, everything that was asked of it depended on what it held: all jobs fail,
then comes ComputeLost, then a new worker is started, then ComputeReady. Three losses in ten minutes
are a crash loop: the lane says `on_gone` and leaves it at that, until it is told to load again.

`on_event` is called in the trio thread, must only take note (as the driver's `put` does) and must
not call back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from swarmd.compute_api import ComputeBackend, WorkerConfig
from swarmd.errors import ComputeError, ComputeLost, JobFailed
from swarmd.job_wire import inputs_of
from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import Job, JobFailure

log = logging.getLogger("swarmd.worker")

QUEUE_MAX = 1_024
"""Far above what credits let into a peer; more is refused as `cancelled`."""
SUBMITTED_MAX = 2
LOSSES_MAX = 3
LOSSES_WINDOW_S = 600.0
RESTART_PAUSE_S = (0.0, 1.0)
"""Before the first and the second restart within the window: both well inside worker_restart_s."""
RESTARTABLE = ("worker_died", "device_lost")
"""Another start may well succeed. Any other refusal to load would only repeat."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """Frozen and cheap, for status. Sums are since the start of the daemon."""

    state: str
    """idle (nothing to load), starting, ready, restarting, gone."""
    queued: int
    submitted: int
    jobs_done: int
    jobs_failed: int
    busy_s: float
    """Inside jobs, by the worker's clock."""
    cpu_s: float
    """Of the worker, inside jobs: below `busy_s` for each thread on a crowded machine."""
    idle_s: float
    """Ready, with nothing to do."""
    queue_wait_s: float
    """Sum over jobs, from being asked to being submitted."""
    restarts: int
    losses_in_window: int
    last_loss_code: str
    last_loss_text: str
    retry_in_s: float | None


@dataclass(slots=True, eq=False)
class _Asked:
    """A job in the lane. `event`: how it ended, until that is told."""

    job_id: int
    job: Job
    asked_s: float
    event: fx.ComputeDone | fx.ComputeFailed | None = None


class ComputeLane:
    """Owns `backend`: starts it, restarts it, closes it.

    on_gone: told (code, text) when there will be no worker without a new `load_nowait`: the stage
    cannot be loaded, or it was a crash loop. ComputeLost with that code came before.
    """

    def __init__(
        self,
        backend: ComputeBackend,
        on_event: Callable[[fx.Event], None],
        *,
        on_gone: Callable[[str, str], None],
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._backend = backend
        self._backend.on_lost = self._note_loss
        self._on_event = on_event
        self._on_gone = on_gone
        self._queue_max = queue_max
        self._queue: deque[_Asked] = deque()
        self._submitted: deque[_Asked] = deque()
        self._wanted: WorkerConfig | None = None
        self._is_unloading = False
        self._wake = trio.Event()
        self._start_scope = trio.CancelScope()
        self._state = "idle"
        self._loss: ComputeError | None = None
        self._last_loss: ComputeError | None = None
        self._losses_s: deque[float] = deque()
        self._free_since_s = 0.0
        self._idle_s = 0.0
        self._busy_s = 0.0
        self._cpu_s = 0.0
        self._queue_wait_s = 0.0
        self._jobs_done = 0
        self._jobs_failed = 0
        self._restarts = 0
        self._retry_at_s: float | None = None

    # ----------------------------------------------------------------------------------- the driver

    def load_nowait(self, config: WorkerConfig) -> None:
        """Have a worker with this config in place of the present one, whose jobs in hand are done
        and whose queue fails as cancelled. Ends as ComputeReady, or ComputeLost and on_gone."""
        self._wanted, self._is_unloading = config, False
        self._fail_queue("cancelled", "another stage is being loaded")
        self._start_scope.cancel()
        self._wake.set()

    def unload_nowait(self) -> None:
        """End the worker, so that the device is free, until `load_nowait`. Jobs fail, no loss is
        told."""
        self._is_unloading = True
        self._fail_queue("cancelled", "the stage is put away")
        self._start_scope.cancel()
        self._wake.set()

    def submit_nowait(self, job_id: int, job: Job) -> None:
        """Queue a job. Without a worker, or with a full queue, it fails at once."""
        is_ending = self._wanted is not None or self._is_unloading or self._loss is not None
        if self._state != "ready" or is_ending:
            loss = None if self._wanted else self._loss or self._last_loss
            code = loss.code if loss else "cancelled"
            self._fail(fx.ComputeFailed(job_id, JobFailure(code, "no worker is ready")))
        elif len(self._queue) >= self._queue_max:
            text = f"{self._queue_max} jobs are waiting"
            self._fail(fx.ComputeFailed(job_id, JobFailure("cancelled", text)))
        else:
            for ref in inputs_of(job):
                self._backend.buffers.retain(ref)
            self._queue.append(_Asked(job_id, job, trio.current_time()))
            self._wake.set()

    def statistics(self) -> LaneStatistics:
        now_s = trio.current_time()
        self._forget_old_losses(now_s)
        last = self._last_loss
        return LaneStatistics(
            state=self._state,
            queued=len(self._queue),
            submitted=len(self._submitted),
            jobs_done=self._jobs_done,
            jobs_failed=self._jobs_failed,
            busy_s=self._busy_s,
            cpu_s=self._cpu_s,
            idle_s=self._idle_s + (now_s - self._free_since_s if self._is_free else 0.0),
            queue_wait_s=self._queue_wait_s,
            restarts=self._restarts,
            losses_in_window=len(self._losses_s),
            last_loss_code=last.code if last else "",
            last_loss_text=last.text if last else "",
            retry_in_s=max(0.0, self._retry_at_s - now_s) if self._retry_at_s else None,
        )

    # ------------------------------------------------------------------------------------------ run

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; then the worker is closed, bounded, and slots are given back."""
        task_status.started()
        try:
            while True:
                while self._wanted is None:
                    await self._sleep()
                await self._backend.aclose()
                self._backend.config, self._wanted = self._wanted, None
                self._state = "starting"
                await self._keep_running()
                if self._is_unloading:
                    self._state = "idle"
                    await self._backend.aclose()
        finally:
            self._state = "gone"
            self._fail_queue("cancelled", "the daemon stops")
            with trio.CancelScope(shield=True):
                await self._backend.aclose()

    async def _keep_running(self) -> None:
        """Until another stage is wanted or there is no point in another start."""
        while self._wanted is None and not self._is_unloading:
            if await self._start():
                await self._work()
            loss, self._loss = self._loss, None
            if loss is None or self._is_unloading:
                return  # another stage is wanted, or none
            self._state = "restarting"
            if not await self._pause_after(loss):
                self._state = "gone"
                self._on_gone(loss.code, loss.text)
                return
            if self._wanted is None:
                self._restarts += 1

    async def _start(self) -> bool:
        """False: it failed (`_loss` says why), or another stage is wanted."""
        info = None
        with trio.CancelScope() as self._start_scope:
            try:
                info = await self._backend.start()
            except ComputeError as error:
                self._loss = error
                self._tell_loss(error)
        if info is None:
            return False
        self._state = "ready"
        self._free_since_s = trio.current_time()
        self._on_event(fx.ComputeReady(info))
        return True

    async def _work(self) -> None:
        """Hand jobs over, in order, until the worker is lost or another stage is wanted."""
        async with trio.open_nursery() as jobs:
            while self._loss is None and self._wanted is None and not self._is_unloading:
                if self._queue and len(self._submitted) < SUBMITTED_MAX:
                    await jobs.start(self._run_job, self._queue.popleft())
                else:
                    await self._sleep()
        if self._is_free:
            self._idle_s += trio.current_time() - self._free_since_s
        self._state = "restarting"
        if self._loss is not None:
            self._tell_loss(self._loss)

    async def _run_job(self, asked: _Asked, *, task_status: Any) -> None:
        self._note_submitted(asked)
        try:
            task_status.started()  # does not yield: this job takes its place before the next starts
            result = await self._backend.submit(asked.job)
            asked.event = fx.ComputeDone(asked.job_id, result)
        except JobFailed as error:
            asked.event = _failed(asked.job_id, error)
        except ComputeLost as error:
            self._loss = self._loss or error
            asked.event = _failed(asked.job_id, error)
        finally:
            self._note_ended(asked)

    # ----------------------------------------------------------------------------------------- loss

    def _note_loss(self, loss: ComputeLost) -> None:
        self._loss = self._loss or loss
        self._wake.set()

    def _tell_loss(self, loss: ComputeError) -> None:
        self._last_loss = loss
        self._losses_s.append(trio.current_time())
        self._fail_queue(loss.code, loss.text)
        self._on_event(fx.ComputeLost(loss.text, loss.code))

    async def _pause_after(self, loss: ComputeError) -> bool:
        """Wait before the next start. False: there should be none."""
        now_s = trio.current_time()
        self._forget_old_losses(now_s)
        if loss.code not in RESTARTABLE or len(self._losses_s) >= LOSSES_MAX:
            return False
        pause_s = RESTART_PAUSE_S[len(self._losses_s) - 1]
        log.info(
            "worker_restarts code=%s loss=%d pause_s=%.1f", loss.code, len(self._losses_s), pause_s
        )
        self._retry_at_s = now_s + pause_s
        with trio.move_on_at(self._retry_at_s):
            while self._wanted is None and not self._is_unloading:
                await self._sleep()
        self._retry_at_s = None
        return True

    def _forget_old_losses(self, now_s: float) -> None:
        while self._losses_s and now_s - self._losses_s[0] > LOSSES_WINDOW_S:
            self._losses_s.popleft()

    # --------------------------------------------------------------------------------------- pieces

    async def _sleep(self) -> None:
        """Until something has happened that the loops look at."""
        await self._wake.wait()
        self._wake = trio.Event()

    @property
    def _is_free(self) -> bool:
        return self._state == "ready" and not self._submitted

    def _note_submitted(self, asked: _Asked) -> None:
        now_s = trio.current_time()
        self._queue_wait_s += now_s - asked.asked_s
        if not self._submitted:
            self._idle_s += now_s - self._free_since_s
        self._submitted.append(asked)

    def _note_ended(self, asked: _Asked) -> None:
        """Tell of it, in the jobs' order: trio may wake two tasks in any."""
        if asked.event is None:  # cancelled
            self._submitted.remove(asked)
        while self._submitted and self._submitted[0].event is not None:
            event = self._submitted.popleft().event
            if isinstance(event, fx.ComputeDone):
                self._jobs_done += 1
                self._busy_s += event.result.busy_s
                self._cpu_s += event.result.cpu_s
                self._on_event(event)
            elif event is not None:
                self._fail(event)
        self._free_since_s = trio.current_time()
        self._release_inputs(asked)
        self._wake.set()

    def _fail_queue(self, code: str, text: str) -> None:
        while self._queue:
            asked = self._queue.popleft()
            self._release_inputs(asked)
            self._fail(fx.ComputeFailed(asked.job_id, JobFailure(code, text)))

    def _fail(self, event: fx.ComputeFailed) -> None:
        self._jobs_failed += 1
        self._on_event(event)

    def _release_inputs(self, asked: _Asked) -> None:
        for ref in inputs_of(asked.job):
            self._backend.buffers.release(ref)


def _failed(job_id: int, error: ComputeError) -> fx.ComputeFailed:
    return fx.ComputeFailed(job_id, JobFailure(error.code, error.text))
