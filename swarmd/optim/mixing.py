"""Mixing over replicas: matrices that say who averages with whom, and means over what arrived.

A mixing matrix is row-stochastic: row i holds the weights with which replica i averages. In the
product nobody builds one (protocols/exchange.py); each replica averages what came and divides by
the weight that came, which is a row of such a matrix. This file is the mathematics that the
exchange must agree with, the reference for its tests, and what the experiments are made of.

With doubly stochastic matrices the means of theta and of the momentum over replicas obey DiLoCo's
recursion with the mean of D (algorithms.md 2.7): how the gossip runs changes only where the D are
taken. Equal weights inside groups are doubly stochastic; weights by samples are not.

Legend: M replicas, N coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarmd.optim.outer import outer_step

Groups = Sequence[Sequence[int]]


def identity(replicas: int) -> Tensor:
    """Nobody mixes."""
    return torch.eye(replicas, dtype=torch.float64)


def groups_matrix(groups: Groups, weights: Sequence[float] | None = None) -> Tensor:
    """Everybody averages inside its group. groups: a partition of 0 .. M-1.

    weights: one a replica; None: equal. A group without any weight keeps what it has.
    """
    replicas = sum(len(group) for group in groups)
    assert sorted(i for group in groups for i in group) == list(range(replicas)), "a partition"
    rows = [[0.0] * replicas for _ in range(replicas)]
    for group in groups:
        shares = {i: 1.0 if weights is None else weights[i] for i in group}
        total = sum(shares.values())
        for row in group:
            for column in group:
                rows[row][column] = shares[column] / total if total else float(row == column)
    return torch.tensor(rows, dtype=torch.float64)


def full_average(replicas: int) -> Tensor:
    """J: everybody averages with everybody."""
    return groups_matrix([range(replicas)])


def without_result(matrix_MM: Tensor, missed: Sequence[int]) -> Tensor:
    """The same, but the replicas `missed` keep what they have: their rows become e_i."""
    changed_MM = matrix_MM.clone()
    for row in missed:
        changed_MM[row] = 0.0
        changed_MM[row, row] = 1.0
    return changed_MM


def without_senders(matrix_MM: Tensor, lost: Sequence[int]) -> Tensor:
    """The same, but what the replicas `lost` sent reached nobody: the rows of the others are
    divided by the weight that is left."""
    changed_MM = matrix_MM.clone()
    for column in lost:
        own = changed_MM[column, column].clone()
        changed_MM[:, column] = 0.0
        changed_MM[column, column] = own
    return changed_MM / changed_MM.sum(dim=1, keepdim=True)


def mix(matrix_MM: Tensor, x_MN: Tensor) -> Tensor:
    return matrix_MM.to(x_MN) @ x_MN


def outer_round(
    x_MN: Tensor,
    d_MN: Tensor,
    momentum_MN: Tensor,
    mix1_MM: Tensor,
    mix2_MM: Tensor,
    *,
    alpha: float,
    mu: float,
) -> Tensor:
    """One outer round of the whole swarm at once: the next starts. momentum_MN changes in place."""
    return outer_step(mix(mix1_MM, x_MN), mix(mix2_MM, d_MN), momentum_MN, alpha=alpha, mu=mu)


def weighted_mean(
    values: Sequence[Tensor], weights: Sequence[float]
) -> tuple[Tensor | None, float]:
    """(mean over what arrived, weight that arrived); (None, 0) if nothing of weight did.

    The order of the sum is the order given, so equal inputs give equal bits.
    """
    assert len(values) == len(weights)
    total = float(sum(weights))
    if total <= 0:
        return None, 0.0
    sum_N = torch.zeros_like(values[0])
    for value_N, weight in zip(values, weights, strict=True):
        if weight > 0:
            sum_N.add_(value_N, alpha=weight)
    return sum_N.div_(total), total


# --------------------------------------------------------------------------------------- theory


def contraction(group_count: int, replicas: int) -> float:
    """rho: by what the expected squared disagreement is multiplied when `replicas` are split at
    random into so many groups, of whatever sizes, and each averages (algorithms.md 2.7)."""
    assert 1 <= group_count <= replicas
    return (group_count - 1) / (replicas - 1) if replicas > 1 else 0.0


def disagreement_at_start(rho1: float, rho2: float) -> float:
    """Variance between replicas at the start of a round, in units of what one inner phase adds
    (alpha 1, mu 0). At the end of the inner phase it is one more."""
    return rho2 / (1.0 - rho1)
