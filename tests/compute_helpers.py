"""Small runs, random corpora and stages by hand: for tests of what runs in the compute worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from swarmd.compute.stage_worker import Answer, StageWorker
from swarmd.compute.tensor_bytes import payload_bytes_max
from swarmd.compute_api import WorkerConfig
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, BufferRef, Forward, Step
from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    ModelConfig,
    OuterConfig,
    RunConfig,
)


def small_run(
    stages: int = 2, *, wire: str = "fp32", kind: str = "subspace", **changes: Any
) -> RunConfig:
    """4 layers of width 32 over 97 tokens; steps of 3 micro-batches of 2 sequences of 12 tokens."""
    ranges = {1: ((0, 3),), 2: ((0, 1), (2, 3)), 4: ((0, 0), (1, 1), (2, 2), (3, 3))}
    run = RunConfig(
        name="small",
        preset="",
        model=ModelConfig(vocab_size=97, width=32, layers=4, heads=4, kv_heads=2, ff_width=48),
        boundary=BoundaryConfig(
            kind=kind,
            rank=0 if kind == "dense" else 8,
            anchor_rank=4 if kind == "anchored" else 0,
            wire=wire,
        ),
        inner=InnerConfig(lr=5e-3, warmup_steps=4),
        outer=OuterConfig(),
        data=DataConfig(held_out_sequences=5),
        layer_ranges=ranges[stages],
        inner_steps=5,
        total_steps=20,
        sequence_tokens=12,
        micro_batch_tokens=24,
        batch_tokens=72,
        seed=7,
    )
    return dataclasses.replace(run, **changes)


class RandomCorpus:
    """Ids that can be learned a little: half of them follow from the id before."""

    content_hash = "00" * 32

    def __init__(self, run: RunConfig, seed: int = 0) -> None:
        self.run, self.seed = run, seed

    def samples(self, micro_batch: MicroBatchId) -> np.ndarray:
        key = (self.seed, micro_batch.round, micro_batch.index, int(micro_batch.held_out))
        rng = np.random.default_rng(key)
        count = self.run.shape.samples_of(micro_batch)
        if micro_batch.held_out:
            before = micro_batch.index * self.run.micro_batch_samples
            count = min(count, self.run.data.held_out_sequences - before)
        vocab = self.run.model.vocab_size
        ids = rng.integers(0, vocab, size=(count, self.run.sequence_tokens + 1))
        for place in range(1, ids.shape[1], 2):
            ids[:, place] = (ids[:, place - 1] * 5 + 1) % vocab
        return ids.astype(np.uint16)


def make_worker(run: RunConfig, stage: int = 0, **config: Any) -> StageWorker:
    corpus = RandomCorpus(run) if stage == 0 else None
    return StageWorker(
        WorkerConfig(run=run, stage=stage, threads=1, cache_dir=Path("/nonexistent"), **config),
        corpus=corpus,
    )


class Chain:
    """One worker a stage, run by hand with one micro-batch in flight, as a lone peer per stage."""

    def __init__(self, run: RunConfig, **config: Any) -> None:
        self.run = run
        self.workers = [make_worker(run, stage, **config) for stage in range(run.stages)]
        self.slot = memoryview(bytearray(payload_bytes_max(run)))

    def micro_batch(
        self, micro_batch: MicroBatchId, *, train: bool = True, attempt: int = 0
    ) -> Answer:
        """There and back; the last stage's answer."""
        payload: list[memoryview] = []
        for worker in self.workers:
            last = worker.run(Forward(micro_batch, attempt, train), payload, self.slot)
            payload = [_copy(self.slot, last.output_bytes)]
        if not train:
            return last
        for worker in reversed(self.workers[:-1]):
            answer = worker.run(backward(micro_batch, attempt), payload, self.slot)
            payload = [_copy(self.slot, answer.output_bytes)]
        return last

    def step(self, step: int, micro_batches: Iterable[MicroBatchId]) -> float:
        """One inner step on every stage; the mean loss before it."""
        loss_sum, samples = 0.0, 0
        for micro_batch in micro_batches:
            result = self.micro_batch(micro_batch).result
            assert result.loss_sum is not None
            loss_sum += result.loss_sum
            samples += result.samples
        for worker in self.workers:
            worker.run(Step(step))
        return loss_sum / samples

    def train(self, steps: int) -> list[float]:
        return [self.step(step, micro_batches_of(self.run, step)) for step in range(steps)]

    def held_out(self) -> float:
        results = [
            self.micro_batch(MicroBatchId(0, index, held_out=True), train=False).result
            for index in range(self.run.shape.held_out_micro_batches)
        ]
        losses = [result.loss_sum for result in results if result.loss_sum is not None]
        return sum(losses) / sum(result.samples for result in results)


def micro_batches_of(run: RunConfig, step: int) -> list[MicroBatchId]:
    """Those of one inner step, in order."""
    round_number = step // run.inner_steps
    return [
        MicroBatchId(round_number, index)
        for index in range(run.micro_batches_of_round(round_number))
        if run.step_of(round_number, index) == step
    ]


def backward(micro_batch: MicroBatchId, attempt: int = 0, *, accumulate: bool = True) -> Backward:
    """The ref is for the daemon's books; the worker gets the bytes themselves."""
    return Backward(micro_batch, attempt, BufferRef(0, 0, 0), accumulate)


def _copy(view: memoryview, size: int) -> memoryview:
    return memoryview(bytearray(view[:size]))
