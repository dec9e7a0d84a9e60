"""How far replicas of a stage are apart: in what they predict, and in their parameters.

The Jensen-Shannon distance between the output distributions of two models follows loss spikes, the
distance between their parameters does not (reports on arXiv 2606.22768). It needs logits, hence a
whole pipeline, so it is measured rarely and on one fixed batch. What is always measured is the
stage's own |x - xmix| / |D|: how far its start lies from the mean of the starts, against how far a
round leads. Both are to be judged against the run's own median, not as absolute values.

Legend: R rows (tokens), V vocabulary, M replicas, N coordinates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS_AT_ONCE = 1_024
"""Bounds the float32 copies of a large vocabulary's logits."""

JS_DISTANCE_MAX = math.sqrt(math.log(2.0))


def js_distance(logits_RV: Tensor, other_RV: Tensor) -> float:
    """Mean over rows of the Jensen-Shannon distance between softmax(logits) and softmax(other).

    With m the mean of the two distributions: sqrt((KL(p|m) + KL(q|m)) / 2), natural logarithm, in
    0 .. sqrt(ln 2). Finite for every finite logit, in float32 whatever the input's type.
    """
    assert logits_RV.shape == other_RV.shape
    assert logits_RV.dim() == 2
    total = 0.0
    for start in range(0, len(logits_RV), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        p_RV = torch.log_softmax(logits_RV[rows].float(), dim=1)
        q_RV = torch.log_softmax(other_RV[rows].float(), dim=1)
        m_RV = torch.logaddexp(p_RV, q_RV) - math.log(2.0)
        divergence_R = 0.5 * (_kl(p_RV, m_RV) + _kl(q_RV, m_RV))
        total += float(divergence_R.clamp_min(0.0).sqrt().double().sum())
    return total / len(logits_RV)


def _kl(p_RV: Tensor, m_RV: Tensor) -> Tensor:
    """KL(p|m) of log-probabilities. m is nowhere much smaller than p, so no term is infinite; where
    p is zero the difference may be -inf minus -inf, and counts nothing."""
    p_RV = p_RV.clamp_min(-1e30)
    return (p_RV.exp() * (p_RV - m_RV.clamp_min(-1e30))).sum(dim=1)


def relative_disagreement(delta_norm: float, gradient_norm: float) -> float | None:
    """|x - xmix| / |D|; None where nothing was learned."""
    return delta_norm / gradient_norm if gradient_norm > 0 else None


def spread(x_MN: Tensor) -> float:
    """Unbiased variance between replicas, averaged over coordinates."""
    deviations_MN = x_MN - x_MN.mean(dim=0)
    return float(deviations_MN.double().square().sum() / ((len(x_MN) - 1) * x_MN.shape[1]))
