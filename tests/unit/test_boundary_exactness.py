"""A model cut at low-rank boundaries is the uncut model: loss and every gradient (S1, S2, S3, S-A).

The twin (tests/twin_llama.py) is written apart and carries the full stream; the stages carry
coefficients and see each other only through what crosses a wire.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from twin_llama import (
    ODD_MODEL,
    Weights,
    largest_difference,
    make_batch,
    make_run,
    make_stages,
    pipeline_gradients,
    scattered_weights,
    twin_gradients,
    twin_loss,
)

from swarmd.model.stage import Stage
from swarmd.run_config import ModelConfig, RunConfig

RECIPE_MODEL = ModelConfig(vocab_size=97, width=64, layers=4, heads=4, kv_heads=4, ff_width=128)
"""The set-up of algorithms.md 1.12; k is 6 there, batch and length 3 x 33."""

KINDS = [("dense", 0), ("subspace", 0), ("anchored", 5), ("anchored", -1)]


def compare(run: RunConfig, dtype: torch.dtype, batch: int = 3) -> tuple[float, float, str]:
    """Relative difference of the loss, the largest of a gradient, and whose it is."""
    stages = make_stages(run, dtype)
    weights = scattered_weights(stages)
    data = make_batch(run, batch)
    cut_loss, cut = pipeline_gradients(stages, weights, *data)
    twins_loss, twins = twin_gradients(stages, weights, *data)
    return relative_difference(cut_loss, twins_loss), *largest_difference(cut, twins)


# ------------------------------------------------------------------------------------ S1 and S-A


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(("kind", "anchor_rank"), KINDS)
@pytest.mark.parametrize("table_std", [0.02, 1.0])
def test_s1_a_cut_model_has_the_uncut_twins_loss_and_gradients(
    kind: str, anchor_rank: int, stages: int, table_std: float
) -> None:
    run = make_run(
        model=RECIPE_MODEL,
        kind=kind,
        anchor_rank=anchor_rank,
        stages=stages,
        table_std=table_std,
    )
    loss, gradient, name = compare(run, torch.float64)
    assert loss <= 1e-12
    assert gradient <= 1e-12, name
    loss, gradient, name = compare(run, torch.float32)
    assert loss <= 1e-5
    assert gradient <= 1e-5, name


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rank=st.sampled_from([1, 2, 3, 8, 23]),
    stages=st.sampled_from([1, 2, 3, 4]),
    kv_heads=st.sampled_from([1, 2, 4]),
    batch=st.integers(1, 3),
    tokens=st.sampled_from([2, 3, 17, 31]),
    vocab=st.sampled_from([2, 97, 509]),
)
def test_odd_sizes_are_exact_too(
    kind: tuple[str, int],
    rank: int,
    stages: int,
    kv_heads: int,
    batch: int,
    tokens: int,
    vocab: int,
) -> None:
    run = make_run(
        model=replace(ODD_MODEL, kv_heads=kv_heads, vocab_size=vocab),
        kind=kind[0],
        anchor_rank=kind[1],
        rank=rank,
        stages=stages,
        tokens=tokens,
    )
    loss, gradient, name = compare(run, torch.float64, batch)
    assert loss <= 1e-12
    assert gradient <= 1e-12, name


def test_uneven_cuts_are_exact() -> None:
    run = replace(make_run(), layer_ranges=((0, 0), (1, 2), (3, 3)))
    loss, gradient, name = compare(run, torch.float64)
    assert loss <= 1e-12
    assert gradient <= 1e-12, name


@pytest.mark.parametrize("kind", ["subspace", "anchored"])
def test_recomputed_activations_give_the_same_gradients(kind: str) -> None:
    run = make_run(kind=kind, anchor_rank=5 if kind == "anchored" else 0, stages=2)
    stages = make_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    kept_loss, kept = pipeline_gradients(stages, weights, *data)
    loss, gradients = pipeline_gradients(stages, weights, *data, recompute=True)
    assert float(loss) == float(kept_loss)
    assert largest_difference(gradients, kept)[0] == 0.0


# ------------------------------------------------------------------------------------------- S-A


@pytest.mark.parametrize("anchor_rank", [5, -1])
def test_sa_a_sender_that_forgets_its_own_table_is_found_out(anchor_rank: int) -> None:
    run = make_run(kind="anchored", anchor_rank=anchor_rank)
    stages, exact = exact_basis_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    cut_loss, _ = pipeline_gradients(stages, weights, *data)
    assert exact(twin_loss(stages, weights, *data, encode=True), cut_loss)
    forgotten = twin_loss(stages, weights, *data, encode=True, subtract_anchor=False)
    assert not exact(forgotten, cut_loss)
    assert relative_difference(forgotten, cut_loss) > 1e-4


def test_an_anchor_changes_the_model_it_stands_in() -> None:
    run = make_run(kind="anchored", anchor_rank=-1)
    stages = make_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    with_anchors, _ = pipeline_gradients(stages, weights, *data)
    for params in weights[1:]:
        params["anchor.full"] = torch.zeros_like(params["anchor.full"]).requires_grad_()
    without, _ = pipeline_gradients(stages, weights, *data)
    assert abs(float(with_anchors - without)) > 1e-3


# -------------------------------------------------------------------------------------------- S2


class LeakyStage(Stage):
    """Adds a dense writer after one layer. A constrained stage can send only its part in S."""

    leak: tuple[int, Tensor]

    def _layer(self, params, layer, state, base_BTD, rope):  # type: ignore[no-untyped-def]
        state = super()._layer(params, layer, state, base_BTD, rope)
        if layer != self.leak[0]:
            return state
        x_BTD = self.boundary.read(state, base_BTD) if self.is_constrained else state
        eps = self.run.model.norm_eps
        written = x_BTD / torch.sqrt(x_BTD.pow(2).mean(-1, keepdim=True) + eps) @ self.leak[1]
        return state + (written @ self.boundary.u_DK if self.is_constrained else written)


@pytest.mark.parametrize(("leaky_layer", "is_exact"), [(1, False), (3, True)])
def test_s2_one_dense_writer_breaks_exactness_but_not_in_the_last_stage(
    leaky_layer: int, is_exact: bool
) -> None:
    run = make_run(model=RECIPE_MODEL)
    stages, exact = exact_basis_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    generator = torch.Generator().manual_seed(3)
    width = run.model.width
    dense = 0.1 * torch.randn(width, width, generator=generator, dtype=torch.float64)
    twins = twin_loss(
        stages, weights, *data, extra=lambda n, x: x @ dense if n == leaky_layer else None
    )
    for stage in stages:
        stage.__class__ = LeakyStage
        stage.leak = (leaky_layer, dense)  # type: ignore[attr-defined]
    cut, _ = pipeline_gradients(stages, weights, *data)
    assert exact(cut, twins) == is_exact
    assert is_exact or relative_difference(cut, twins) > 1e-4


# -------------------------------------------------------------------------------------------- S3


@pytest.mark.parametrize(("kind", "anchor_rank"), KINDS[1:])
def test_s3_carried_coefficients_stand_for_the_stream_of_the_papers_form(
    kind: str, anchor_rank: int
) -> None:
    """The papers carry X and send (X - base) U. Both forms give one model, if U is orthonormal."""
    run = make_run(model=RECIPE_MODEL, kind=kind, anchor_rank=anchor_rank)
    stages, exact = exact_basis_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    carried, ours = pipeline_gradients(stages, weights, *data)
    encoded, theirs = twin_gradients(stages, weights, *data, encode=True)
    assert exact(carried, encoded)
    difference, name = largest_difference(ours, theirs)
    assert difference <= 1e-11, name


def test_s3_carrying_is_exact_whatever_the_rounding_of_the_basis() -> None:
    """U is rounded to float32 when made: the papers' encode then loses 1e-7, carrying nothing."""
    run = make_run(model=RECIPE_MODEL)
    stages = make_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    carried, _ = pipeline_gradients(stages, weights, *data)
    uncut = twin_loss(stages, weights, *data)
    encoded = twin_loss(stages, weights, *data, encode=True)
    assert relative_difference(carried, uncut) <= 1e-14
    assert relative_difference(encoded, uncut) > 1e-12


# ---------------------------------------------------------------------------------------- helpers


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    return abs(float(ours.detach() / theirs.detach()) - 1)


def exact_basis_stages(run: RunConfig):  # type: ignore[no-untyped-def]
    """Stages over a U orthonormal to float64, as the forms that encode need it to be comparable,
    and a judge of equality."""
    stages = make_stages(run)
    for stage in stages:
        q_DK, r_KK = torch.linalg.qr(stage.boundary.u_DK)
        stage.boundary.u_DK = q_DK * torch.sign(torch.diagonal(r_KK))
        stage.boundary.ut_KD = stage.boundary.u_DK.T.contiguous()
        stage._ut_KD = stage.boundary.ut_KD if stage.is_constrained else None

    def exact(ours: Tensor, theirs: Tensor) -> bool:
        return relative_difference(ours, theirs) <= 1e-12

    return stages, exact


def test_the_judge_of_equality_can_say_no() -> None:
    run = make_run()
    stages, exact = exact_basis_stages(run)
    weights: Weights = scattered_weights(stages)
    loss = twin_loss(stages, weights, *make_batch(run))
    assert exact(loss, loss)
    assert not exact(loss, loss * (1 + 1e-10))
