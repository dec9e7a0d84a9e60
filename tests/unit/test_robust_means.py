"""Recipes B1 to B5 and B8: what attackers can do to a clipped mean, and what they cannot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarmd.optim.robust import (
    capped_weights,
    centered_clip,
    centre_of,
    clip_factors,
    clipped_products,
    is_fixed_point,
    limit_norms,
    norms,
    sorted_rows,
    suitable_tau,
)


def with_attackers(count: int, members: int = 8) -> Tensor:
    x_GN = torch.zeros(members, 3, dtype=torch.float64)
    x_GN[members - count :, 0] = 1_000.0
    return x_GN


def test_one_attacker_of_eight_moves_the_mean_by_a_seventh_of_tau() -> None:
    v = centered_clip(with_attackers(1), [1.0] * 8, 1.0)
    assert v.tolist() == pytest.approx([0.142857, 0, 0], abs=1e-6)


def test_three_attackers_of_eight_move_it_by_three_fifths() -> None:
    v = centered_clip(with_attackers(3), [1.0] * 8, 1.0)
    assert v.tolist() == pytest.approx([0.6, 0, 0], abs=1e-4)


def test_a_claimed_weight_beats_the_clip_unless_it_is_capped() -> None:
    weights = [1.0] * 7 + [100.0]
    assert float(centered_clip(with_attackers(1), weights, 1.0)[0]) == pytest.approx(
        17.45, abs=0.01
    )
    after_500 = centered_clip(with_attackers(1), weights, 1.0, iterations=500)
    assert float(after_500[0]) == pytest.approx(434.6, abs=0.1)
    capped = centered_clip(with_attackers(1), capped_weights(weights), 1.0)
    assert float(capped[0]) == pytest.approx(0.142857, abs=1e-6)


def test_norm_rule_scales_to_the_groups_median() -> None:
    x_GN = torch.eye(4, dtype=torch.float64)
    x_GN[3] *= 1_000
    limited = limit_norms(x_GN)
    assert float(norms(limited).max()) <= 1.0 + 1e-12
    torch.testing.assert_close(limited[:3], x_GN[:3])
    assert limit_norms(torch.zeros(3, 4)).tolist() == torch.zeros(3, 4).tolist()


@pytest.mark.parametrize("members", [3, 4, 7])
def test_without_attackers_the_clip_is_the_weighted_mean(members: int) -> None:
    x_GN = torch.randn(
        members, 50, generator=torch.Generator().manual_seed(members), dtype=torch.float64
    )
    weights = [1.0 + i for i in range(members)]
    mean_N = (x_GN * torch.tensor(weights, dtype=torch.float64)[:, None]).sum(dim=0) / sum(weights)
    tau = 2 * float(norms(x_GN - mean_N).max())
    v = centered_clip(x_GN, weights, tau)
    torch.testing.assert_close(v, mean_N, rtol=0, atol=1e-9)


def test_residuals_of_an_honest_reducer_cancel_and_those_of_a_cheat_do_not() -> None:
    generator = torch.Generator().manual_seed(8)
    x_GN = torch.randn(8, 40, generator=generator, dtype=torch.float64)
    weights, tau = [1.0] * 8, 4.0
    z_N = torch.randn(40, generator=generator, dtype=torch.float64)
    v = centered_clip(x_GN, weights, tau, iterations=10_000)
    z_norm = float(torch.linalg.vector_norm(z_N))
    assert float(clip_factors(x_GN, v, tau).min()) < 1, "nobody was clipped: this shows nothing"
    assert is_fixed_point(clipped_products(x_GN, v, tau, z_N), weights, z_norm, tau)
    cheat = v + 0.01 * tau * z_N / z_norm
    assert not is_fixed_point(clipped_products(x_GN, cheat, tau, z_N), weights, z_norm, tau)


@given(
    st.integers(0, 2**31),
    st.integers(1, 2),
    st.floats(0.0, 1e6),
)
def test_a_minority_moves_the_result_by_its_share_of_tau_at_most(
    seed: int, attackers: int, reach: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    honest = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    attack = reach * torch.randn(attackers, 6, generator=generator, dtype=torch.float64)
    x_GN = torch.cat([honest, attack])
    mean_N = honest.mean(dim=0)
    tau = 4 * float(norms(honest - mean_N).max())
    v = centered_clip(x_GN, [1.0] * len(x_GN), tau, iterations=2_000)
    if float(norms(honest - v).max()) <= tau:
        moved = float(torch.linalg.vector_norm(v - mean_N))
        assert moved <= attackers / 5 * tau * (1 + 1e-4)


@given(st.integers(1, 9), st.integers(0, 2**31))
def test_rows_are_sorted_at_every_coordinate(members: int, seed: int) -> None:
    x_GN = torch.randn(members, 13, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(torch.stack(sorted_rows(x_GN)), x_GN.sort(dim=0).values)


def test_a_flipped_sign_is_clipped_at_the_groups_own_spread() -> None:
    generator = torch.Generator().manual_seed(4)
    direction = torch.randn(200, generator=generator)
    x_GN = direction + 0.3 * torch.randn(5, 200, generator=generator)
    x_GN[4] = -x_GN[4]
    centre_N = centre_of(x_GN)
    tau = suitable_tau(x_GN, centre_N)
    factors = clip_factors(x_GN, centre_N, tau)
    assert float(factors[4]) < 0.5
    assert float(factors[:4].min()) > 0.8
    v = centered_clip(x_GN, [1.0] * 5, tau)
    honest = x_GN[:4].mean(dim=0)
    plain = x_GN.mean(dim=0)
    error = float(torch.linalg.vector_norm(v - honest))
    assert error < 0.5 * float(torch.linalg.vector_norm(plain - honest))
