"""The head and its cross-entropy in one, without ever holding all logits.

A micro-batch of 16,384 tokens with a vocabulary of 128,256 has 8.4 GB of float32 logits, and as
much again in their gradient. Here the logits are made a chunk of tokens at a time, and since the
loss is a scalar, their gradient is known up to one factor as soon as they are: the products with it
are taken at once, and the backward only scales them. The arithmetic is that of the plain form, 2
and 4 operations a weight and token; nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS_CPU = 1 << 20
CHUNK_LOGITS_DEVICE = 1 << 26
"""Logits at a time: 4 MiB of float32 stay in a CPU's cache, a GPU wants large products. Guesses."""


def head_loss(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Sum of the cross-entropies of N tokens, nats, a float32 (or float64) scalar."""
    limit = CHUNK_LOGITS_CPU if hidden_ND.device.type == "cpu" else CHUNK_LOGITS_DEVICE
    rows = max(1, limit // weight_VD.shape[0])
    graph = torch.is_grad_enabled()
    loss: Tensor = _HeadLoss.apply(hidden_ND, weight_VD, targets_N, rows, graph)  # type: ignore[no-untyped-call]
    return loss


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, rows: int, graph: bool
    ) -> Tensor:
        wants_hidden, wants_weight = (graph and wants for wants in ctx.needs_input_grad[:2])
        exact = torch.promote_types(hidden_ND.dtype, torch.float32)
        grad_hidden_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD) if wants_weight else None
        loss = torch.zeros((), dtype=exact, device=hidden_ND.device)
        for start in range(0, hidden_ND.shape[0], rows):
            part = slice(start, start + rows)
            h_ND, t_N1 = hidden_ND[part], targets_N[part, None]
            logprob_NV = F.log_softmax((h_ND @ weight_VD.T).to(exact), dim=-1)
            loss -= logprob_NV.gather(1, t_N1).sum()
            if not (wants_hidden or wants_weight):
                continue
            grad_NV = logprob_NV.exp_()
            grad_NV.scatter_add_(1, t_N1, torch.full_like(t_N1, -1, dtype=exact))
            if grad_hidden_ND is not None:
                grad_hidden_ND[part] = grad_NV @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad_NV.T @ h_ND
        ctx.gradients = (grad_hidden_ND, grad_weight_VD)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = (None if g is None else g * grad for g in ctx.gradients)
        return hidden, weight, None, None, None
