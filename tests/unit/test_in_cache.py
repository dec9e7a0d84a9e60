"""Long vectors in blocks: the same results as in one piece."""

from __future__ import annotations

import math

import pytest
import torch

from swarmd.compute import in_cache
from swarmd.optim import robust
from swarmd.optim.mixing import weighted_mean

SEED = 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_cache, "BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(in_cache, "MEAN_ELEMENTS", 48)


def vectors(count: int, elements: int = 301) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randn(elements, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_length_is_finite_exactly_where_every_coordinate_is(bad: float) -> None:
    (x_N,) = vectors(1)
    for place in (0, 63, 64, 300):
        spoilt_N = x_N.clone()
        spoilt_N[place] = bad
        assert not math.isfinite(in_cache.norm_of(spoilt_N))
    for scale in (1e-30, 1.0, 1e37):
        assert in_cache.norm_of(x_N * scale) == pytest.approx(scale * float(x_N.norm()), rel=1e-5)
    assert in_cache.norm_of(torch.zeros(301)) == 0.0


@pytest.mark.parametrize("members", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mean_in_blocks_is_the_mean_to_the_bit(members: int, dtype: torch.dtype) -> None:
    sent = [x_N.to(dtype) for x_N in vectors(members)]
    rows = [x_N.float() for x_N in sent]
    weights = [float(1 + number % 3) for number in range(members)]
    expected_N, _ = weighted_mean(rows, weights)
    assert expected_N is not None
    out_N = torch.empty(301, dtype=dtype)
    sizes = in_cache.mean_of_sound(sent, weights, out_N, None)
    assert torch.equal(out_N, expected_N.to(dtype))
    assert sizes == pytest.approx([float(row_N.norm()) for row_N in rows], rel=1e-5)
    apart = in_cache.mean_of_sound(sent, weights, out_N, 0)
    middle_N = robust.centre_of(torch.stack(rows)) if members > 2 else rows[0]
    assert apart == pytest.approx([float((r - middle_N).norm()) for r in rows], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("middle", [None, 0])
def test_whatever_is_not_finite_is_seen_in_any_block(middle: int | None) -> None:
    out_N = torch.empty(301)
    for place in (0, 100, 300):
        rows = vectors(4)
        rows[2][place] = math.inf
        assert in_cache.mean_of_sound(rows, [1.0] * 4, out_N, middle) is None
    huge = [torch.full((301,), 3e38)] * 4
    assert in_cache.mean_of_sound(huge, [1.0] * 4, out_N, 0) is None, "their sum is not finite"
