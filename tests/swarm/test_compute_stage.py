"""The real stage through both backends: a small pipeline of two, bit for bit the same.

One thread, CPU. The slots of one stage's output are the next one's input, as in a peer that holds
both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import trio
from compute_helpers import micro_batches_of, small_run

from swarmd.buffers import SlotPool
from swarmd.compute.inline_backend import InlineBackend
from swarmd.compute_api import ComputeBackend, WorkerConfig
from swarmd.node.process_backend import ProcessBackend
from swarmd.protocols.jobs import Backward, Forward, StageCall, Step

pytestmark = pytest.mark.process

torch.set_num_threads(1)

SMALL = small_run(2, wire="int8")
RUN = dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, vocab_size=256))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def config_of(stage: int, cache_dir: Path, *injection: str) -> WorkerConfig:
    return WorkerConfig(run=RUN, stage=stage, threads=1, cache_dir=cache_dir, injection=injection)


async def train(first: ComputeBackend, last: ComputeBackend, steps: int) -> list[object]:
    """Losses, and at the end the digest of each stage's weights."""
    pool = first.buffers
    seen: list[object] = []
    for step in range(steps):
        for micro_batch in micro_batches_of(RUN, step):
            sent = await first.submit(Forward(micro_batch, 0, True))
            assert sent.output is not None
            answer = await last.submit(Forward(micro_batch, 0, True, sent.output))
            assert answer.output is not None
            pool.release(sent.output)
            await first.submit(Backward(micro_batch, 0, answer.output))
            pool.release(answer.output)
            seen.append(answer.loss_sum)
        for backend in (first, last):
            await backend.submit(Step(step))
    for backend in (first, last):
        seen.append((await backend.submit(StageCall("digest"))).data["digest"])
    assert pool.held_count == 0
    return seen


async def test_both_backends_train_the_same_weights_bit_for_bit(
    nursery: trio.Nursery, cache_dir: Path
) -> None:
    pool = SlotPool([(1 << 16, 8)])
    makers: list[Callable[[WorkerConfig], ComputeBackend]] = [
        lambda config: InlineBackend(config, pool),
        lambda config: ProcessBackend(config, pool, nursery=nursery),
    ]
    seen = []
    for make in makers:
        first, last = (make(config_of(stage, cache_dir)) for stage in range(2))
        infos = [await first.start(), await last.start()]
        assert infos[0]["data_hash"]
        assert infos[1]["data_hash"] is None
        seen.append(await train(first, last, steps=2))
        for backend in (first, last):
            await backend.aclose()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * 3 + 2


async def test_a_stage_short_of_memory_goes_on_in_smaller_slices_also_after_a_restart(
    nursery: trio.Nursery, cache_dir: Path
) -> None:
    pool = SlotPool([(1 << 16, 8)])
    backend = ProcessBackend(config_of(0, cache_dir, "oom"), pool, nursery=nursery)
    assert (await backend.start())["micro_batch"] == 2
    micro_batch = micro_batches_of(RUN, 0)[0]
    result = await backend.submit(Forward(micro_batch, 0, True))
    assert result.data["micro_batch_lowered_to"] == 1
    assert result.output is not None
    pool.release(result.output)
    await backend.aclose()
    backend.config = dataclasses.replace(backend.config, injection=())
    assert (await backend.start())["micro_batch"] == 1
