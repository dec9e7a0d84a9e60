"""What averaging in groups does to disagreement (recipes F4, F5), and to a mean when parts are
missing (R5). Seeds are fixed; a tolerance stands beside each figure."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarmd.optim.disagreement import spread
from swarmd.optim.mixing import (
    contraction,
    disagreement_at_start,
    groups_matrix,
    identity,
    mix,
    outer_round,
    weighted_mean,
    without_result,
    without_senders,
)


def split(order: list[int], sizes: list[int]) -> list[list[int]]:
    groups, start = [], 0
    for size in sizes:
        groups.append(order[start : start + size])
        start += size
    return groups


def random_groups(rng: random.Random, sizes: list[int]) -> list[list[int]]:
    order = list(range(sum(sizes)))
    rng.shuffle(order)
    return split(order, sizes)


@pytest.mark.parametrize(
    ("sizes", "rho"),
    [
        ([2] * 4, 0.428571),
        ([4] * 2, 0.142857),
        ([8], 0.0),
        ([2] * 8, 0.466667),
        ([4] * 4, 0.2),
        ([8] * 2, 0.066667),
        ([4, 3], 0.166667),
        ([7, 1], 0.142857),
        ([2, 2, 2, 3], 0.375),
        ([5, 1, 1, 1], 0.428571),
    ],
)
def test_random_groups_contract_disagreement_by_their_number(sizes: list[int], rho: float) -> None:
    replicas, draws = sum(sizes), 4_000
    assert contraction(len(sizes), replicas) == pytest.approx(rho, abs=1e-6)
    rng = random.Random(1)
    x_MD = torch.randn(
        replicas, draws, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    places = torch.tensor(
        [[i for group in random_groups(rng, sizes) for i in group] for _ in range(draws)]
    ).T
    shuffled_MD = x_MD.gather(0, places)
    mixed_MD = mix(groups_matrix(split(list(range(replicas)), sizes)), shuffled_MD)
    ratio = spread(mixed_MD) / spread(shuffled_MD)
    assert ratio == pytest.approx(rho, abs=0.02)


# ------------------------------------------------------------------------------------- noise model

Order = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(x at the start, noise, W1, W2) -> (x where it was measured as start, y, next start)."""


def in_parallel(x: Tensor, noise: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x + noise
    momentum = torch.zeros_like(x)
    return x, y, outer_round(x, x - y, momentum, w1, w2, alpha=1.0, mu=0.0)


def mix_after_the_step(
    x: Tensor, noise: Tensor, w1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    y = x + noise
    return x, y, mix(w1, x - mix(w2, x - y))


def mix_before_the_inner_phase(
    x: Tensor, noise: Tensor, w1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    start = mix(w1, x)
    y = start + noise
    return start, y, start - mix(w2, start - y)


def measured(order: Order, g1: int, g2: int, *, replicas: int = 8) -> tuple[float, float]:
    """Variance between replicas at the start and at the end of an inner phase of unit noise."""
    coordinates, rounds, warm = 2_000, 400, 100
    rng, generator = random.Random(g1 * 10 + g2), torch.Generator().manual_seed(g1 * 10 + g2)
    x = torch.zeros(replicas, coordinates, dtype=torch.float64)
    starts = ends = 0.0
    for number in range(rounds):
        w1 = groups_matrix(random_groups(rng, [g1] * (replicas // g1)))
        w2 = groups_matrix(random_groups(rng, [g2] * (replicas // g2)))
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        start, y, x = order(x, noise, w1, w2)
        if number >= warm:
            starts += spread(start) / (rounds - warm)
            ends += spread(y) / (rounds - warm)
    return starts, ends


@pytest.mark.parametrize(
    ("g1", "g2", "start", "end"),
    [
        (8, 1, 1.0, 2.0),
        (8, 2, 0.4286, 1.4286),
        (4, 1, 1.1667, 2.1667),
        (4, 2, 0.5, 1.5),
        (4, 4, 0.1667, 1.1667),
        (2, 1, 1.75, 2.75),
        (2, 2, 0.75, 1.75),
    ],
)
def test_disagreement_settles_where_the_bound_says(
    g1: int, g2: int, start: float, end: float
) -> None:
    rho1, rho2 = contraction(8 // g1, 8), contraction(8 // g2, 8)
    assert disagreement_at_start(rho1, rho2) == pytest.approx(start, abs=1e-3)
    assert measured(in_parallel, g1, g2) == pytest.approx((start, end), abs=0.04)


@pytest.mark.parametrize("order", [mix_after_the_step, mix_before_the_inner_phase])
@pytest.mark.parametrize(
    ("g1", "g2", "start", "end"),
    [(4, 2, 0.0714, 1.0714), (2, 2, 0.3214, 1.3214), (2, 1, 0.75, 1.75)],
)
def test_blocking_orders_are_told_apart_by_their_disagreement(
    order: Order, g1: int, g2: int, start: float, end: float
) -> None:
    assert measured(order, g1, g2) == pytest.approx((start, end), abs=0.04)


# ------------------------------------------------------------------------------ missing and partial


def values(*numbers: float) -> list[Tensor]:
    return [torch.tensor([number], dtype=torch.float64) for number in numbers]


def test_a_mean_divides_by_the_weight_that_came() -> None:
    everything, total = weighted_mean(values(10, 20, 30), [1, 2, 3])
    assert everything is not None
    assert (float(everything), total) == (pytest.approx(23.3333333333), 6.0)
    third_missing, total = weighted_mean(values(10, 20), [1, 2])
    assert third_missing is not None
    assert (float(third_missing), total) == (pytest.approx(16.6666666667), 3.0)
    third_weightless, total = weighted_mean(values(10, 20, 30), [1, 2, 0])
    assert third_weightless is not None
    assert (float(third_weightless), total) == (pytest.approx(16.6666666667), 3.0)
    alone, total = weighted_mean(values(10), [1])
    assert alone is not None
    assert (float(alone), total) == (10.0, 1.0)
    assert weighted_mean(values(10, 20), [0, 0]) == (None, 0.0)


def test_what_is_missing_changes_rows_as_the_failure_rules_say() -> None:
    w = groups_matrix([[0, 1, 2], [3]], weights=[1, 2, 3, 1])
    assert w[0].tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])
    assert without_senders(w, [2])[0].tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0])
    assert without_result(w, [0])[0].tolist() == [1, 0, 0, 0]
    assert groups_matrix([[0, 1]], weights=[0, 0]).tolist() == identity(2).tolist()


@given(
    st.integers(2, 9).flatmap(
        lambda m: st.tuples(
            st.permutations(range(m)),
            st.integers(1, m),
            st.lists(st.integers(0, m - 1), max_size=m - 1, unique=True),
            st.lists(st.integers(0, m - 1), max_size=m, unique=True),
        )
    )
)
def test_rows_stay_averages_whoever_is_missing(
    case: tuple[list[int], int, list[int], list[int]],
) -> None:
    order, count, lost, missed = case
    sizes = [len(order) // count + (i < len(order) % count) for i in range(count)]
    w = without_result(without_senders(groups_matrix(split(list(order), sizes)), lost), missed)
    assert bool((w >= 0).all())
    torch.testing.assert_close(w.sum(dim=1), torch.ones(len(order), dtype=torch.float64))


def test_means_over_replicas_follow_diloco_for_random_groups() -> None:
    generator, rng = torch.Generator().manual_seed(9), random.Random(9)
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    momentum = torch.zeros_like(x)
    mean_x, mean_m = x.mean(dim=0), torch.zeros(5, dtype=torch.float64)
    for _ in range(5):
        d = torch.randn(6, 5, generator=generator, dtype=torch.float64)
        w1 = groups_matrix(random_groups(rng, [2, 2, 2]))
        w2 = groups_matrix(random_groups(rng, [3, 3]))
        x = outer_round(x, d, momentum, w1, w2, alpha=0.7, mu=0.9)
        mean_m = 0.9 * mean_m + d.mean(dim=0)
        mean_x = mean_x - 0.7 * (d.mean(dim=0) + 0.9 * mean_m)
        torch.testing.assert_close(x.mean(dim=0), mean_x, rtol=0, atol=1e-12)
        torch.testing.assert_close(momentum.mean(dim=0), mean_m, rtol=0, atol=1e-12)
