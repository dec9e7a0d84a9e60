"""A chain of workers with one micro-batch in flight is the plain loop, step for step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compute_helpers import Chain, RandomCorpus, micro_batches_of, small_run

from swarmd.compute.twin import TwinResult, TwinStep, main, train_twin
from swarmd.run_config import InnerConfig, RunConfig

torch.set_num_threads(1)


def twin_of(run: RunConfig) -> TwinResult:
    return train_twin(run, RandomCorpus(run))


def assert_is_the_twin(run: RunConfig) -> None:
    """Every loss, and the held-out loss at the end."""
    chain, twin = Chain(run), twin_of(run)
    losses = chain.train(run.total_steps)
    assert losses == pytest.approx(list(twin.losses), abs=1e-5)
    assert chain.held_out() == pytest.approx(twin.held_out, abs=1e-5)
    assert twin.losses[-1] < twin.losses[0] - 0.02


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_over_a_float32_wire_train_like_the_twin(stages: int) -> None:
    assert_is_the_twin(small_run(stages))


@pytest.mark.parametrize("kind", ["dense", "anchored"])
def test_so_they_do_with_the_other_boundaries(kind: str) -> None:
    assert_is_the_twin(small_run(2, kind=kind, total_steps=10))


@pytest.mark.parametrize(
    "inner",
    [
        InnerConfig(kind="nadamw", beta1=0.99, lr=5e-3, warmup_steps=4),
        InnerConfig(kind="muon", lr=5e-3, warmup_steps=4),
    ],
    ids=lambda inner: inner.kind,
)
def test_so_they_do_with_the_other_optimisers(inner: InnerConfig) -> None:
    assert_is_the_twin(small_run(2, inner=inner, total_steps=10))


def test_so_they_do_where_the_data_end_inside_a_micro_batch() -> None:
    run = small_run(2, total_steps=7)
    samples_total = 6 * run.batch_samples + 3  # one micro-batch and a half in the last step
    data = replace(run.data, epochs=1, samples_total=samples_total)
    run = replace(run, data=data)
    assert [len(micro_batches_of(run, step)) for step in range(7)] == [3] * 6 + [2]
    chain, twin = Chain(run), twin_of(run)
    assert chain.train(7) == pytest.approx(list(twin.losses), abs=1e-5)


def test_another_seed_or_order_is_another_curve() -> None:
    """The negative control: the comparison above can fail."""
    run = small_run(2, total_steps=5)
    twin = twin_of(run)
    other_seed = Chain(replace(run, seed=8)).train(5)
    assert max(abs(a - b) for a, b in zip(other_seed, twin.losses, strict=True)) > 1e-3
    chain = Chain(run)
    swapped = [chain.step(step, micro_batches_of(run, 4 - step)) for step in range(5)]
    assert max(abs(a - b) for a, b in zip(swapped, twin.losses, strict=True)) > 1e-3


def test_clipping_by_stage_is_part_of_the_twin() -> None:
    inner = InnerConfig(lr=5e-3, warmup_steps=4, clip=0.05)
    run = small_run(4, inner=inner, total_steps=10)
    unclipped = twin_of(small_run(4, total_steps=10))
    twin = twin_of(run)
    assert Chain(run).train(10) == pytest.approx(list(twin.losses), abs=1e-5)
    assert abs(twin.losses[-1] - unclipped.losses[-1]) > 1e-5


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_a_coarse_wire_stays_near_the_twin(wire: str) -> None:
    run = small_run(4, wire=wire)
    chain, twin = Chain(run), twin_of(run)
    losses = chain.train(run.total_steps)
    assert losses == pytest.approx(list(twin.losses), rel=5e-3)
    assert losses != pytest.approx(list(twin.losses), abs=1e-6)


def test_every_step_is_told() -> None:
    run = small_run(1, total_steps=3)
    told: list[TwinStep] = []
    result = train_twin(run, RandomCorpus(run), told.append)
    assert [step.step for step in told] == [0, 1, 2]
    assert tuple(step.loss for step in told) == result.losses
    assert all(step.tokens == run.batch_tokens for step in told)
    assert result.tokens_per_s > 0


def test_the_command_trains_on_the_runs_own_data_and_speaks_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(f"the quick brown fox number {n} jumps over the lazy dog\n" for n in range(999))
    source = tmp_path / "text"
    source.mkdir()
    for name in range(40):
        (source / f"{name}.txt").write_text(text[name : name + 2000])
    run = small_run(2, total_steps=3)
    run = replace(
        run,
        model=replace(run.model, vocab_size=260),
        data=replace(run.data, source=f"text:{source}/*.txt"),
    )
    (tmp_path / "run.bin").write_bytes(run.canonical())
    arguments = ["--run", str(tmp_path / "run.bin"), "--cache", str(tmp_path / "cache")]
    assert main([*arguments, "--threads", "1", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines[:-1]] == [0, 1, 2]
    assert set(lines[-1]) == {"loss_heldout", "loss_first", "loss_last", "tokens_per_s"}
    assert lines[-1]["loss_first"] == lines[0]["loss"]
    assert 0 < lines[-1]["loss_heldout"] < 7
    (source / "0.txt").unlink()
    run = replace(run, data=replace(run.data, content_hash="0" * 64))
    (tmp_path / "run.bin").write_bytes(run.canonical())
    assert main(arguments) > 0
    assert "Traceback" not in capsys.readouterr().err
