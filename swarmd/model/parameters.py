"""Where the weights start, and how an optimiser treats each: by name.

Names and shapes are those of swarmd/partition.py. Every start value is a pure function of (seed,
name), where layers are counted over the whole model: a layer has equal bits on every peer, platform
and cut into stages. The exception is in the name: a writer is `o` and `down` (dense) on the last
stage and `o_z` and `down_z` (factored) before it, drawn apart, with standard deviations such that
the branch's output has the same norm (algorithms.md 1.7). An anchor belongs to a stage, so its key
is the stage's first layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarmd.model.counter_random import derive_key, gaussian
from swarmd.partition import Shapes
from swarmd.run_config import RunConfig

WEIGHT_STD = 0.02


def start_std(run: RunConfig, name: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of a parameter's start values; 0: zeros, as the gains' offset from 1."""
    model, boundary = run.model, run.boundary
    kind = name.rsplit(".", 1)[-1]
    if name == "embedding.weight":
        return boundary.table_std
    if name == "anchor.r":
        # A step on b then moves the table about as far as one on a full table would.
        return 1 / math.sqrt(shape[0])
    if name in ("embedding.e", "anchor.full", "anchor.b") or len(shape) == 1:
        return 0.0
    if kind in ("o", "down"):
        return WEIGHT_STD
    if kind in ("o_z", "down_z"):
        return WEIGHT_STD * math.sqrt(model.width / boundary.rank)
    return WEIGHT_STD


def start_values(
    run: RunConfig, shapes: Shapes, first_layer: int, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Leaf tensors that require grad, in the order of `shapes`."""
    values: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        std = start_std(run, name, shape)
        if std > 0:
            label = f"{name}@{first_layer}" if name.startswith("anchor.") else name
            value = gaussian(derive_key(run.seed, "start", label), shape, std, device=device)
        elif len(shape) == 1:
            value = torch.ones(shape, device=device)
        else:
            value = torch.zeros(shape, device=device)
        values[name] = value.to(dtype).requires_grad_()
    return values


def decays(name: str) -> bool:
    """Weight decay applies to matrices. Not to gains, whose rest position is 1; not to tables with
    a row a token (embedding, anchors): decay would act at every step on rows whose token has not
    occurred."""
    return not _is_gain(name) and name not in (
        "embedding.weight",
        "embedding.e",
        "anchor.full",
        "anchor.b",
    )


def orthogonalises(name: str) -> bool:
    """Whether Muon may take it: the layers' matrices. All else is AdamW's."""
    return name.startswith("layers.") and not _is_gain(name)


def _is_gain(name: str) -> bool:
    return name.endswith(".norm") or name == "norm.final"
