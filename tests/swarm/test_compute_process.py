"""The worker process and its supervision: nothing hangs, nothing leaks, nothing is left behind.

Most run a toy worker (no torch, up in a fraction of a second), so that what is tested is the
process. Times in assertions are promises of docs/cli.md section 14, far above what is measured.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from backend_contract import BackendContract, filled, run_and_release
from backend_toys import TESTS_FOLDER, TOY, forward, toy_config
from process_helpers import is_running, wait_for_file, wait_until_gone

from swarmd.buffers import SlotPool
from swarmd.compute_api import WorkerConfig
from swarmd.device_probe import probe_devices
from swarmd.devices import choose_devices
from swarmd.errors import ComputeError, ComputeLost
from swarmd.node.process_backend import ProcessBackend
from swarmd.node.spare_worker import SpareWorker
from swarmd.node.worker_life import WorkerLimits
from swarmd.protocols.jobs import Job, StageCall
from swarmd.worker_spawn import KEEPS_MEMORY, SpawnedWorker, spawn_worker

pytestmark = pytest.mark.process

QUICK = WorkerLimits(silence_s=3.0, stop_s=0.3, tick_s=0.05)
MakeBackend = Callable[..., ProcessBackend]


@pytest.fixture
async def make_backend() -> AsyncIterator[MakeBackend]:
    """A backend whose worker is a ToyWorker."""
    pool = SlotPool([(1 << 14, 8)])
    async with trio.open_nursery() as nursery:

        def make(config: WorkerConfig | None = None, **options: Any) -> ProcessBackend:
            return ProcessBackend(
                config or toy_config(),
                options.pop("pool", pool),
                nursery=options.pop("nursery", nursery),
                factory=options.pop("factory", TOY),
                environment={"PYTHONPATH": TESTS_FOLDER},
                **options,
            )

        yield make
        nursery.cancel_scope.cancel()
    pool.close()


class Submitted:
    """A job on its way. After the block: what came of it."""

    def __init__(self) -> None:
        self.loss: ComputeLost | None = None


@asynccontextmanager
async def submitted(
    backend: ProcessBackend, job: Job, mark: Path | None = None
) -> AsyncIterator[Submitted]:
    """The block runs while `job` does (once `mark` is there); the job must end in a loss."""
    outcome = Submitted()

    async def submit(task_status: Any) -> None:
        task_status.started()
        with pytest.raises(ComputeLost) as caught:
            await backend.submit(job)
        outcome.loss = caught.value

    with trio.fail_after(20):
        async with trio.open_nursery() as jobs:
            await jobs.start(submit)
            if mark is not None:
                await wait_for_file(mark)
            yield outcome


def hang(mark: Path, **changes: Any) -> StageCall:
    return StageCall("hang", {"mark": str(mark)}, **changes)


def pid_of(backend: ProcessBackend) -> int:
    pid = backend.statistics().pid
    assert pid is not None
    return pid


class TestProcessBackend(BackendContract):
    pass


# --------------------------------------------------------------------------------------------- loss


async def test_a_worker_killed_in_the_middle_of_a_job_is_lost_at_once(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    told: list[ComputeLost] = []
    backend = make_backend()
    backend.on_lost = told.append
    await backend.start()
    pid, ref = pid_of(backend), filled(backend.buffers, b"input")
    async with submitted(
        backend, hang(tmp_path / "mark", inputs=(ref,), output_bytes=100), tmp_path / "mark"
    ) as outcome:
        killed_s = trio.current_time()
        os.kill(pid, signal.SIGKILL)
    assert trio.current_time() - killed_s < WorkerLimits().silence_s / 2, "not by its silence"
    assert outcome.loss is not None
    assert outcome.loss.code == "worker_died"
    assert "SIGKILL" in outcome.loss.text
    assert told == [outcome.loss]
    assert not is_running(pid)
    backend.buffers.release(ref)
    assert backend.buffers.held_count == 0
    await backend.start()
    await run_and_release(backend, forward(0))
    assert backend.statistics().restarts == 1


async def test_an_idle_worker_that_dies_is_noticed_too(make_backend: MakeBackend) -> None:
    told = trio.Event()
    backend = make_backend()
    backend.on_lost = lambda loss: told.set()
    await backend.start()
    os.kill(pid_of(backend), signal.SIGKILL)
    with trio.fail_after(12):
        await told.wait()
    with pytest.raises(ComputeLost):
        await backend.submit(forward(0))


async def test_every_job_in_hand_fails_with_the_exit_status_and_the_last_words(
    make_backend: MakeBackend,
) -> None:
    backend = make_backend()
    await backend.start()
    await backend.submit(StageCall("say", {"text": "no such kernel\n"}))
    async with (
        submitted(backend, StageCall("exit", {"status": 3})) as first,
        submitted(backend, forward(1)) as second,
    ):
        pass
    assert first.loss is not None
    assert first.loss is second.loss
    assert "status 3: no such kernel" in first.loss.text
    assert backend.buffers.held_count == 0


async def test_a_stopped_worker_is_noticed_by_its_silence(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    backend = make_backend(limits=QUICK)
    await backend.start()
    pid = pid_of(backend)
    async with submitted(backend, hang(tmp_path / "mark"), tmp_path / "mark") as outcome:
        os.kill(pid, signal.SIGSTOP)
    assert outcome.loss is not None
    assert "silent" in outcome.loss.text
    assert not is_running(pid)


async def test_a_job_that_does_not_come_back_costs_the_worker_not_the_daemon(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    backend = make_backend(limits=WorkerLimits(job_timeout_s=0.3, tick_s=0.05))
    await backend.start()
    async with submitted(backend, hang(tmp_path / "mark")) as outcome:
        pass
    assert outcome.loss is not None
    assert "hang not done" in outcome.loss.text


async def submit_for_ever(backend: ProcessBackend) -> None:
    while True:
        with trio.move_on_after(0.001):
            await backend.submit(forward(0))


async def test_whoever_hears_of_a_loss_may_start_again_at_once(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    """Also while the lost worker is still being ended: jobs keep coming until the first fails."""
    backend = make_backend(limits=WorkerLimits(job_timeout_s=0.3, tick_s=0.05))
    for _ in range(3):
        await backend.start()
        async with submitted(backend, hang(tmp_path / "mark")):
            with pytest.raises(ComputeLost):
                await submit_for_ever(backend)
            await backend.start()
            await backend.aclose()
    assert backend.buffers.held_count == 0


async def test_a_hung_worker_may_be_injected(make_backend: MakeBackend) -> None:
    config = toy_config(injection=("wedge=compute@step=1",))
    backend = make_backend(config, limits=WorkerLimits(job_timeout_s=0.5, tick_s=0.05))
    await backend.start()
    await run_and_release(backend, forward(0))
    async with submitted(backend, forward(2)) as outcome:
        pass
    assert outcome.loss is not None
    assert "Forward not done" in outcome.loss.text


async def test_the_deadline_of_a_job_follows_what_its_kind_has_taken(
    make_backend: MakeBackend,
) -> None:
    limits = WorkerLimits(job_timeout_s_min=0.3, job_timeout_ratio=2.0, tick_s=0.05)
    backend = make_backend(limits=limits)
    await backend.start()
    await backend.submit(StageCall("sleep", {"s": 0.01}))
    async with submitted(backend, StageCall("sleep", {"s": 600})) as outcome:
        pass
    assert outcome.loss is not None
    assert "sleep not done" in outcome.loss.text


# -------------------------------------------------------------------------------------------- start


async def test_a_worker_that_does_not_load_is_given_up(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.write_text("import time; time.sleep(600)")
    limits = WorkerLimits(start_timeout_s=0.5, tick_s=0.05)
    backend = make_backend(toy_config(state_file=state), limits=limits)
    with pytest.raises(ComputeLost) as caught:
        await backend.start()
    assert "not loaded" in caught.value.text


async def test_a_worker_that_tells_of_progress_may_take_longer_to_load(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    """Packing a large corpus: each word gives it the whole time again."""
    state = tmp_path / "state"
    state.write_text(
        "import time; from swarmd.compute import loading\n"
        "for part in range(8): time.sleep(0.5); loading.say(f'part {part}')"
    )
    limits = WorkerLimits(start_timeout_s=3.0, tick_s=0.05)
    backend = make_backend(toy_config(state_file=state), limits=limits)
    await backend.start()


async def test_a_cancelled_start_leaves_no_process(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.write_text(
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'mark')!r}).touch()\ntime.sleep(600)"
    )
    backend = make_backend(toy_config(state_file=state))
    pids = []
    async with trio.open_nursery() as starting:
        starting.start_soon(backend.start)
        await wait_for_file(tmp_path / "mark")
        pids.append(pid_of(backend))
        starting.cancel_scope.cancel()
    assert not is_running(pids[0])
    backend.config = toy_config()
    await backend.start()


async def test_a_broken_installation_is_told_in_one_line_with_the_rest_in_the_log(
    make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "swarmd.worker")
    backend = make_backend(factory="no_such_module:Worker")
    with pytest.raises(ComputeError) as caught:
        await backend.start()
    assert caught.value.code == "compute_failed"
    assert "no_such_module" in caught.value.text
    assert "Traceback" in caplog.text


async def test_starting_and_closing_leaves_no_descriptor_behind(make_backend: MakeBackend) -> None:
    backend = make_backend()
    counts = []
    for _ in range(3):
        await backend.start()
        await run_and_release(backend, forward(0))
        await backend.aclose()
        gc.collect()  # what earlier tests left to it is not counted
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts)) == 1


# ---------------------------------------------------------------------------------------------- end


async def test_closing_is_bounded_even_in_the_middle_of_a_job(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    backend = make_backend(limits=QUICK)
    await backend.start()
    pid = pid_of(backend)
    async with submitted(backend, hang(tmp_path / "mark"), tmp_path / "mark") as outcome:
        asked_s = trio.current_time()
        await backend.aclose()
        assert trio.current_time() - asked_s < 10, "and the job would never have ended"
    assert outcome.loss is not None
    assert outcome.loss.code == "cancelled"
    assert not is_running(pid)
    await backend.aclose()


async def test_a_cancelled_nursery_takes_the_worker_with_it(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    told: list[ComputeLost] = []
    async with trio.open_nursery() as nursery:
        backend = make_backend(nursery=nursery)
        backend.on_lost = told.append
        await backend.start()
        pid = pid_of(backend)
        nursery.cancel_scope.cancel()
    assert not is_running(pid)
    assert told == []


async def test_signals_for_the_whole_group_do_not_end_the_worker(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    """At any time: right after the start, while it loads, and while it works."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    backend = make_backend()
    async with trio.open_nursery() as starting:
        starting.start_soon(backend.start)
        while backend.statistics().pid is None:
            await trio.lowlevel.checkpoint()
        for number in signals:
            os.kill(pid_of(backend), number)
    for number in signals:
        os.kill(pid_of(backend), number)
    await run_and_release(backend, forward(0))
    assert backend.statistics().restarts == 0


async def test_a_process_started_ahead_is_the_first_worker_and_the_next_is_another(
    make_backend: MakeBackend,
) -> None:
    spare = SpareWorker()
    backend = make_backend(spare=spare)
    async with trio.open_nursery() as nursery:
        environment = {"PYTHONPATH": TESTS_FOLDER}
        spare.start(nursery, backend.buffers.fd, environment, TOY.partition(":")[0])
        assert spare._spawned is not None
        pid = spare._spawned.process.pid
        await backend.start()
        assert pid_of(backend) == pid
        await run_and_release(backend, forward(0))
    await backend.aclose()
    await backend.start()
    assert pid_of(backend) != pid
    await backend.aclose()


@pytest.mark.parametrize("dies", [True, False])
async def test_a_process_started_ahead_is_gone_with_its_nursery(
    make_backend: MakeBackend, dies: bool
) -> None:
    """Whether or not somebody came for it when it had died."""
    spare = SpareWorker()
    backend = make_backend(spare=spare)
    async with trio.open_nursery() as nursery:
        spare.start(nursery, backend.buffers.fd, None, "no.such_module")
        assert spare._spawned is not None
        process = spare._spawned.process
        if dies:
            process.kill()
            await wait_until_gone(process.pid, 10)
            await backend.start()
            assert pid_of(backend) != process.pid
            await backend.aclose()
        nursery.cancel_scope.cancel()
    assert process.returncode is not None


async def end_by_lifeline(spawned: SpawnedWorker, pool: SlotPool) -> None:
    spawned.close_lifeline()
    await wait_until_gone(spawned.process.pid, 10)  # it first has to be up
    assert spawned.process.wait() == 0
    spawned.control.close()
    os.close(spawned.log_fd)
    pool.close()


async def test_the_lifeline_alone_ends_a_worker() -> None:
    pool = SlotPool([(4096, 1)])
    spawned = spawn_worker(pool.fd)
    await end_by_lifeline(spawned, pool)


async def test_a_worker_keeps_memory_for_its_next_step_unless_the_user_says_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trim, mmap = KEEPS_MEMORY
    monkeypatch.delenv(trim, raising=False)
    monkeypatch.setenv(mmap, "4096")
    pool = SlotPool([(4096, 1)])
    spawned = spawn_worker(pool.fd)
    told = Path(f"/proc/{spawned.process.pid}/environ")
    with trio.fail_after(60):
        while not told.read_bytes():  # the system is still putting the new program in place
            await trio.sleep(0.01)
    found = told.read_bytes().split(b"\0")
    assert f"{trim}={KEEPS_MEMORY[trim]}".encode() in found
    assert f"{mmap}=4096".encode() in found
    await end_by_lifeline(spawned, pool)


# -------------------------------------------------------------------------------------------- slots


async def test_a_cancelled_caller_leaves_the_job_running_and_its_slots_to_it(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    backend = make_backend()
    await backend.start()
    pool, ref = backend.buffers, filled(backend.buffers, b"input")
    args = {"mark": str(tmp_path / "mark"), "until": str(tmp_path / "until")}
    async with trio.open_nursery() as jobs:
        jobs.start_soon(backend.submit, StageCall("wait", args, (ref,), output_bytes=10))
        await wait_for_file(tmp_path / "mark")
        jobs.cancel_scope.cancel()
    pool.release(ref)
    assert pool.held_count == 2
    (tmp_path / "until").touch()
    assert (await backend.submit(StageCall("echo", {"n": 1}))).data == {"n": 1}
    assert pool.held_count == 0
    assert backend.statistics().jobs_done == 2


async def test_without_a_free_slot_jobs_wait_in_their_order(make_backend: MakeBackend) -> None:
    pool = SlotPool([(1 << 14, 2)])
    backend = make_backend(pool=pool)
    await backend.start()
    held = [pool.acquire(1), pool.acquire(1)]
    chains: dict[int, bytes] = {}

    async def submit(number: int, task_status: Any) -> None:
        task_status.started()
        chains[number] = (await run_and_release(backend, forward(number))).data["chain"]

    async with trio.open_nursery() as jobs:
        for number in range(3):
            await jobs.start(submit, number)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert chains == {}
        for ref in held:
            assert ref is not None
            pool.release(ref)
    in_order = make_backend()
    await in_order.start()
    for number in range(3):
        expected = await run_and_release(in_order, forward(number))
        assert chains[number] == expected.data["chain"]


# -------------------------------------------------------------------------------------- the process


async def test_what_a_worker_prints_is_logged_line_by_line(
    make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "swarmd.worker")
    backend = make_backend()
    await backend.start()
    await backend.submit(StageCall("say", {"text": "first\n\nsec"}))
    await backend.submit(StageCall("say", {"text": "ond\n" + "x" * 9000 + "\nlast"}))
    await backend.aclose()
    lines = [
        record.getMessage().split(" ", 2)[2]
        for record in caplog.records
        if record.getMessage().startswith("worker_output")
    ]
    assert lines[:2] == ["first", "second"]
    assert lines[-1] == "last"
    assert max(map(len, lines)) == 2000


async def test_a_worker_is_lean_and_offers_itself_first(make_backend: MakeBackend) -> None:
    backend = make_backend()
    await backend.start()
    data = (await backend.submit(StageCall("process", {}))).data
    assert not {"torch", "trio", "libp2p", "socket", "numpy"}.intersection(data["modules"])
    own = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
    assert data["oom_score"] == min(1000, own + 300)
    assert len(data["fds"]) == 3 + 4 + 2 + 1  # standard, ours, mmap's copies of two, the listing's


# -------------------------------------------------------------------------------------------- probe


def test_the_probe_reads_torch_and_the_vendors_tools(tmp_path: Path) -> None:
    """On tools of our own: one that answers, one that fails."""
    line = "0, NVIDIA H200, GPU-11111111-aaaa, 00000000:19:00.0, 143771, 143156"
    for name, text in (("nvidia-smi", f"echo '{line}'"), ("rocm-smi", "echo '{}'; exit 2")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    table = probe_devices({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert table.torch_version == importlib.metadata.version("torch")
    assert [device.name for device in table.system] == ["NVIDIA H200"]
    ((choice, _),) = choose_devices(table, device="cpu")
    assert choice.name == table.cpu_name
