"""Replicas in lockstep compute what a swarm computes: whole peers, the same weights in the end.

Two replicas of the last stage mix. Which of them gets which micro-batch is the swarm's own doing,
so it is written down there and dealt in the same way here. One head with one micro-batch in flight:
no gradient crosses a step, and nobody works on what another one has begun.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compute_helpers import small_run
from idle_clock import IdleClock
from inprocess_runs import write_text
from inprocess_swarm import in_process_swarm
from outer_helpers import flat_weights
from torch import Tensor

from swarmd.compute.inline_backend import InlineBackend
from swarmd.compute.lockstep import Lockstep
from swarmd.compute.stage_worker import StageWorker
from swarmd.data.corpus import open_corpus
from swarmd.data.sources import content_hash, parse_source
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Forward, Job
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.run_config import DataConfig, OuterConfig, RunConfig

REPLICAS = (1, 2)
ONE_AT_A_TIME = PipelineLimits(
    in_flight_max=1, forward_queue_max=1, hop_s_min=60.0, hop_s_max=60.0, micro_batch_s=100.0
)
"""And nobody is given up for being slow."""
MIXINGS = {
    "exact": OuterConfig(mix1_wire="fp32"),
    "global_m1": OuterConfig(mix2_group=1),
    "momentum": OuterConfig(alpha=0.7, mu=0.9, mix1_wire="int16"),
}


@dataclass
class Swarm:
    """What a swarm has done. Peers of a stage have a number each, in the order of their names."""

    names: list[list[str]]
    trained: dict[tuple[MicroBatchId, int], list[int]]
    """Micro-batch and stage to the peers that have trained on it."""
    weights: list[list[Tensor]]
    held_out: float | None


def run_over_text(folder: Path, **changes: Any) -> RunConfig:
    write_text(folder)
    source = f"text:{folder}/*.txt"
    data = DataConfig(
        source=source, content_hash=content_hash(parse_source(source)), held_out_sequences=4
    )
    run = small_run(
        2, wire="int8", data=data, peers_min=sum(REPLICAS), time_scale="local", **changes
    )
    return replace(run, model=replace(run.model, vocab_size=256))


async def trained_swarm(run: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    jobs: list[tuple[InlineBackend, Forward]] = []
    submit = InlineBackend.submit

    async def watched(backend: InlineBackend, job: Job) -> Any:
        if isinstance(job, Forward) and job.train:
            jobs.append((backend, job))
        return await submit(backend, job)

    monkeypatch.setattr(InlineBackend, "submit", watched)
    names: list[list[str]] = [[] for _ in REPLICAS]
    async with in_process_swarm(run, folder, pipeline_limits=ONE_AT_A_TIME) as swarm:
        for stage, count in enumerate(REPLICAS):
            for _ in range(count):
                names[stage].append(f"p{len(swarm.peers)}")
                await swarm.start(names[stage][-1], stage)
        for peer in swarm.peers.values():
            await peer.ended.wait()
        backends = [[backend_of(swarm.peers[name]) for name in row] for row in names]
        weights = [[flat_weights(worker_of(backend)) for backend in row] for row in backends]
        held_out = swarm.peers["p0"].machine.leases.held_out_loss(run.rounds - 1)
    trained: dict[tuple[MicroBatchId, int], list[int]] = {}
    for backend, job in jobs:
        stage = backend.config.stage
        number = backends[stage].index(backend)
        trained.setdefault((job.micro_batch, stage), []).append(number)
    return Swarm(names, trained, weights, held_out)


def warm_up(run: RunConfig, folder: Path) -> None:
    """torch's first micro-batch takes seconds on a busy machine. All peers share one loop: it would
    stand still for so long that they take each other for dead, and send their work once more."""
    one_step = replace(run, total_steps=1)
    Lockstep(one_step, (1, 1), open_corpus(one_step, folder / "cache")).train()


def backend_of(peer: Any) -> InlineBackend:
    backend = peer.driver.lane._backend
    assert isinstance(backend, InlineBackend)
    return backend


def worker_of(backend: InlineBackend) -> StageWorker:
    assert backend._runner is not None
    worker = backend._runner._worker
    assert isinstance(worker, StageWorker)
    return worker


@pytest.mark.parametrize("mixing", MIXINGS)
async def test_a_swarm_ends_with_the_weights_that_lockstep_has(
    mixing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_clock: IdleClock
) -> None:
    torch.set_num_threads(1)
    run = run_over_text(tmp_path / "text", outer=MIXINGS[mixing])
    warm_up(run, tmp_path)
    swarm = await trained_swarm(run, tmp_path, monkeypatch)
    assert all(len(who) == 1 for who in swarm.trained.values()), "each was trained on once"
    shares = Counter(who[0] for (_, stage), who in swarm.trained.items() if stage == 1)
    assert min(shares[0], shares[1]) > 0, "both replicas have worked"
    lockstep = Lockstep(
        run,
        REPLICAS,
        open_corpus(run, tmp_path / "cache"),
        names=swarm.names,
        deal=lambda micro_batch, stage: swarm.trained[micro_batch, stage][0],
    )
    result = lockstep.train()
    for row, workers in zip(swarm.weights, lockstep.workers, strict=True):
        for found, worker in zip(row, workers, strict=True):
            torch.testing.assert_close(found, flat_weights(worker), rtol=0, atol=1e-5)
    assert result.losses[-1] < result.losses[0] - 0.1
    # The swarm looks at each held-out micro-batch through one of the replicas.
    assert swarm.held_out == pytest.approx(result.held_out_replica, rel=0.01)
