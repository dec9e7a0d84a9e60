"""A run with several replicas a stage, in one process and without a network.

What a swarm's arithmetic is, and nothing of what it costs: the same workers (stage_worker.py) do
the same jobs on the same payloads, wire types included; the same samples come in the same order;
each stage's replicas hold the same outer rounds (instant_rounds.py). One thing is simpler than in a
swarm: one micro-batch is on its way at a time, so no gradient crosses a step. Which replica gets
which micro-batch is drawn: each step's are dealt in turn to replicas of equal speed.

That a swarm whose peers keep one micro-batch in flight ends with the very same weights is held by
tests/swarm/test_lockstep.py. The baseline is the plain loop of twin.py.

    python -m swarmd.compute.lockstep --run FILE --cache DIR --replicas R [--threads N] [--json]

A line a step, and one with the result.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from swarmd.compute.instant_rounds import InstantRounds
from swarmd.compute.stage_worker import StageWorker
from swarmd.compute.tensor_bytes import payload_bytes_max
from swarmd.compute.training_command import TrainingCommand
from swarmd.compute_api import WorkerConfig
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import Backward, BufferRef, Forward, JobResult, Step
from swarmd.run_config import RunConfig

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import SampleSource

Deal = Callable[[MicroBatchId, int], int]
"""(micro-batch, stage) to the replica that works on it."""
_GRADIENT = BufferRef(0, 0, 0)
"""For the daemon's books; the worker gets the bytes themselves."""


@dataclass(frozen=True, slots=True)
class LockstepResult:
    losses: tuple[float, ...]
    """Of each step, mean over its samples, before it."""
    held_out: float
    """Mean loss per token of the replicas' averaged weights, nats."""
    held_out_replica: float
    """The same of single replicas, mean over them."""
    rounds_partial: int
    """How many of all replicas' rounds were not as planned: a guard has refused something."""


class Lockstep:
    """replicas: of each stage. names: of the peers, by stage and replica; groups and the order of
    reducing depend on them. deal: None for the drawn one."""

    def __init__(
        self,
        run: RunConfig,
        replicas: Sequence[int],
        corpus: SampleSource,
        *,
        names: Sequence[Sequence[str]] | None = None,
        deal: Deal | None = None,
    ) -> None:
        assert len(replicas) == run.stages, "each stage has replicas"
        self.run = run
        self._corpus = corpus
        self._deal = deal or dealt_in_turn(run, replicas)
        self._slot = memoryview(bytearray(payload_bytes_max(run)))
        self.workers = [
            [self._worker(stage) for _ in range(count)] for stage, count in enumerate(replicas)
        ]
        named = names or [[f"{s}-{r:02d}" for r in range(n)] for s, n in enumerate(replicas)]
        self._names = [[PeerId(name) for name in row] for row in named]
        self._rounds = [
            InstantRounds(run, stage, dict(zip(self._names[stage], workers, strict=True)))
            for stage, workers in enumerate(self.workers)
        ]

    def train(self, on_step: Callable[[int, float], None] | None = None) -> LockstepResult:
        """The whole run, once."""
        losses = []
        for rounds in self._rounds:
            rounds.begin()
        for number in range(self.run.rounds):
            worked = [Counter[PeerId]() for _ in self.workers]
            first = number * self.run.inner_steps
            for step in range(first, first + self.run.steps_of_round(number)):
                losses.append(self._step(step, worked))
                if on_step is not None:
                    on_step(step, losses[-1])
            for rounds, samples in zip(self._rounds, worked, strict=True):
                rounds.end(number, samples)
        told = sum((rounds.told for rounds in self._rounds), Counter[str]())
        single = self.held_out_of_replicas()
        return LockstepResult(
            losses=tuple(losses),
            held_out=self.held_out_of_mean(),
            held_out_replica=sum(single) / len(single),
            rounds_partial=told["round_partial"] + told["round_skipped"],
        )

    # --------------------------------------------------------------------------------- inner phase

    def _step(self, step: int, worked: list[Counter[PeerId]]) -> float:
        """All micro-batches of a step, then the step wherever there is a gradient."""
        results = []
        for micro_batch in _micro_batches_of(self.run, step):
            route = [self._deal(micro_batch, stage) for stage in range(self.run.stages)]
            chain = [self.workers[stage][number] for stage, number in enumerate(route)]
            results.append(self._train_on(micro_batch, chain))
            for stage, number in enumerate(route):
                # Whole ones, as the swarm counts them.
                worked[stage][self._names[stage][number]] += self.run.micro_batch_samples
        for worker in (worker for row in self.workers for worker in row):
            if worker.sums.samples:
                worker.run(Step(step))
        return _mean_loss(results)

    def _train_on(self, micro_batch: MicroBatchId, chain: list[StageWorker]) -> JobResult:
        """There and back through one replica of each stage; the last one's answer."""
        last, payload = self._forward(micro_batch, chain, is_trained=True)
        for worker in reversed(chain[:-1]):
            answer = worker.run(Backward(micro_batch, 0, _GRADIENT), payload, self._slot)
            payload = self._sent(answer.output_bytes)
        return last

    def _forward(
        self, micro_batch: MicroBatchId, chain: list[StageWorker], *, is_trained: bool
    ) -> tuple[JobResult, list[memoryview]]:
        payload: list[memoryview] = []
        for worker in chain:
            answer = worker.run(Forward(micro_batch, 0, is_trained), payload, self._slot)
            payload = self._sent(answer.output_bytes)
        return answer.result, payload

    def _sent(self, size_bytes: int) -> list[memoryview]:
        return [memoryview(bytearray(self._slot[:size_bytes]))]

    def _worker(self, stage: int) -> StageWorker:
        config = WorkerConfig(run=self.run, stage=stage, cache_dir=Path())
        return StageWorker(config, corpus=self._corpus if stage == 0 else None)

    # ------------------------------------------------------------------------------------ held out

    def held_out_of_replicas(self) -> list[float]:
        """Loss of chain r, which is replica r of every stage (of a stage with fewer: the last)."""
        most = max(len(row) for row in self.workers)
        return [
            self._held_out([row[min(number, len(row) - 1)] for row in self.workers])
            for number in range(most)
        ]

    def held_out_of_mean(self) -> float:
        """Loss of the averaged weights."""
        chain = []
        for stage, row in enumerate(self.workers):
            mean = self._worker(stage)
            for name in mean.params:
                values = torch.stack([worker.params[name].detach() for worker in row])
                mean.params[name] = values.mean(dim=0)
            chain.append(mean)
        return self._held_out(chain)

    def _held_out(self, chain: list[StageWorker]) -> float:
        count = self.run.shape.held_out_micro_batches
        looked_at = [MicroBatchId(0, index, held_out=True) for index in range(count)]
        return _mean_loss([self._forward(one, chain, is_trained=False)[0] for one in looked_at])


def dealt_in_turn(run: RunConfig, replicas: Sequence[int]) -> Deal:
    """Each step's micro-batches go to all replicas of a stage in turn, in an order drawn anew."""
    hands: dict[tuple[int, int], list[int]] = {}

    def deal(micro_batch: MicroBatchId, stage: int) -> int:
        step = run.step_of(micro_batch.round, micro_batch.index)
        if (step, stage) not in hands:
            hands.clear()
            for number, count in enumerate(replicas):
                hand = [place % count for place in range(run.micro_batches_per_step)]
                random.Random(f"{run.seed}/{step}/{number}").shuffle(hand)
                hands[step, number] = hand
        return hands[step, stage][micro_batch.index % run.micro_batches_per_step]

    return deal


def _micro_batches_of(run: RunConfig, step: int) -> list[MicroBatchId]:
    number, place = divmod(step, run.inner_steps)
    first = place * run.micro_batches_per_step
    end = min(first + run.micro_batches_per_step, run.micro_batches_of_round(number))
    return [MicroBatchId(number, index) for index in range(first, end)]


def _mean_loss(results: list[JobResult]) -> float:
    losses = [result.loss_sum for result in results if result.loss_sum is not None]
    assert len(losses) == len(results), "the last stage tells a loss"
    return sum(losses) / sum(result.samples for result in results)


def main(arguments: list[str]) -> int:
    """See the header."""
    command = TrainingCommand("python -m swarmd.compute.lockstep")
    command.parser.add_argument("--replicas", type=int, required=True, help="of every stage")
    run_and_corpus = command.open(arguments)
    if isinstance(run_and_corpus, int):
        return run_and_corpus
    run, corpus = run_and_corpus
    swarm = Lockstep(run, [command.options.replicas] * run.stages, corpus)
    result = swarm.train(lambda step, loss: command.tell({"step": step, "loss": round(loss, 6)}))
    command.tell(
        {
            "loss_heldout": round(result.held_out, 6),
            "loss_replica": round(result.held_out_replica, 6),
            "loss_last": round(result.losses[-1], 6),
            "rounds_partial": result.rounds_partial,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
