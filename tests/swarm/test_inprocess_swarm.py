"""Whole peers with real torch, without processes: the pipeline trains what a plain loop trains."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import trio
from idle_clock import IdleClock
from inprocess_runs import write_text
from inprocess_swarm import InProcessSwarm, in_process_swarm

from swarmd.compute.twin import train_twin
from swarmd.data.corpus import open_corpus
from swarmd.data.sources import content_hash, parse_source
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    ModelConfig,
    OuterConfig,
    RunConfig,
)

STEPS = 20


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text")


def run_over(folder: Path, stages: int, *, wire: str = "fp32", peers: int = 0) -> RunConfig:
    source = f"text:{folder}/*.txt"
    ranges = {1: ((0, 3),), 2: ((0, 1), (2, 3)), 4: ((0, 0), (1, 1), (2, 2), (3, 3))}
    return RunConfig(
        name="small",
        preset="",
        model=ModelConfig(vocab_size=256, width=32, layers=4, heads=4, kv_heads=2, ff_width=48),
        boundary=BoundaryConfig(rank=8, wire=wire),
        inner=InnerConfig(lr=5e-3, warmup_steps=4),
        outer=OuterConfig(),
        data=DataConfig(
            source=source,
            content_hash=content_hash(parse_source(source)),
            held_out_sequences=4,
        ),
        layer_ranges=ranges[stages],
        inner_steps=5,
        total_steps=STEPS,
        sequence_tokens=16,
        micro_batch_tokens=32,
        batch_tokens=96,
        seed=7,
        peers_min=peers or stages,
        time_scale="local",
    )


async def train(swarm: InProcessSwarm, stages: int, replicas: int = 1) -> None:
    for number in range(stages * replicas):
        await swarm.start(f"p{number}", number % stages)
    for peer in swarm.peers.values():
        await peer.ended.wait()


@pytest.mark.parametrize("stages", [1, 2, 4])
async def test_one_micro_batch_in_flight_equals_the_plain_loop_step_for_step(
    stages: int, text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    torch.set_num_threads(1)
    run = run_over(text_folder, stages)
    twin = train_twin(run, open_corpus(run, tmp_path / "cache"))
    losses: list[float | None] = []
    async with in_process_swarm(
        run, tmp_path, pipeline_limits=PipelineLimits(in_flight_max=1, forward_queue_max=1)
    ) as swarm:
        await train(swarm, stages)
        head = swarm.peers["p0"].machine
        losses = [head.work.losses.of_step(step) for step in range(STEPS)]
        held_out = head.leases.held_out_loss(run.rounds - 1)
        assert all(peer.slots.held_count == 0 for peer in swarm.peers.values())
    assert losses == pytest.approx(twin.losses, abs=1e-5)
    assert held_out == pytest.approx(twin.held_out, abs=1e-5)


async def test_replicas_share_the_work_and_every_micro_batch_ends_once(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    run = run_over(text_folder, 2, wire="int8", peers=4)
    async with in_process_swarm(run, tmp_path) as swarm:
        await train(swarm, 2, replicas=2)
        for peer in swarm.peers.values():
            audit = peer.machine.leases.audit(trio.current_time())
            assert audit.clean
            assert audit.samples_completed == STEPS * 6
            assert peer.machine.work.progress(trio.current_time())["micro_batches"] > 0


async def test_a_killed_replica_costs_no_micro_batch(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    run = dataclasses.replace(run_over(text_folder, 2, peers=4), total_steps=40)
    async with in_process_swarm(run, tmp_path) as swarm:
        for number in range(4):
            await swarm.start(f"p{number}", number % 2)
        while swarm.peers["p0"].machine.work.round < 2:
            await trio.sleep(0.02)
        swarm.kill("p3")
        for name in ("p0", "p1", "p2"):
            await swarm.peers[name].ended.wait()
        audit = swarm.peers["p0"].machine.leases.audit(trio.current_time())
        assert audit.clean
        assert audit.samples_completed == 40 * 6


async def test_a_joiner_fetches_the_state_of_a_replica_and_trains(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    run = dataclasses.replace(run_over(text_folder, 2), total_steps=400)
    async with in_process_swarm(run, tmp_path) as swarm:
        for number in range(2):
            await swarm.start(f"p{number}", number)
        elder = swarm.peers["p0"].machine.membership
        while elder.record.round < 1:  # it says so: a newcomer sees that the run has begun
            await trio.sleep(0.02)
        joiner = await swarm.start("late", None)
        while not joiner.machine.work.progress(trio.current_time()).get("micro_batches"):
            await trio.sleep(0.02)
        assert "transfer_verified" in joiner.names()
        assert joiner.machine.work.seat.round >= 1
