"""The outer step of Factored Gossip DiLoCo (arXiv 2606.22768), on flat vectors of one replica.

    D     = x - y                               the outer gradient: where the round began, and ended
    m     = mu m + Dmix                         momentum, local, never mixed
    theta = xmix - alpha (Dmix + mu m)          Nesterov, as torch.optim.SGD has it

x is the round's start, y where the inner steps led, xmix the mean of the starts over a group (Mix1)
and Dmix that of the outer gradients (Mix2). D belongs to this very round; only the point it is
applied to has moved, from x to xmix. So nothing is stale.

With both mixes over all replicas this is DiLoCo; with alpha 1, mu 0 and the own D it reads
theta = y + (xmix - x): keep the own progress, add the correction of the start. That form is what
`outer_step_of_delta` computes, so that a replica that is alone goes on from y, bit for bit.

Legend: N coordinates of a stage, or of a fragment of it; every coordinate is on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swarmd.errors import JobFailed


def outer_gradient(start_N: Tensor, end_N: Tensor) -> Tensor:
    """D = x - y."""
    return start_N - end_N


def outer_step(
    mix_N: Tensor, grad_N: Tensor, momentum_N: Tensor | None, *, alpha: float, mu: float
) -> Tensor:
    """The next round's start.

    mix_N: xmix. grad_N: Dmix. momentum_N: this replica's, changed in place; None where mu is 0.
    Raises JobFailed(not_finite), with momentum_N untouched, if the result would not be finite.
    """
    assert momentum_N is not None or mu == 0, "momentum needs a place"
    fresh_N = step_N = grad_N
    if momentum_N is not None:
        fresh_N = torch.add(grad_N, momentum_N, alpha=mu)
        step_N = torch.add(grad_N, fresh_N, alpha=mu)
    theta_N = torch.sub(mix_N, step_N, alpha=alpha)
    if not is_finite(theta_N):
        raise JobFailed("not_finite", "the outer step would not be finite")
    if momentum_N is not None:
        momentum_N.copy_(fresh_N)
    return theta_N


def outer_step_of_delta(
    start_N: Tensor,
    end_N: Tensor | None,
    delta_N: Tensor | None,
    grad_N: Tensor | None,
    momentum_N: Tensor | None,
    *,
    alpha: float,
    mu: float,
) -> Tensor:
    """The same, from what a worker holds: x, y, and Mix1's result as delta = xmix - x.

    delta_N None: Mix1 gave nothing, xmix = x. grad_N None: Mix2 gave nothing, Dmix = the own D, and
    only then y matters. momentum_N, errors: as `outer_step`.
    """
    assert end_N is not None or grad_N is not None, "a step needs a gradient"
    if grad_N is None and end_N is not None and alpha == 1 and mu == 0:
        theta_N = end_N.clone() if delta_N is None else end_N + delta_N
        if not is_finite(theta_N):
            raise JobFailed("not_finite", "the outer step would not be finite")
        if momentum_N is not None:
            momentum_N.copy_(outer_gradient(start_N, end_N))
        return theta_N
    mix_N = start_N if delta_N is None else start_N + delta_N
    if grad_N is None:
        assert end_N is not None, "see above"
        grad_N = outer_gradient(start_N, end_N)
    return outer_step(mix_N, grad_N, momentum_N, alpha=alpha, mu=mu)


def is_finite(x_N: Tensor) -> bool:
    """Every entry is a number. One pass, without a mask: infinities and NaN both survive a minimum
    and a maximum."""
    if x_N.numel() == 0:
        return True
    low, high = torch.aminmax(x_N)
    largest = torch.finfo(x_N.dtype).max
    return bool(low >= -largest) and bool(high <= largest)
