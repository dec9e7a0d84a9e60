"""Replicas in lockstep, in one process: what a swarm computes, without a swarm."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from compute_helpers import RandomCorpus, small_run
from outer_helpers import flat_weights

from swarmd.compute.lockstep import Lockstep, LockstepResult, dealt_in_turn, main
from swarmd.compute.twin import train_twin
from swarmd.optim.disagreement import spread
from swarmd.protocols.ids import MicroBatchId
from swarmd.run_config import DataConfig, OuterConfig, RunConfig

torch.set_num_threads(1)

EXACT = OuterConfig(mix1_group=0, mix2_group=0, mix1_wire="fp32")
NONE = OuterConfig(mix1_group=1, mix2_group=1)


def trained(run: RunConfig, replicas: int) -> tuple[Lockstep, LockstepResult]:
    swarm = Lockstep(run, [replicas] * run.stages, RandomCorpus(run))
    return swarm, swarm.train()


@pytest.mark.parametrize("stages", [1, 2])
def test_one_replica_is_the_plain_loop(stages: int) -> None:
    run = small_run(stages)
    twin = train_twin(run, RandomCorpus(run))
    _, result = trained(run, 1)
    assert result.losses == pytest.approx(twin.losses, abs=1e-5)
    assert result.held_out == pytest.approx(twin.held_out, abs=1e-5)
    assert result.held_out_replica == result.held_out
    assert result.rounds_partial == 0


def test_exact_averaging_leaves_replicas_with_the_same_weights() -> None:
    swarm, result = trained(small_run(2, inner_steps=1, total_steps=10, outer=EXACT), 3)
    for row in swarm.workers:
        assert spread(torch.stack([flat_weights(worker) for worker in row])) < 1e-14
    assert result.held_out == pytest.approx(result.held_out_replica, abs=1e-6)
    assert result.losses[-1] < result.losses[0]


def test_replicas_that_never_mix_part_and_those_that_do_stay_close() -> None:
    apart = {}
    for name, outer in {"exact": EXACT, "none": NONE, "mix1": OuterConfig(mix2_group=1)}.items():
        swarm, _ = trained(small_run(1, outer=outer), 2)
        weights = torch.stack([flat_weights(worker) for worker in swarm.workers[0]])
        apart[name] = spread(weights)
    print(apart)
    assert apart["exact"] < 1e-14
    assert apart["exact"] < apart["mix1"] < apart["none"] / 2


def test_the_same_seed_gives_the_same_losses_to_the_bit() -> None:
    run = small_run(2, wire="int8", outer=OuterConfig(mix2_group=2))
    assert trained(run, 2)[1] == trained(run, 2)[1]


def test_steps_are_dealt_evenly_and_in_an_order_of_their_own() -> None:
    run = small_run(2, batch_tokens=24 * 8)
    deal = dealt_in_turn(run, [2, 4])
    seen = set()
    for index in range(0, 40, 8):
        for stage, share in ((0, 4), (1, 2)):
            hand = [deal(MicroBatchId(0, number), stage) for number in range(index, index + 8)]
            assert set(Counter(hand).values()) == {share}
            seen.add((stage, tuple(hand)))
    assert len(seen) == 10


def test_the_program_tells_each_step_and_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number}.txt").write_text("a line of text and another one\n" * 40)
    from dataclasses import replace

    from swarmd.data.sources import content_hash, parse_source

    source = f"text:{text}/*.txt"
    data = DataConfig(
        source=source, content_hash=content_hash(parse_source(source)), held_out_sequences=4
    )
    run = small_run(2, data=data, total_steps=6, inner_steps=3)
    run = replace(run, model=replace(run.model, vocab_size=256))
    run_file = tmp_path / "run"
    run_file.write_bytes(run.canonical())
    words = ["--run", str(run_file), "--cache", str(tmp_path / "cache"), "--threads", "1", "--json"]
    assert main([*words, "--replicas", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines[:-1]] == list(range(6))
    assert lines[-1]["loss_heldout"] < lines[0]["loss"]
    assert lines[-1]["rounds_partial"] == 0
