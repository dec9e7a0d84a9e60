"""Outer rounds of whole peers with real torch, in one process: replicas stay together and learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from idle_clock import IdleClock
from inprocess_runs import run_over, write_text
from inprocess_swarm import InProcessPeer, InProcessSwarm, in_process_swarm


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text")


async def start(swarm: InProcessSwarm, count: int) -> None:
    torch.set_num_threads(1)
    for number in range(count):
        await swarm.start(f"p{number}", number % 2)


def outcomes(peer: InProcessPeer) -> list[str]:
    names = ("round_committed", "round_partial", "round_skipped")
    return [emit.name for emit in peer.told if emit.name in names]


def last_round(peer: InProcessPeer) -> Any:
    rounds = peer.machine.work.rounds
    assert rounds is not None
    return rounds.keeper.totals.last


def assert_nothing_is_held(peer: InProcessPeer) -> None:
    assert peer.slots.held_count == 0, peer.slots.statistics()


async def test_replicas_mix_every_round_and_learn(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    run = run_over(text_folder)
    async with in_process_swarm(run, tmp_path) as swarm:
        await start(swarm, 4)
        for peer in swarm.peers.values():
            await peer.ended.wait()
        for peer in swarm.peers.values():
            assert outcomes(peer) == ["round_committed"] * run.rounds
            assert len(last_round(peer).included) == 2
            assert last_round(peer).disagreement < 0.01, "Mix2 is over both: they are equal"
            assert_nothing_is_held(peer)
        losses = swarm.peers["p0"].machine.work.losses
        first, last = losses.of_step(0), losses.of_step(run.total_steps - 1)
        assert first is not None
        assert last is not None
        assert last < 0.6 * first


async def test_a_killed_replica_costs_its_stage_no_round(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    run = run_over(text_folder)
    async with in_process_swarm(run, tmp_path) as swarm:
        await start(swarm, 4)
        while swarm.peers["p0"].machine.work.round < 3:
            await trio.sleep(0.02)
        swarm.kill("p3")
        for name in ("p0", "p1", "p2"):
            await swarm.peers[name].ended.wait()
        for name in ("p0", "p1", "p2"):
            peer = swarm.peers[name]
            assert len(outcomes(peer)) == run.rounds
            assert outcomes(peer)[-1] == "round_committed"
            assert_nothing_is_held(peer)
        audit = swarm.peers["p0"].machine.leases.audit(trio.current_time())
        assert audit.clean


async def test_a_joiner_is_counted_from_the_round_that_it_named(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    run = run_over(text_folder, total_steps=400, peers_min=2)
    async with in_process_swarm(run, tmp_path) as swarm:
        await start(swarm, 2)
        elder = swarm.peers["p0"]
        while elder.machine.membership.record.round < 2:  # it says so: a newcomer sees a run begun
            await trio.sleep(0.02)
        joiner = await swarm.start("late", 0)
        while not (last_round(elder) and "late" in last_round(elder).included):
            await trio.sleep(0.02)
        named = joiner.machine.membership.record.mixes_from
        assert 2 < named <= last_round(elder).round
        before = [
            e.fields for e in elder.told if e.name.startswith("round_") and "planned" in e.fields
        ]
        assert all("late" not in fields["planned"] for fields in before if fields["round"] < named)
