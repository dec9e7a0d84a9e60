"""A run that was stopped goes on from the disks of its peers: real machines, torch and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from idle_clock import IdleClock
from inprocess_runs import run_over, write_text
from inprocess_swarm import InProcessPeer, InProcessSwarm, in_process_swarm
from safetensors.torch import load_file

from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.run_config import OuterConfig, RunConfig

LIMIT_S = 300.0
ONE_BY_ONE = PipelineLimits(in_flight_max=1, forward_queue_max=1)
"""Then the order of everything follows from the run alone."""


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text")


async def reach(peer: InProcessPeer, round_number: int) -> None:
    while peer.machine.work.round < round_number:
        await trio.sleep(0.005)


async def ended(swarm: InProcessSwarm) -> None:
    for peer in swarm.peers.values():
        await peer.ended.wait()


def losses_of(peer: InProcessPeer) -> dict[int, Any]:
    """Bits of the losses by round."""
    told = [emit.fields for emit in peer.told if emit.name == "round_ended"]
    return {fields["round"]: float(fields["loss"]).hex() for fields in told}


def last_state(swarm: InProcessSwarm, name: str) -> dict[str, torch.Tensor]:
    newest = swarm.checkpoints_of(name).find()[0][0]
    assert newest.round == swarm.run.rounds, "the end is on disk"
    return load_file(newest.state_file)


def assert_equal_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def alone(folder: Path, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"layer_ranges": ((0, 3),), "peers_min": 1, "total_steps": 30}
    return run_over(folder, **(settings | changes))


@pytest.mark.parametrize(
    "outer",
    [
        pytest.param(OuterConfig(), marks=pytest.mark.slow, id="plain"),
        pytest.param(OuterConfig(alpha=0.7, mu=0.9), id="momentum"),
    ],
)
async def test_a_single_peer_that_is_killed_and_resumed_has_the_very_losses_of_one_that_was_not(
    text_folder: Path, tmp_path: Path, outer: OuterConfig, idle_clock: IdleClock
) -> None:
    torch.set_num_threads(1)
    run = alone(text_folder, outer=outer)
    with trio.fail_after(LIMIT_S):
        async with in_process_swarm(run, tmp_path / "whole", pipeline_limits=ONE_BY_ONE) as swarm:
            whole = await swarm.start("p0", None)
            await whole.ended.wait()
            state = last_state(swarm, "p0")
        assert len(losses_of(whole)) == run.rounds
        async with in_process_swarm(run, tmp_path / "cut", pipeline_limits=ONE_BY_ONE) as swarm:
            losses: dict[int, Any] = {}
            for round_number in (1, 3):
                peer = await swarm.start("p0", None)
                await reach(peer, round_number)
                while peer.machine.work.seat.checkpoint is None:
                    await trio.sleep(0.005)
                swarm.kill("p0")
                losses |= losses_of(peer)
            peer = await swarm.start("p0", None)
            await peer.ended.wait()
            losses |= losses_of(peer)
            assert losses == losses_of(whole)
            assert_equal_bits(last_state(swarm, "p0"), state)
            restored = [e.fields for e in peer.told if e.name == "state_restored"]
            assert [fields["rounds_lost"] for fields in restored] == [0]
            assert peer.machine.leases.audit(trio.current_time()).complete


async def test_a_swarm_whose_peers_are_all_killed_goes_on_from_the_newest_common_round(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    torch.set_num_threads(1)
    run = run_over(text_folder, total_steps=30)
    with trio.fail_after(LIMIT_S):
        async with in_process_swarm(run, tmp_path) as swarm:
            for number in range(4):
                await swarm.start(f"p{number}", number % 2)
            await reach(swarm.peers["p2"], 3)
            at_the_end = [peer.machine.work.round for peer in swarm.peers.values()]
            for name in list(swarm.peers):
                swarm.kill(name)
            for number in (3, 0, 2, 1):
                await swarm.start(f"p{number}", None)
            await ended(swarm)
            for peer in swarm.peers.values():
                (restored, *_) = [e.fields for e in peer.told if e.name == "state_restored"]
                assert restored["rounds_lost"] <= 1
                assert restored["round"] >= max(at_the_end) - 1, at_the_end
                audit = peer.machine.leases.audit(trio.current_time())
                assert audit.clean
                assert audit.complete
                assert peer.slots.held_count == 0
            losses = swarm.peers["p0"].machine.work.losses
            last = losses.of_step(run.total_steps - 1)
            assert last is not None
            assert last < 4.5, "below the start's 5.5: what was learned is not lost"


async def test_a_swarm_that_lacks_a_stage_waits_for_it_and_says_so(
    text_folder: Path, tmp_path: Path, idle_clock: IdleClock
) -> None:
    torch.set_num_threads(1)
    run = run_over(text_folder, peers_min=2, total_steps=30)
    with trio.fail_after(LIMIT_S):
        async with in_process_swarm(run, tmp_path) as swarm:
            for number in range(2):
                await swarm.start(f"p{number}", number)
            await reach(swarm.peers["p1"], 2)
            for name in list(swarm.peers):
                swarm.kill(name)
            peer = await swarm.start("p0", None)
            while "nobody who is there has stage 1" not in peer.machine.reasons.current.text:
                await trio.sleep(0.01)
            assert peer.machine.reasons.current.code == "waiting_for_stage"
            await swarm.start("p1", None)
            await ended(swarm)
