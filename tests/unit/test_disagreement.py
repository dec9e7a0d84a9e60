"""Jensen-Shannon distance (recipe F11), the stage's own measure, and the cost model (F12)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from swarmd.optim.cost_model import (
    diloco_utilisation,
    exchange_s,
    factored_utilisation,
    synchronous_utilisation,
)
from swarmd.optim.disagreement import (
    JS_DISTANCE_MAX,
    js_distance,
    relative_disagreement,
    spread,
)


def logits(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("p", "q", "distance"),
    [
        ((1.0, 0.0), (0.0, 1.0), 0.832555),
        ((0.5, 0.5), (0.9, 0.1), 0.318982),
        ((0.25,) * 4, (0.4, 0.3, 0.2, 0.1), 0.166930),
        ((0.3, 0.7), (0.3, 0.7), 0.0),
    ],
)
def test_js_distance_of_known_distributions(
    p: tuple[float, ...], q: tuple[float, ...], distance: float
) -> None:
    assert js_distance(logits(*p), logits(*q)) == pytest.approx(distance, abs=1e-6)
    assert js_distance(logits(*q), logits(*p)) == pytest.approx(distance, abs=1e-6)


def test_js_distance_is_finite_and_bounded_for_extreme_logits() -> None:
    generator = torch.Generator().manual_seed(1)
    one = 1e4 * torch.randn(3_000, 50, generator=generator).sign()
    other = 1e4 * torch.randn(3_000, 50, generator=generator).sign()
    distance = js_distance(one, other)
    assert math.isfinite(distance)
    assert 0 < distance <= JS_DISTANCE_MAX + 1e-6
    opposite = torch.tensor([[1e4, -1e4]])
    assert js_distance(opposite, -opposite) == pytest.approx(JS_DISTANCE_MAX, abs=1e-6)


def test_js_distance_is_a_mean_over_rows_however_they_are_cut() -> None:
    generator = torch.Generator().manual_seed(2)
    one, other = (torch.randn(2_500, 7, generator=generator) for _ in range(2))
    rows = [js_distance(one[i : i + 1], other[i : i + 1]) for i in range(0, 2_500, 50)]
    some = js_distance(one[::50], other[::50])
    assert some == pytest.approx(sum(rows) / len(rows), abs=1e-6)


def test_relative_disagreement_says_nothing_where_nothing_was_learned() -> None:
    assert relative_disagreement(3.0, 6.0) == 0.5
    assert relative_disagreement(3.0, 0.0) is None
    assert spread(torch.tensor([[0.0], [2.0]])) == 2.0


def test_cost_model_meets_the_published_utilisations() -> None:
    """K(200 Mbit/s) = 1, so that 53 % for DiLoCo fixes C; figures of algorithms.md 2.9."""
    k200 = exchange_s(1.0, 1.0, 1_000_000) / 2
    compute_s = 0.53 / 0.47 * k200
    assert compute_s == pytest.approx(1.128, abs=1e-3)
    percent = [
        100 * diloco_utilisation(compute_s, k200),
        100 * diloco_utilisation(compute_s, 2 * k200),
        100 * synchronous_utilisation(compute_s, 100, 2 * k200),
        100 * factored_utilisation(compute_s, k200, 0.0),
        100 * factored_utilisation(compute_s, 2 * k200, 0.0),
    ]
    assert percent == pytest.approx([53, 36.1, 0.6, 100, 56.4], abs=0.1)


def test_cost_model_predicts_pairs() -> None:
    def compute_s(members: int) -> float:
        return 0.53 / 0.47 * exchange_s(1.0, 1.0, members)

    for members, low, high in ((8, 66, 67), (16, 67, 68)):
        mix1_s, mix2_s = exchange_s(1.0, 1.0, members), exchange_s(1.0, 1.0, 2)
        whole = factored_utilisation(compute_s(members), mix1_s, mix2_s)
        covered = factored_utilisation(compute_s(members), mix1_s, 0.43 * mix2_s)
        assert low - 0.5 <= 100 * whole <= high + 0.5
        assert 82 <= round(100 * covered) <= 83
        slow_s = exchange_s(1.0, 0.5, 2)
        pairs = factored_utilisation(compute_s(members), slow_s, slow_s)
        assert 49 <= round(100 * pairs) <= 51
