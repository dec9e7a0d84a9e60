"""Real stage workers behind the virtual replicas of mixing_world.py: real weights, real bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from compute_helpers import RandomCorpus, make_worker, small_run
from mixing_world import Replica, World
from torch import Tensor

from swarmd.compute.stage_worker import StageWorker
from swarmd.compute_api import WorkerConfig
from swarmd.errors import JobFailed
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Forward, StageCall, Step
from swarmd.protocols.outer_rules import OuterRules
from swarmd.run_config import OuterConfig, RunConfig
from swarmd.sim.fake_outer import FakeJobFailed


class RealOuter:
    """What FakeOuter is, on a StageWorker: contents of slots are the bytes themselves."""

    def __init__(self, worker: StageWorker) -> None:
        self.worker = worker
        self.stepped: dict[int, float] = {}
        self.calls: list[str] = []

    def run(self, job: StageCall, inputs: Sequence[bytes]) -> tuple[dict[str, Any], bytes | None]:
        views = [memoryview(bytearray(body)) for body in inputs]
        output = memoryview(bytearray(b"\xa5" * job.output_bytes)) if job.output_bytes else None
        self.calls.append(job.name)
        try:
            answer = self.worker.run(job, views, output)
        except JobFailed as error:
            raise FakeJobFailed(error.code) from error
        body = bytes(output[: answer.output_bytes]) if output and answer.output_bytes else None
        return answer.result.data, body

    @property
    def weights(self) -> list[float]:
        return flat_weights(self.worker).tolist()


def flat_weights(worker: StageWorker) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in worker.params.values()])


def train(worker: StageWorker, number: int, round_number: int, steps: int = 3) -> None:
    """An inner phase of one replica: its own data, one micro-batch a step."""
    for step in range(round_number * steps, (round_number + 1) * steps):
        micro_batch = MicroBatchId(0, 1_000 * number + step)
        worker.run(Forward(micro_batch, step, train=True))
        worker.run(Step(step))


def one_stage_run(**outer: Any) -> RunConfig:
    return small_run(1, total_steps=400, outer=OuterConfig(**outer))


def real_world(run: RunConfig, replicas: int, rounds: int) -> World:
    """Replicas of a one-stage run that train between mixes."""
    rules = OuterRules(**asdict(run.outer))
    world = World(replicas, rules=rules, rounds=rounds)
    for replica in world.replicas:
        worker = make_worker(run)
        worker.corpus = RandomCorpus(run, seed=5)
        replica.outer = RealOuter(worker)  # type: ignore[assignment]
        replica.inner = lambda replica: train(worker_of(replica), replica.number, replica.round)
    return world


def worker_of(replica: Replica) -> StageWorker:
    outer = replica.outer
    assert isinstance(outer, RealOuter)
    return outer.worker


def held_out_loss(worker: StageWorker) -> float:
    """On the same sequences every time."""
    micro_batches = [MicroBatchId(0, index, held_out=True) for index in range(3)]
    results = [worker.run(Forward(mb, 0, train=False)).result for mb in micro_batches]
    return sum(r.loss_sum or 0.0 for r in results) / sum(r.samples for r in results)


def loss_of_mean(world: World, but: frozenset[int] = frozenset()) -> float:
    """Held-out loss of the replicas' averaged weights."""
    workers = [worker_of(replica) for replica in world.replicas if replica.number not in but]
    averaged = make_worker(workers[0].run_config)
    averaged.corpus = workers[0].corpus
    for name in averaged.params:
        mean = torch.stack([worker.params[name].detach() for worker in workers]).mean(dim=0)
        averaged.params[name] = mean.requires_grad_()
    return held_out_loss(averaged)


def load_worker(config: WorkerConfig) -> StageWorker:
    """A WorkerFactory with made-up data."""
    return StageWorker(config, corpus=RandomCorpus(config.run))
