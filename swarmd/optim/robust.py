"""Means that one bad member cannot steer, by as much as it likes.

    norm rule      each contribution is scaled to at most the group's median norm. Free of charge;
                   ends scale attacks, says nothing about directions.
    CenteredClip   a mean in which nobody pulls with more than tau (arXiv 2012.10333; its use in a
                   butterfly exchange: BTARD, arXiv 2106.11257). If the honest weight h lies within
                   tau of the result and the attackers weigh b < h, they move it by at most
                   (b/h) tau, whatever they send. If b >= h, without limit: cap weights first.

Clip differences (outer gradients, or a replica's distance from the others), never raw parameters.
In pairs there is no majority: only the norm rule helps.

At the fixed point of the clip the weighted clipped residuals sum to zero. Whoever knows the
residuals' products with a random vector can check that without redoing the mean (`is_fixed_point`);
BTARD builds its verification on this. Here it is a function with a test; the exchange does not run
it yet.

Legend: G members of a group, N coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ITERATIONS = 20
STEP_MIN = 1e-6
TAU_MEDIANS = 1.5
"""tau as a multiple of the median distance from the coordinate-wise median. Guess, never tuned."""


def norms(x_GN: Tensor) -> Tensor:
    """Euclidean, in float64: squares of large float32 would overflow."""
    return torch.linalg.vector_norm(x_GN, dim=1, dtype=torch.float64)


def limit_norms(x_GN: Tensor, norm_max: float | None = None) -> Tensor:
    """The norm rule. norm_max: the limit; None: the group's median norm."""
    norms_G = norms(x_GN)
    limit = float(norms_G.median()) if norm_max is None else norm_max
    factors_G = (limit / norms_G.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return x_GN * factors_G[:, None].to(x_GN)


def capped_weights(weights: Sequence[float]) -> list[float]:
    """No weight above the median of those that have any: what a claim can gain is bounded."""
    held = sorted(weight for weight in weights if weight > 0)
    if not held:
        return list(weights)
    middle = held[len(held) // 2] if len(held) % 2 else held[len(held) // 2 - 1]
    return [min(weight, middle) for weight in weights]


def centre_of(x_GN: Tensor) -> Tensor:
    """The coordinate-wise median: of an even number, the mean of the middle two."""
    members = len(x_GN)
    if members <= 2:
        return x_GN.mean(dim=0)
    return middle_of(list(x_GN))


def middle_of(rows: Sequence[Tensor]) -> Tensor:
    """The same of three members or more, one row each."""
    rows = sorted_rows(rows)
    return rows[(len(rows) - 1) // 2].lerp(rows[len(rows) // 2], 0.5)


def sorted_rows(x_GN: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Each coordinate's values in ascending order: the g-th row has every coordinate's g-th.

    G rounds of exchanges between neighbours: members are few and coordinates very many, where a
    sort along the members takes many times as long.
    """
    rows = list(x_GN)
    for turn in range(len(rows)):
        for low in range(turn % 2, len(rows) - 1, 2):
            pair = rows[low], rows[low + 1]
            rows[low], rows[low + 1] = torch.minimum(*pair), torch.maximum(*pair)
    return rows


def suitable_tau(x_GN: Tensor, centre_N: Tensor) -> float:
    """The radius that fits what a group sent: its median distance from its median, and a margin.

    A minority cannot move a median, so it may be taken from the very contributions it judges.
    """
    return TAU_MEDIANS * float(norms(x_GN - centre_N).median())


def clip_factors(x_GN: Tensor, centre_N: Tensor, tau: float) -> Tensor:
    """How much of each member's residual counts, in 0..1."""
    distances_G = norms(x_GN - centre_N)
    return torch.where(distances_G <= tau, 1.0, tau / distances_G.clamp_min(1e-300))


def centered_clip(
    x_GN: Tensor,
    weights: Sequence[float],
    tau: float,
    *,
    centre_N: Tensor | None = None,
    iterations: int = ITERATIONS,
) -> Tensor:
    """The robust mean, from `centre_N` (None: the coordinate-wise median) in so many iterations.

    weights: not negative, capped, not all zero.
    """
    v_N = (centre_of(x_GN) if centre_N is None else centre_N).clone()
    weights_G = torch.tensor(weights, dtype=torch.float64, device=x_GN.device)
    total = float(weights_G.sum())
    assert total > 0, "somebody weighs something"
    for _ in range(iterations):
        pulls_G = (weights_G * clip_factors(x_GN, v_N, tau) / total).to(x_GN)
        step_N = torch.mv((x_GN - v_N).T, pulls_G)
        v_N += step_N
        if float(torch.linalg.vector_norm(step_N)) < STEP_MIN:
            break
    return v_N


def clipped_products(x_GN: Tensor, v_N: Tensor, tau: float, z_N: Tensor) -> Tensor:
    """<z, clipped residual> of each member: what each publishes in BTARD."""
    return ((x_GN - v_N) @ z_N).double() * clip_factors(x_GN, v_N, tau)


def is_fixed_point(products_G: Tensor, weights: Sequence[float], z_norm: float, tau: float) -> bool:
    """Whether the published products agree with an honest reducer: their weighted sum vanishes."""
    weights_G = torch.tensor(weights, dtype=torch.float64)
    return abs(float(products_G.double() @ weights_G)) <= 1e-6 * z_norm * tau
