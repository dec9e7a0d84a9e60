"""Gradients of one micro-batch over its slices, and of micro-batches until the next inner step.

Sums and a count, not a running mean: however a peer's samples are cut into micro-batches, and
however many it got, the step uses sum / count (algorithms.md 3.1). Nothing enters that is not
finite, so one bad micro-batch costs itself and not the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.optim.inner import gradient_norm


class GradientSums:
    """Sum over samples of the gradient of the mean loss per token, by the name of the weight."""

    def __init__(self) -> None:
        self.samples = 0
        self._sums: dict[str, Tensor] = {}
        self._owned = False
        """Whether the sums are ours to change; a first gradient is kept as autograd gave it, and
        autograd may give one tensor under two names."""

    @torch.no_grad()
    def add(self, grads: Mapping[str, Tensor], samples: int) -> None:
        """Raises JobFailed(not_finite), with nothing changed."""
        if not math.isfinite(gradient_norm(grads)):
            raise JobFailed("not_finite", "the gradient of the weights is not finite")
        given = list(grads.values())
        sums = list(self._sums.values())
        if not self.samples:
            self._sums, self._owned = dict(grads), False
        elif self._owned:
            torch._foreach_add_(sums, given)
        else:
            fresh = torch._foreach_add(sums, given)
            self._sums, self._owned = dict(zip(self._sums, fresh, strict=True)), True
        self.samples += samples

    def take(self) -> tuple[dict[str, Tensor], int]:
        """(sums, samples), and begin again from nothing."""
        taken = self._sums, self.samples
        self._sums, self.samples, self._owned = {}, 0, False
        return taken


class MicroBatchGradients:
    """Gradients of one micro-batch over its slices."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self._inputs: list[Tensor] = []

    def add(
        self,
        of: Tensor,
        gradient: Tensor | None,
        weights: dict[str, Tensor],
        leaf_BTK: Tensor | None,
    ) -> None:
        """Differentiate `of`, weighted by `gradient` unless it is a scalar, by the weights and by
        what was received. Consumes the graph."""
        leaves = [*weights.values(), *([] if leaf_BTK is None else [leaf_BTK])]
        if not leaves:
            return
        grads = list(torch.autograd.grad(of, leaves, gradient))
        if leaf_BTK is not None:
            self._inputs.append(grads.pop())
        if self.weights:
            grads = list(torch._foreach_add(list(self.weights.values()), grads))
        self.weights = dict(zip(weights, grads, strict=True))

    def input_gradient(self) -> Tensor:
        return self._inputs[0] if len(self._inputs) == 1 else torch.cat(self._inputs)
