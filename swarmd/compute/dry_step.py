"""Trains one stage of a run on made-up numbers for a few seconds, and says how fast it is.

    python -m swarmd.compute.dry_step < {"run": HEX, "stage": 1, "device": "cpu", ...}

Run as a process and forgotten, so that a device which fails takes nothing else with it. It is the
product's own worker with the product's own payloads: only the samples and what would have come over
the wire are drawn from a seed, so neither data nor peers are needed. One line of JSON comes out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from swarmd.compute.failure_codes import found_or_failure
from swarmd.compute.stage_worker import StageWorker
from swarmd.compute_api import WorkerConfig
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, BufferRef, Forward, Step
from swarmd.run_config import RunConfig, run_from_canonical

NOWHERE = BufferRef(0, 0, 0)
"""The worker is handed its inputs directly."""


class MadeUpSamples:
    """A corpus of noise."""

    def __init__(self, run: RunConfig) -> None:
        self._run = run

    def samples(self, micro_batch: MicroBatchId) -> np.ndarray:
        rng = np.random.default_rng(micro_batch.index)
        shape = (self._run.micro_batch_samples, self._run.sequence_tokens + 1)
        return rng.integers(0, self._run.model.vocab_size, shape)


class DryStage:
    """A worker, and what its neighbours would have sent."""

    def __init__(self, config: WorkerConfig) -> None:
        run = config.run
        self.worker = StageWorker(config, corpus=MadeUpSamples(run))
        codec = self.worker.codec
        samples = run.micro_batch_samples
        noise = torch.Generator().manual_seed(1)
        values_BTK = torch.randn(samples, run.sequence_tokens, codec.columns, generator=noise)
        ids_BT1 = torch.from_numpy(MadeUpSamples(run).samples(MicroBatchId(0, 0)).astype(np.int64))
        self._received = memoryview(bytearray(codec.forward_bytes(samples)))
        codec.pack_forward(self._received, ids_BT1, values_BTK)
        self._gradient = memoryview(bytearray(codec.gradient_bytes(samples)))
        codec.pack_gradient(self._gradient, 1e-3 * values_BTK)
        self._output = memoryview(bytearray(codec.forward_bytes(samples)))

    def micro_batch(self, number: int) -> tuple[float, int]:
        """One micro-batch there and back: (seconds, bytes that would have been sent)."""
        stage, name = self.worker.stage, MicroBatchId(0, number)
        begun_s = time.perf_counter()
        inputs = [] if stage.is_first else [self._received]
        sent = self.worker.run(Forward(name, number, train=True), inputs, self._output).output_bytes
        if not stage.is_last:
            back = Backward(name, number, NOWHERE)
            sent += self.worker.run(back, [self._gradient], self._output).output_bytes
        self._synchronise()
        return time.perf_counter() - begun_s, sent

    def step(self) -> float:
        """Seconds of an inner step."""
        begun_s = time.perf_counter()
        self.worker.run(Step(0))
        self._synchronise()
        return time.perf_counter() - begun_s

    def _synchronise(self) -> None:
        if self.worker.device.type == "cuda":
            torch.cuda.synchronize(self.worker.device)


def measure(config: WorkerConfig, seconds: float) -> dict[str, Any]:
    """Medians over as many micro-batches as fit into `seconds`, at least three."""
    if config.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(config.device)
    dry = DryStage(config)
    dry.micro_batch(0)  # the first one pays for what is made once
    took_s: list[float] = []
    sent_bytes = 0
    until_s = time.perf_counter() + seconds
    while len(took_s) < 3 or time.perf_counter() < until_s:
        one_s, sent_bytes = dry.micro_batch(len(took_s) + 1)
        took_s.append(one_s)
    step_s = dry.step()
    run = config.run
    one_s = median(took_s) + step_s / run.micro_batches_per_step
    tokens = run.micro_batch_samples * run.sequence_tokens
    is_cuda = dry.worker.device.type == "cuda"
    return {
        "stage": config.stage,
        "device": str(dry.worker.device),
        "torch_version": torch.__version__,
        "threads": torch.get_num_threads(),
        "micro_batches": len(took_s),
        "micro_batch_s": median(took_s),
        "step_s": step_s,
        "tokens_per_s": tokens / one_s,
        "sent_bytes_per_token": sent_bytes / tokens,
        "micro_batch": dry.worker.slice_samples,
        "memory_peak_bytes": torch.cuda.max_memory_allocated(config.device) if is_cuda else None,
    }


def main() -> int:
    asked = json.loads(sys.stdin.read())
    config = WorkerConfig(
        run=run_from_canonical(bytes.fromhex(asked["run"])),
        stage=asked["stage"],
        device=asked["device"],
        threads=asked["threads"],
        micro_batch_max=asked["micro_batch_max"],
        cache_dir=Path("."),
    )
    found = found_or_failure(lambda: measure(config, asked["seconds"]))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
