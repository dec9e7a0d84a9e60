"""What every `ComputeBackend` keeps, as one suite. Subclassed where a backend is at hand.

A subclass's module has a fixture `make_backend(config)`, whose backend runs a ToyWorker.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from backend_toys import PAYLOAD_BYTES_MAX, ToyWorker, forward, toy_config

from swarmd.buffers import SlotPool
from swarmd.compute_api import ComputeBackend
from swarmd.errors import ComputeError, ComputeLost, JobFailed
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, BufferRef, Forget, Job, JobResult, StageCall, Step

MakeBackend = Callable[..., ComputeBackend]


def filled(pool: SlotPool, body: bytes) -> BufferRef:
    ref = pool.acquire(len(body))
    assert ref is not None
    pool.view(ref)[:] = body
    return ref


async def run_and_release(backend: ComputeBackend, job: Job) -> JobResult:
    result = await backend.submit(job)
    if result.output is not None:
        backend.buffers.release(result.output)
    return result


class BackendContract:
    async def test_it_says_what_it_is(self, make_backend: MakeBackend) -> None:
        backend = make_backend()
        info = await backend.start()
        assert info["payload_bytes_max"] == PAYLOAD_BYTES_MAX
        assert info["pid"] == backend.statistics().pid
        await backend.aclose()
        assert backend.statistics().pid is None

    async def test_every_kind_of_job_gives_the_bytes_of_the_bare_worker(
        self, make_backend: MakeBackend
    ) -> None:
        backend = make_backend()
        await backend.start()
        pool, bare = backend.buffers, ToyWorker(toy_config())
        body, micro_batch = b"ids" * 100, MicroBatchId(0, 3)
        output = memoryview(bytearray(PAYLOAD_BYTES_MAX))

        there = await backend.submit(forward(0, train=True, input=filled(pool, body)))
        answer = bare.run(forward(0, train=True), [memoryview(body)], output)
        assert there.output is not None
        assert bytes(pool.view(there.output)) == bytes(output[: answer.output_bytes])

        back = await backend.submit(Backward(micro_batch, 0, there.output))
        sent = memoryview(bytes(output[: answer.output_bytes]))
        answer = bare.run(Backward(micro_batch, 0, there.output), [sent], output)
        assert back.output is not None
        assert bytes(pool.view(back.output)) == bytes(output[: answer.output_bytes])
        assert (back.samples, back.tokens, back.loss_sum) == (2, 8, 1.5)

        for job in (Forget(micro_batch, 0), Step(7)):
            assert (await backend.submit(job)).data == bare.run(job).result.data

    async def test_jobs_run_in_the_order_of_submission(self, make_backend: MakeBackend) -> None:
        one_by_one, at_once = [], {}
        backend = make_backend()
        await backend.start()
        for number in range(8):
            one_by_one.append((await run_and_release(backend, forward(number))).data["chain"])
        await backend.aclose()
        await backend.start()

        async def submit(number: int, task_status: Any) -> None:
            task_status.started()
            at_once[number] = (await run_and_release(backend, forward(number))).data["chain"]

        async with trio.open_nursery() as jobs:
            for number in range(8):
                await jobs.start(submit, number)
        assert [at_once[number] for number in range(8)] == one_by_one

    async def test_values_arrive_as_plain_ones(self, make_backend: MakeBackend) -> None:
        backend = make_backend()
        await backend.start()
        args = {"tuple": (1, 2.5), "bytes": b"\0\xff", "none": None, "map": {3: "three"}}
        result = await backend.submit(StageCall("echo", args))
        assert result.data == {**args, "tuple": [1, 2.5]}
        with pytest.raises(TypeError):
            await backend.submit(StageCall("echo", {"object": object()}))
        assert (await backend.submit(StageCall("echo", {"n": 1}))).data == {"n": 1}

    async def test_a_call_reads_several_slots_and_writes_one(
        self, make_backend: MakeBackend
    ) -> None:
        backend = make_backend()
        await backend.start()
        pool = backend.buffers
        inputs = (filled(pool, b"one "), filled(pool, b"two"))
        result = await backend.submit(StageCall("echo", {}, inputs, output_bytes=100))
        assert result.output is not None
        assert bytes(pool.view(result.output)) == b"one two"

    async def test_a_failed_job_leaves_the_worker_as_it_was(
        self, make_backend: MakeBackend
    ) -> None:
        backend = make_backend()
        await backend.start()
        ref = filled(backend.buffers, b"input")
        expected = {
            ("fail", "not_finite"): {"code": "not_finite", "text": "a loss"},
            ("raise", "compute_failed"): {"kind": "value", "text": "first line\nsecond"},
            ("raise", "out_of_memory"): {"kind": "memory", "text": ""},
        }
        for (name, code), args in expected.items():
            with pytest.raises(JobFailed) as caught:
                await backend.submit(StageCall(name, args, (ref,), output_bytes=10))
            assert caught.value.code == code
            assert "\n" not in caught.value.text
        with pytest.raises(JobFailed) as caught:
            await backend.submit(StageCall("echo", {}, output_bytes=1 << 30))
        assert caught.value.code == "too_large"
        backend.buffers.release(ref)
        assert backend.buffers.held_count == 0
        assert (await backend.submit(StageCall("echo", {"ok": True}))).data == {"ok": True}
        assert backend.statistics().jobs_failed >= 3

    async def test_no_slot_is_leaked_by_two_thousand_jobs(self, make_backend: MakeBackend) -> None:
        backend = make_backend()
        await backend.start()
        pool = backend.buffers
        received = filled(pool, b"x" * 4000)
        for number in range(1000):
            result = await run_and_release(backend, forward(number % 32, input=received))
            assert result.output is not None
            with pytest.raises(JobFailed):
                await backend.submit(StageCall("fail", {"code": "c", "text": ""}, output_bytes=9))
        pool.release(received)
        assert pool.held_count == 0
        assert backend.statistics().jobs_done == 1000

    async def test_an_injected_lack_of_memory_lowers_the_micro_batch_once(
        self, make_backend: MakeBackend
    ) -> None:
        backend = make_backend(toy_config(injection=("oom@step=1",)))
        await backend.start()
        lowered = [
            (await run_and_release(backend, forward(number))).data.get("micro_batch_lowered_to")
            for number in range(5)
        ]
        assert lowered == [None, None, 2, None, None]

    async def test_an_injected_lack_of_memory_at_one_sequence_fails_the_job(
        self, make_backend: MakeBackend
    ) -> None:
        backend = make_backend(toy_config(injection=("oom=1",), micro_batch_max=1))
        await backend.start()
        with pytest.raises(JobFailed) as caught:
            await backend.submit(forward(0))
        assert caught.value.code == "out_of_memory"
        assert backend.buffers.held_count == 0

    @pytest.mark.parametrize(
        ("kind", "code"), [("worker_exit", "worker_died"), ("device_lost", "device_lost")]
    )
    async def test_an_injected_loss_ends_the_worker_once(
        self, make_backend: MakeBackend, kind: str, code: str
    ) -> None:
        told: list[ComputeLost] = []
        backend = make_backend(toy_config(injection=(f"{kind}@step=1",)))
        backend.on_lost = told.append
        await backend.start()
        for number in range(2):
            await run_and_release(backend, forward(number))
        ref = filled(backend.buffers, b"input")
        with pytest.raises(ComputeLost) as caught:
            await backend.submit(forward(2, input=ref))
        assert caught.value.code == code
        assert [loss.code for loss in told] == [code]
        with pytest.raises(ComputeLost):
            await backend.submit(forward(3))
        backend.buffers.release(ref)
        assert backend.buffers.held_count == 0
        await backend.start()
        for number in range(6):
            await run_and_release(backend, forward(number))
        assert backend.statistics().restarts == 1

    async def test_injections_can_be_replaced_while_running(
        self, make_backend: MakeBackend
    ) -> None:
        backend = make_backend()
        await backend.start()
        with pytest.raises(JobFailed) as caught:
            await backend.submit(StageCall("inject", {"specs": ["oom=7"]}))
        assert caught.value.code == "malformed"
        await backend.submit(StageCall("inject", {"specs": ["worker_exit", "gossip_delay=1s"]}))
        with pytest.raises(ComputeLost):
            await backend.submit(forward(0))

    async def test_a_stage_that_cannot_be_loaded_says_why(self, make_backend: MakeBackend) -> None:
        backend = make_backend(toy_config(state_file=toy_config().cache_dir / "gone"))
        with pytest.raises(ComputeError) as caught:
            await backend.start()
        assert not isinstance(caught.value, ComputeLost)
        assert caught.value.code == "data_missing"
        backend.config = toy_config()
        await backend.start()

    async def test_a_stage_without_room_does_not_fit(
        self, make_backend: MakeBackend, tmp_path: Path
    ) -> None:
        state = tmp_path / "state"
        state.write_text("raise MemoryError('8 GiB wanted')")
        backend = make_backend(toy_config(state_file=state))
        with pytest.raises(ComputeError) as caught:
            await backend.start()
        assert caught.value.code == "model_does_not_fit"
        assert "8 GiB" in caught.value.text
