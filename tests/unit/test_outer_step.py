"""The outer step against worked examples (recipes F1 to F3), and its special cases.

Toy of F1: four replicas, scalar theta from 0, inner phase y = c + (x - c)/2.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.optim.mixing import (
    full_average,
    groups_matrix,
    identity,
    mix,
    outer_round,
)
from swarmd.optim.outer import outer_gradient, outer_step, outer_step_of_delta

C = torch.tensor([[-2.0], [0.0], [2.0], [8.0]], dtype=torch.float64)
J, I = full_average(4), identity(4)  # noqa: E741
A = groups_matrix([[0, 1], [2, 3]])
B = groups_matrix([[0, 2], [1, 3]])
DROPPED = groups_matrix([[0, 1, 2], [3]])
"""A replica that drops out is a group of one."""

F1 = {
    "DiLoCo": (
        [(J, J)] * 3,
        [[1.33] * 4, [2.34255] * 4, [2.81499925] * 4],
    ),
    "GlobalM1": (
        [(J, I)] * 3,
        [
            [-1.33, 0, 1.33, 5.32],
            [0.31745, 1.33, 2.34255, 5.3802],
            [0.10120075, 1.4581, 2.81499925, 6.885697],
        ],
    ),
    "GlobalM1LocalM2": (
        [(J, A), (J, B), (J, A)],
        [
            [-0.665, -0.665, 3.325, 3.325],
            [0.16205, 2.82205, 1.86305, 4.52305],
            [0.05313175, 1.18713175, 4.44286675, 5.57686675],
        ],
    ),
    "pairs": (
        [(A, B), (B, A), (A, B)],
        [
            [0, 2.66, 0, 2.66],
            [-1.54945, 2.24455, 2.44055, 6.23455],
            [-0.60929575, 0.54829425, 5.08170425, 6.23929425],
        ],
    ),
    "independent": (
        [(I, I)] * 3,
        [
            [-1.33, 0, 1.33, 5.32],
            [-2.34255, 0, 2.34255, 9.3702],
            [-2.81499925, 0, 2.81499925, 11.259997],
        ],
    ),
    "GlobalM1, replica 3 misses Mix1 in round 2": (
        [(J, I), (DROPPED, I), (J, I)],
        [
            [-1.33, 0, 1.33, 5.32],
            [-1.01255, 0, 1.01255, 9.3702],
            [0.98565075, 2.34255, 3.69944925, 4.232347],
        ],
    ),
}


def run_toy(
    matrices: list[tuple[Tensor, Tensor]], alpha: float = 0.7, mu: float = 0.9
) -> list[Tensor]:
    theta, momentum = torch.zeros_like(C), torch.zeros_like(C)
    history = []
    for mix1, mix2 in matrices:
        y = C + (theta - C) / 2
        d = outer_gradient(theta, y)
        theta = outer_round(theta, d, momentum, mix1, mix2, alpha=alpha, mu=mu)
        history.append(theta)
    return history


@pytest.mark.parametrize("case", F1)
def test_affine_toy_gives_the_values_worked_out_by_hand(case: str) -> None:
    matrices, expected = F1[case]
    for theta, values in zip(run_toy(matrices), expected, strict=True):
        assert theta.view(-1).tolist() == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("case", F1)
def test_mean_over_replicas_is_that_of_diloco_however_they_gossip(case: str) -> None:
    means = [float(theta.mean()) for theta in run_toy(F1[case][0])]
    assert means == pytest.approx([1.33, 2.34255, 2.81499925], abs=1e-9)


def test_without_momentum_at_full_step_each_keeps_its_progress_and_corrects_its_start() -> None:
    theta = torch.zeros_like(C)
    expected = [(-1, 0, 1, 4), (-0.5, 2, 0.5, 4), (0, -0.25, 3, 4.25)]
    for mix1, values in zip((A, B, A), expected, strict=True):
        y = C + (theta - C) / 2
        delta = mix(mix1, theta) - theta
        by_rule = outer_step(mix(mix1, theta), theta - y, None, alpha=1.0, mu=0.0)
        by_delta = outer_step_of_delta(theta, y, delta, None, None, alpha=1.0, mu=0.0)
        torch.testing.assert_close(by_rule, by_delta, rtol=0, atol=1e-12)
        assert torch.equal(by_delta, y + delta)
        theta = by_delta
        assert theta.view(-1).tolist() == pytest.approx(values, abs=1e-12)


def test_alone_at_full_step_without_momentum_goes_on_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(1_000, generator=generator) for _ in range(2))
    assert torch.equal(outer_step_of_delta(x, y, None, None, None, alpha=1.0, mu=0.0), y)


@pytest.mark.parametrize(("alpha", "mu"), [(1.0, 0.0), (0.7, 0.9), (0.5, 0.0), (1.0, 0.5)])
def test_delta_form_equals_the_step_from_mixed_vectors(alpha: float, mu: float) -> None:
    generator = torch.Generator().manual_seed(5)
    x, y, xmix, dmix, m = (
        torch.randn(257, generator=generator, dtype=torch.float64) for _ in range(5)
    )
    m_again = m.clone()
    direct = outer_step(xmix, dmix, m, alpha=alpha, mu=mu)
    by_delta = outer_step_of_delta(x, y, xmix - x, dmix, m_again, alpha=alpha, mu=mu)
    torch.testing.assert_close(by_delta, direct, rtol=0, atol=1e-12)
    assert torch.equal(m, m_again)
    m_own, m_own_again = m.clone(), m.clone()
    direct = outer_step(x, x - y, m_own, alpha=alpha, mu=mu)
    by_delta = outer_step_of_delta(x, y, None, None, m_own_again, alpha=alpha, mu=mu)
    torch.testing.assert_close(by_delta, direct, rtol=0, atol=1e-12)
    torch.testing.assert_close(m_own_again, m_own, rtol=0, atol=1e-12)


def test_step_is_that_of_torchs_nesterov_sgd() -> None:
    generator = torch.Generator().manual_seed(7)
    start = torch.randn(50, generator=generator, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    theta, momentum = start.clone(), torch.zeros_like(start)
    for _ in range(4):
        d = torch.randn(50, generator=generator, dtype=torch.float64)
        parameter.grad = d.clone()
        optimiser.step()
        theta = outer_step(theta, d, momentum, alpha=0.7, mu=0.9)
    torch.testing.assert_close(theta, parameter.detach(), rtol=0, atol=1e-12)


def test_one_step_a_round_is_synchronous_data_parallelism() -> None:
    generator = torch.Generator().manual_seed(11)
    theta = torch.randn(1, 20, generator=generator, dtype=torch.float64).expand(4, 20).clone()
    reference, eta = theta[0].clone(), 0.1
    for _ in range(3):
        targets = torch.randn(4, 20, generator=generator, dtype=torch.float64)
        y = theta - eta * (theta - targets)
        reference = reference - eta * (reference - targets).mean(dim=0)
        momentum = torch.zeros_like(theta)
        theta = outer_round(theta, theta - y, momentum, J, J, alpha=1.0, mu=0.0)
    torch.testing.assert_close(theta, reference.expand(4, 20), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["mix", "grad"])
def test_a_step_that_is_not_finite_changes_nothing(bad: float, place: str) -> None:
    mix_N, grad_N, momentum_N = torch.ones(5), torch.ones(5), torch.full((5,), 2.0)
    (mix_N if place == "mix" else grad_N)[3] = bad
    with pytest.raises(JobFailed, match="not_finite"):
        outer_step(mix_N, grad_N, momentum_N, alpha=0.7, mu=0.9)
    assert momentum_N.tolist() == [2.0] * 5
