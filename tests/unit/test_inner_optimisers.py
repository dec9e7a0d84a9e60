"""AdamW, NAdamW, Muon, the schedule and the clip: recipes O1, O4 and O6, and torch as a witness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarmd.optim.inner import InnerOptimiser, clip_factor, gradient_norm, orthogonalise
from swarmd.optim.schedule import learning_rate
from swarmd.run_config import InnerConfig

torch.set_num_threads(1)

SHAPES = {"gain": (6,), "matrix": (6, 4), "table": (9, 4)}


class Rules:
    """Of three weights: the matrix decays and may be orthogonalised, the others not."""

    shapes: Mapping[str, tuple[int, ...]] = SHAPES

    def decays(self, name: str) -> bool:
        return name == "matrix"

    def orthogonalises(self, name: str) -> bool:
        return name == "matrix"


def random_like(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()
    }


def optimiser_of(kind: str, **changes: float) -> InnerOptimiser:
    return InnerOptimiser.of(replace(InnerConfig(kind=kind), **changes), Rules())


def run_steps(
    optimiser: InnerOptimiser, steps: range, params: dict[str, Tensor]
) -> dict[str, Tensor]:
    state = optimiser.start(params)
    for step in steps:
        params = optimiser.step(params, random_like(100 + step), state, lr=0.01 * (step + 1))
    return params


@pytest.mark.parametrize("kind", ["adamw", "nadamw"])
def test_steps_equal_those_of_torch(kind: str) -> None:
    ours = run_steps(optimiser_of(kind), range(7), random_like(1))
    theirs = {name: value.requires_grad_() for name, value in random_like(1).items()}
    inner = InnerConfig(kind=kind)
    groups = [
        {"params": [theirs["matrix"]], "weight_decay": inner.decay},
        {"params": [theirs["gain"], theirs["table"]], "weight_decay": 0.0},
    ]
    betas = (inner.beta1, inner.beta2)
    witness: torch.optim.Optimizer
    if kind == "adamw":
        witness = torch.optim.AdamW(groups, betas=betas, eps=inner.eps)
    else:
        witness = torch.optim.NAdam(groups, betas=betas, eps=inner.eps, decoupled_weight_decay=True)
    for step in range(7):
        for name, grad in random_like(100 + step).items():
            theirs[name].grad = grad
        for group in witness.param_groups:
            group["lr"] = 0.01 * (step + 1)
        witness.step()
    # torch keeps NAdam's product of momenta in float32.
    bound = 1e-12 if kind == "adamw" else 1e-7
    for name in SHAPES:
        torch.testing.assert_close(ours[name], theirs[name], rtol=bound, atol=bound)


def test_nadamw_gives_the_recipes_values() -> None:
    """O1."""
    inner = InnerConfig(kind="nadamw", beta1=0.99, beta2=0.999, decay=0.01)
    optimiser = InnerOptimiser(inner, frozenset({"w"}), frozenset())
    params = {"w": torch.tensor([1.0], dtype=torch.float64)}
    state = optimiser.start(params)
    seen = []
    for grad in (1.0, -0.5, 0.25):
        grads = {"w": torch.tensor([grad], dtype=torch.float64)}
        params = optimiser.step(params, grads, state, lr=0.1)
        seen.append(params["w"].item())
    assert seen == pytest.approx([0.898344, 0.939401, 0.916153], abs=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "nadamw", "muon"])
def test_a_step_makes_fresh_leaves_and_leaves_the_old_weights_alone(kind: str) -> None:
    optimiser = optimiser_of(kind)
    params, grads = random_like(1), random_like(2)
    before, grads_before = random_like(1), random_like(2)
    fresh = optimiser.step(params, grads, optimiser.start(params), lr=0.1)
    for name in SHAPES:
        assert torch.equal(params[name], before[name])
        assert torch.equal(grads[name], grads_before[name])
        assert fresh[name].requires_grad
        assert fresh[name].is_leaf
        assert not torch.equal(fresh[name], before[name])


@pytest.mark.parametrize("kind", ["adamw", "nadamw", "muon"])
def test_a_restored_state_goes_on_bit_for_bit(kind: str) -> None:
    optimiser = optimiser_of(kind)
    params = random_like(1)
    state = optimiser.start(params)
    for step in range(3):
        params = optimiser.step(params, random_like(step), state, lr=0.1)
    saved = {name: value.clone() for name, value in state.tensors().items()}
    restored = optimiser.restore(params, saved)
    on = optimiser.step(params, random_like(9), state, lr=0.1)
    again = optimiser.step(params, random_like(9), restored, lr=0.1)
    assert all(torch.equal(on[name], again[name]) for name in SHAPES)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("first/matrix", torch.zeros(2, 2), "another shape"),
        ("second/gain", torch.full((6,), torch.nan), "not finite"),
        ("second/gain", torch.full((6,), -1.0), "below 0"),
        ("updates", torch.tensor(-1), "not in"),
        ("updates", torch.tensor([1, 2]), "not in"),
        ("momentum_product", torch.tensor(torch.nan), "not in"),
        ("momentum_product", None, "missing"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(name: str, value: Tensor | None, why: str) -> None:
    optimiser = optimiser_of("adamw")
    params = random_like(1)
    named = optimiser.start(params).tensors()
    del named[name]
    with pytest.raises(ValueError, match=why):
        optimiser.restore(params, named if value is None else {**named, name: value})


# ------------------------------------------------------------------------------------------- Muon


def polar(matrix_MN: Tensor, rank: int) -> Tensor:
    u, _, vt = torch.linalg.svd(matrix_MN, full_matrices=False)
    return u[:, :rank] @ vt[:rank]


def test_muon_on_a_factor_is_muon_on_the_projected_weight() -> None:
    """O6, for the exact polar factor and for the Newton-Schulz that really runs."""
    generator = torch.Generator().manual_seed(6)
    g = torch.randn(128, 64, generator=generator, dtype=torch.float64)
    u = torch.linalg.qr(torch.randn(64, 6, generator=generator, dtype=torch.float64)).Q
    assert (polar(g @ u, 6) @ u.T - polar(g @ u @ u.T, 6)).abs().max() < 1e-12
    assert (orthogonalise(g @ u) @ u.T - orthogonalise(g @ u @ u.T)).abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(48, 48), (64, 8), (8, 64)])
def test_orthogonalising_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(shape, generator=generator)
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.max() < 1.25
    assert values[:-1].min() > 0.6  # the last of a square Gaussian may be too small to be lifted


def test_orthogonalising_nothing_gives_nothing() -> None:
    assert torch.equal(orthogonalise(torch.zeros(4, 7)), torch.zeros(4, 7))


def test_muon_takes_matrices_and_adamw_the_rest() -> None:
    params, grads = random_like(1), random_like(2)
    muon, adam = optimiser_of("muon"), optimiser_of("adamw")
    state = muon.start(params)
    fresh = muon.step(params, grads, state, lr=0.1)
    plain = adam.step(params, grads, adam.start(params), lr=0.1)
    assert set(state.second) == {"gain", "table"}
    assert torch.equal(fresh["gain"], plain["gain"])
    assert torch.equal(fresh["table"], plain["table"])
    update = params["matrix"] * (1 - 0.1 * muon.config.decay) - fresh["matrix"]
    values = torch.linalg.svdvals(update) / (0.1 * 0.2 * math.sqrt(6))
    assert values.max() < 1.25
    assert values.min() > 0.6


# --------------------------------------------------------------------------------- clip, schedule


@pytest.mark.parametrize("stages", [1, 3, 12])
def test_stages_clipped_by_themselves_have_the_clip_together(stages: int) -> None:
    """O4."""
    clipped = []
    for stage in range(stages):
        grads = {name: value * 1e6 for name, value in random_like(stage).items()}
        factor = clip_factor(gradient_norm(grads), clip=1.0, stages=stages)
        clipped.append(gradient_norm({name: value * factor for name, value in grads.items()}))
    assert math.hypot(*clipped) == pytest.approx(1.0, abs=1e-6)


def test_a_small_gradient_is_not_clipped() -> None:
    assert clip_factor(0.4, clip=1.0, stages=4) == 1.0
    assert clip_factor(0.0, clip=1.0, stages=4) == 1.0


def test_a_norm_is_finite_exactly_when_every_entry_is() -> None:
    huge = {"w": torch.full((4,), 3e38)}
    assert gradient_norm(huge) == pytest.approx(6e38, rel=1e-6)
    assert not math.isfinite(gradient_norm({"w": torch.tensor([1.0, math.nan])}))
    assert not math.isfinite(gradient_norm({"w": torch.tensor([1.0, math.inf])}))
    assert gradient_norm({}) == 0.0


def test_the_rate_rises_to_its_peak_and_falls_to_its_share() -> None:
    inner = InnerConfig(lr=1.0, warmup_steps=4, final_lr_ratio=0.1)
    rates = [learning_rate(step, inner=inner, total_steps=21) for step in range(21)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[12] == pytest.approx(0.55)
    assert rates[20] == pytest.approx(0.1)
    assert learning_rate(500, inner=inner, total_steps=21) == pytest.approx(0.1)


@given(
    total=st.integers(1, 300),
    warmup=st.integers(0, 400),
    step=st.integers(0, 400),
    ratio=st.floats(0, 1),
)
def test_the_rate_is_positive_and_never_above_its_peak(
    total: int, warmup: int, step: int, ratio: float
) -> None:
    inner = InnerConfig(lr=2.0, warmup_steps=warmup, final_lr_ratio=ratio)
    rate = learning_rate(step, inner=inner, total_steps=total)
    assert min(2.0 * ratio, 2.0 / (warmup + 1)) <= rate * (1 + 1e-12) <= 2.0 * (1 + 1e-9)
