"""The lane: order, events once for each job, restarts within a budget. On a backend that obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from backend_toys import toy_config
from trio.abc import Clock
from trio.testing import wait_all_tasks_blocked

from swarmd.buffers import SlotPool
from swarmd.compute_api import ComputeStatistics, WorkerConfig
from swarmd.errors import ComputeError, ComputeLost, JobFailed
from swarmd.node.lane import LOSSES_WINDOW_S, ComputeLane
from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import BufferRef, Job, JobResult, StageCall


@dataclass
class InHand:
    ended: trio.Event = field(default_factory=trio.Event)
    outcome: JobResult | ComputeError | None = None


class ObedientBackend:
    """Does with each job what the test says, when it says so. Keeps the rules of ComputeBackend."""

    def __init__(self) -> None:
        self.config = toy_config()
        self.buffers = SlotPool([(4096, 4)])
        self.on_lost: Any = None
        self.in_hand: list[InHand] = []
        self.submitted: list[Job] = []
        self.starts: list[tuple[float, WorkerConfig]] = []
        self.start_errors: list[ComputeError] = []
        self.is_running = False
        self.start_may_end = trio.Event()
        self.start_may_end.set()

    async def start(self) -> dict[str, Any]:
        assert not self.is_running
        self.starts.append((trio.current_time(), self.config))
        await self.start_may_end.wait()
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.is_running = True
        return {"stage": self.config.stage}

    async def submit(self, job: Job) -> JobResult:
        assert self.is_running
        self.submitted.append(job)
        mine = InHand()
        self.in_hand.append(mine)
        await mine.ended.wait()
        if isinstance(mine.outcome, ComputeError):
            raise mine.outcome
        return mine.outcome or JobResult(busy_s=0.5)

    def end(self, outcome: JobResult | ComputeError | None = None) -> None:
        """The first job in hand ends so."""
        first = self.in_hand.pop(0)
        first.outcome = outcome
        first.ended.set()

    def lose(self, code: str = "worker_died") -> None:
        loss = ComputeLost(code, "it was the test")
        self.is_running = False
        while self.in_hand:
            self.end(loss)
        self.on_lost(loss)

    def statistics(self) -> ComputeStatistics:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.is_running = False
        while self.in_hand:
            self.end(ComputeLost("cancelled", "closed"))


class Scene:
    def __init__(self, **options: Any) -> None:
        self.backend = ObedientBackend()
        self.events: list[fx.Event] = []
        self.gone: list[str] = []
        self.lane = ComputeLane(
            self.backend,
            self.events.append,
            on_gone=lambda code, text: self.gone.append(code),
            **options,
        )

    async def load(self, **changes: Any) -> None:
        self.lane.load_nowait(toy_config(**changes))
        await wait_all_tasks_blocked()

    def ask(self, *job_ids: int) -> None:
        for job_id in job_ids:
            self.lane.submit_nowait(job_id, call(job_id))

    def take_events(self) -> list[str]:
        """As short texts, in order; they are gone then."""
        texts = [short(event) for event in self.events]
        self.events.clear()
        return texts


def call(job_id: int, *inputs: BufferRef) -> StageCall:
    return StageCall(f"job{job_id}", {}, inputs)


def short(event: fx.Event) -> str:
    match event:
        case fx.ComputeDone(job_id):
            return f"done {job_id}"
        case fx.ComputeFailed(job_id, failure):
            return f"failed {job_id} {failure.code}"
        case fx.ComputeLost():
            return f"lost {event.code}"
        case fx.ComputeReady(info):
            return f"ready {info['stage']}"
    raise AssertionError(event)


@pytest.fixture
async def scene(nursery: trio.Nursery) -> AsyncIterator[Scene]:
    scene = Scene()
    await nursery.start(scene.lane.run)
    yield scene
    nursery.cancel_scope.cancel()


async def test_jobs_go_one_after_the_other_with_two_in_hand(scene: Scene) -> None:
    await scene.load()
    scene.ask(1, 2, 3, 4)
    await wait_all_tasks_blocked()
    assert [job.name for job in scene.backend.submitted] == ["job1", "job2"]
    scene.backend.end()
    await wait_all_tasks_blocked()
    assert [job.name for job in scene.backend.submitted] == ["job1", "job2", "job3"]
    assert scene.take_events() == ["ready 1", "done 1"]
    statistics = scene.lane.statistics()
    assert (statistics.queued, statistics.submitted, statistics.jobs_done) == (1, 2, 1)


async def test_events_keep_the_order_of_the_jobs_even_when_they_end_together(
    scene: Scene,
) -> None:
    await scene.load()
    for first in range(0, 40, 2):
        scene.ask(first, first + 1)
        await wait_all_tasks_blocked()
        scene.backend.end()
        scene.backend.end(JobFailed("not_finite"))
        await wait_all_tasks_blocked()
    expected = [
        text for n in range(0, 40, 2) for text in (f"done {n}", f"failed {n + 1} not_finite")
    ]
    assert scene.take_events()[1:] == expected


async def test_a_failed_job_does_not_disturb_the_next(scene: Scene) -> None:
    await scene.load()
    scene.ask(1, 2)
    await wait_all_tasks_blocked()
    scene.backend.end(JobFailed("malformed"))
    scene.backend.end()
    await wait_all_tasks_blocked()
    assert scene.take_events() == ["ready 1", "failed 1 malformed", "done 2"]


async def test_a_loss_fails_everything_asked_then_says_so_then_starts_again(
    scene: Scene,
) -> None:
    await scene.load()
    scene.ask(1, 2, 3, 4)
    await wait_all_tasks_blocked()
    scene.backend.lose("device_lost")
    scene.ask(5)
    await wait_all_tasks_blocked()
    events = scene.take_events()
    assert sorted(events[1:6]) == [f"failed {n} device_lost" for n in range(1, 6)]
    assert events[6:] == ["lost device_lost", "ready 1"]
    assert scene.lane.statistics().restarts == 1
    assert scene.lane.statistics().last_loss_code == "device_lost"


async def test_an_idle_loss_is_told_too(scene: Scene) -> None:
    await scene.load()
    scene.backend.lose()
    await wait_all_tasks_blocked()
    assert scene.take_events() == ["ready 1", "lost worker_died", "ready 1"]


async def test_two_restarts_are_quick_and_the_third_loss_in_ten_minutes_is_the_last(
    scene: Scene, autojump_clock: Clock
) -> None:
    await scene.load()
    for pause_s in (0.0, 1.0):
        lost_s = trio.current_time()
        scene.backend.lose()
        await trio.sleep(4.9)
        assert scene.backend.starts[-1][0] == pytest.approx(lost_s + pause_s)
        assert scene.backend.is_running
    scene.backend.lose()
    await trio.sleep(1000)
    assert len(scene.backend.starts) == 3
    assert scene.gone == ["worker_died"]
    assert scene.lane.statistics().state == "gone"
    scene.take_events()
    scene.ask(9)
    assert scene.take_events() == ["failed 9 worker_died"]


async def test_losses_long_ago_do_not_count(scene: Scene, autojump_clock: Clock) -> None:
    await scene.load()
    for _ in range(6):
        scene.backend.lose()
        await trio.sleep(LOSSES_WINDOW_S / 2 + 1)
    assert scene.gone == []
    assert scene.lane.statistics().restarts == 6


async def test_the_pause_before_a_restart_can_be_seen(scene: Scene, autojump_clock: Clock) -> None:
    await scene.load()
    scene.backend.lose()
    await wait_all_tasks_blocked()
    scene.backend.lose()
    await wait_all_tasks_blocked()
    statistics = scene.lane.statistics()
    assert (statistics.state, statistics.retry_in_s) == ("restarting", 1.0)
    assert statistics.losses_in_window == 2


async def test_a_stage_that_does_not_fit_is_not_tried_again(
    scene: Scene, autojump_clock: Clock
) -> None:
    scene.backend.start_errors = [ComputeError("model_does_not_fit", "needs 9 GiB")]
    await scene.load()
    await trio.sleep(100)
    assert len(scene.backend.starts) == 1
    assert scene.take_events() == ["lost model_does_not_fit"]
    assert scene.gone == ["model_does_not_fit"]
    await scene.load(stage=0)
    assert scene.take_events() == ["ready 0"]


async def test_a_worker_that_dies_while_it_loads_is_started_again(scene: Scene) -> None:
    scene.backend.start_errors = [ComputeLost("worker_died", "killed by SIGKILL")]
    await scene.load()
    assert scene.take_events() == ["lost worker_died", "ready 1"]


async def test_a_restart_takes_the_newest_config(scene: Scene) -> None:
    await scene.load()
    scene.backend.config = toy_config(stage=0)
    scene.backend.lose()
    await wait_all_tasks_blocked()
    assert scene.take_events()[-1] == "ready 0"


async def test_another_stage_replaces_the_worker_after_the_jobs_in_hand(scene: Scene) -> None:
    await scene.load()
    scene.ask(1, 2, 3)
    await wait_all_tasks_blocked()
    scene.lane.load_nowait(toy_config(stage=0))
    scene.ask(4)
    await wait_all_tasks_blocked()
    assert scene.take_events() == ["ready 1", "failed 3 cancelled", "failed 4 cancelled"]
    scene.backend.end()
    scene.backend.end()
    await wait_all_tasks_blocked()
    assert scene.take_events() == ["done 1", "done 2", "ready 0"]
    assert scene.gone == []
    assert scene.lane.statistics().restarts == 0


async def test_an_unloaded_stage_frees_the_worker_until_one_is_loaded_again(scene: Scene) -> None:
    await scene.load()
    scene.lane.submit_nowait(1, call(1))
    await wait_all_tasks_blocked()
    scene.lane.unload_nowait()
    scene.lane.submit_nowait(2, call(2))
    scene.backend.end()
    await wait_all_tasks_blocked()
    assert (scene.backend.is_running, scene.lane.statistics().state) == (False, "idle")
    assert [short(event) for event in scene.events[-2:]] == ["failed 2 cancelled", "done 1"]
    assert scene.gone == []
    scene.lane.load_nowait(toy_config())
    await wait_all_tasks_blocked()
    assert (scene.backend.is_running, scene.lane.statistics().state) == (True, "ready")
    assert isinstance(scene.events[-1], fx.ComputeReady)


async def test_another_stage_does_not_wait_for_a_start_that_is_not_wanted_any_more(
    scene: Scene,
) -> None:
    scene.backend.start_may_end = trio.Event()
    await scene.load()
    assert scene.lane.statistics().state == "starting"
    scene.backend.start_may_end = trio.Event()  # the first start never ends
    scene.backend.start_may_end.set()
    scene.lane.load_nowait(toy_config(stage=0))
    await wait_all_tasks_blocked()
    assert scene.take_events() == ["ready 0"]
    assert [config.stage for _, config in scene.backend.starts] == [1, 0]


async def test_jobs_before_a_worker_or_over_the_bound_fail_at_once(nursery: trio.Nursery) -> None:
    scene = Scene(queue_max=2)
    await nursery.start(scene.lane.run)
    scene.ask(1)
    assert scene.take_events() == ["failed 1 cancelled"]
    await scene.load()
    scene.ask(2, 3)
    await wait_all_tasks_blocked()
    scene.ask(4, 5, 6)
    assert scene.take_events() == ["ready 1", "failed 6 cancelled"]
    nursery.cancel_scope.cancel()


async def test_slots_are_held_from_the_asking_to_the_end_whatever_it_is() -> None:
    scene = Scene()
    pool = scene.backend.buffers
    async with trio.open_nursery() as nursery:
        await nursery.start(scene.lane.run)
        await scene.load()
        for job_id in range(4):
            ref = pool.acquire(10)
            assert ref is not None
            scene.lane.submit_nowait(job_id, call(job_id, ref))
            pool.release(ref)
        assert pool.held_count == 4
        await wait_all_tasks_blocked()
        scene.backend.end()
        await wait_all_tasks_blocked()
        assert pool.held_count == 3
        nursery.cancel_scope.cancel()
    assert pool.held_count == 0
    assert not scene.backend.is_running
    assert "failed 3 cancelled" in scene.take_events()


async def test_time_is_told_apart_into_busy_idle_and_queued(
    scene: Scene, autojump_clock: Clock
) -> None:
    await scene.load()
    await trio.sleep(3)
    scene.ask(1, 2, 3)
    await wait_all_tasks_blocked()
    await trio.sleep(2)
    for _ in range(3):
        scene.backend.end()
        await wait_all_tasks_blocked()
    await trio.sleep(4)
    statistics = scene.lane.statistics()
    assert statistics.idle_s == pytest.approx(7)
    assert statistics.queue_wait_s == pytest.approx(2)
    assert statistics.busy_s == pytest.approx(1.5)
