"""Where the model is cut, and what each stage holds and costs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin_llama import make_run

from swarmd.model.stage import build_stage
from swarmd.partition import (
    balance_layers,
    flops_per_token,
    layer_shapes,
    stage_parameters,
    stage_shapes,
)
from swarmd.run_config import BoundaryConfig, InvalidRun, ModelConfig, RunConfig

TINY = ModelConfig(vocab_size=256, width=128, layers=4, heads=4, kv_heads=2, ff_width=384)
LARGE = ModelConfig(
    vocab_size=128_256, width=5120, layers=32, heads=40, kv_heads=8, ff_width=18_432
)


def cut(run: RunConfig, ranges: tuple[tuple[int, int], ...]) -> RunConfig:
    return replace(run, layer_ranges=ranges)


def stage_costs(run: RunConfig) -> list[float]:
    return [flops_per_token(run, stage) for stage in range(run.stages)]


@pytest.mark.parametrize(
    ("kind", "anchor_rank"), [("dense", 0), ("subspace", 0), ("anchored", 5), ("anchored", -1)]
)
def test_the_inventory_is_what_a_stage_really_holds(kind: str, anchor_rank: int) -> None:
    run = make_run(kind=kind, anchor_rank=anchor_rank, stages=4)
    for index in range(run.stages):
        params = build_stage(run, index).init_parameters()
        held = {name: tuple(value.shape) for name, value in params.items()}
        assert list(held) == list(stage_shapes(run, index))
        assert held == stage_shapes(run, index)
        assert sum(p.numel() for p in params.values()) == stage_parameters(run, index)


def test_a_factored_layer_has_65_percent_of_the_dense_one_at_8_billion() -> None:
    # algorithms.md 1.7: 346.0 M to 226.6 M at d=5120, f=18432, d_kv=1024, k=51, gains left out.
    boundary = BoundaryConfig(kind="subspace", rank=51)
    sizes = {}
    for constrained in (False, True):
        shapes = layer_shapes(LARGE, boundary, constrained=constrained)
        sizes[constrained] = sum(math.prod(s) for s in shapes.values() if len(s) == 2)
    assert round(sizes[False] / 1e6, 1) == 346.0
    assert round(sizes[True] / 1e6, 1) == 226.6


def test_trainable_parameters_match_the_published_8_billion_model() -> None:
    # algorithms.md 1.5: head 6 + 5 x 4 + tail 6 layers, all six tail layers dense: 8.632 B.
    model = replace(LARGE, layers=32)
    starts = [0, 6, 10, 14, 18, 22, 26, 32]
    ranges = tuple((a, b - 1) for a, b in itertools.pairwise(starts))
    run = make_run(model=model, rank=51, stages=1, tokens=4096)
    run = cut(run, ranges)
    total = sum(stage_parameters(run, stage) for stage in range(run.stages))
    assert total / 1e9 == pytest.approx(8.632, abs=5e-4)


def test_flops_of_a_dense_model_are_six_a_weight_and_causal_attention() -> None:
    run = make_run(model=TINY, kind="dense", stages=1, tokens=128)
    matrices = sum(
        math.prod(shape)
        for name, shape in stage_shapes(run, 0).items()
        if len(shape) == 2 and name != "embedding.weight"
    )
    attention = 4 * 3 * (2 * 2 * 128 * 128 // 2)
    assert flops_per_token(run, 0) == 6 * matrices + attention


def test_a_factored_writer_costs_its_weight_and_a_basis_without_gradient() -> None:
    dense = make_run(model=TINY, kind="dense", stages=2, tokens=128)
    factored = make_run(model=TINY, rank=32, stages=2, tokens=128)
    saved_a_layer = 6 * (128 + 384) * (128 - 32) - 2 * 4 * 32 * 128
    assert flops_per_token(dense, 0) - flops_per_token(factored, 0) == 2 * saved_a_layer
    assert flops_per_token(dense, 1) == flops_per_token(factored, 1)


def test_the_stage_with_the_head_gets_fewer_layers() -> None:
    model = replace(TINY, layers=12, vocab_size=4096)
    ranges = balance_layers(model, BoundaryConfig(kind="subspace", rank=32), 3, 128)
    sizes = [last - first + 1 for first, last in ranges]
    assert sizes[2] < sizes[0]
    assert sum(sizes) == 12


def test_a_dominant_head_does_not_excuse_the_others() -> None:
    # A vocabulary of 128,256 over narrow layers: the last stage can never be the fastest.
    model = replace(TINY, layers=9, vocab_size=128_256)
    ranges = balance_layers(model, BoundaryConfig(kind="dense"), 3, 128)
    assert ranges == ((0, 3), (4, 7), (8, 8))


def test_between_equals_the_stage_with_the_embedding_holds_less() -> None:
    # Three dense stages, a head about as dear as one layer: 7 layers are 2 + 3 + 2 or 3 + 2 + 2.
    model = ModelConfig(vocab_size=230, width=64, layers=7, heads=4, kv_heads=4, ff_width=128)
    ranges = balance_layers(model, BoundaryConfig(kind="dense"), 3, 16)
    assert [last - first + 1 for first, last in ranges] == [2, 3, 2]


@pytest.mark.parametrize("stages", [0, 5])
def test_more_stages_than_layers_are_refused_by_name(stages: int) -> None:
    with pytest.raises(InvalidRun) as refused:
        balance_layers(TINY, BoundaryConfig(kind="subspace", rank=32), stages, 128)
    assert refused.value.key == "run.stages"


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 9),
    stages=st.integers(1, 5),
    vocab=st.sampled_from([7, 256, 5003, 128_256]),
    dense=st.booleans(),
    tokens=st.sampled_from([2, 128, 4096]),
)
def test_no_cut_has_a_faster_slowest_stage(
    layers: int, stages: int, vocab: int, dense: bool, tokens: int
) -> None:
    if stages > layers:
        return
    model = ModelConfig(vocab_size=vocab, width=24, layers=layers, heads=4, kv_heads=2, ff_width=40)
    run = make_run(
        model=model, kind="dense" if dense else "subspace", stages=1, rank=6, tokens=tokens
    )
    ours = balance_layers(model, run.boundary, stages, tokens)
    every = [
        tuple((a, b - 1) for a, b in itertools.pairwise((0, *inner, layers)))
        for inner in itertools.combinations(range(1, layers), stages - 1)
    ]
    assert ours in every
    ranked = [
        (max(costs), sum(int(c) ** 2 for c in costs))
        for costs in (stage_costs(cut(run, ranges)) for ranges in every)
    ]
    costs = stage_costs(cut(run, ours))
    assert (max(costs), sum(int(c) ** 2 for c in costs)) == min(ranked)


def test_the_cut_of_a_deep_model_is_found_at_once() -> None:
    ranges = balance_layers(
        replace(LARGE, layers=200), BoundaryConfig(kind="subspace", rank=51), 50, 4096
    )
    assert len(ranges) == 50
    assert ranges[-1][1] == 199
