"""Where the weights start, and how an optimiser treats each: by name.

Names and shapes are those of swarmd/partition.py. Every start value is a pure function of (seed,
name), where layers are counted over the whole model: a layer has equal bits on every peer, platform
and cut into stages. An anchor belongs to a stage, so its key is the stage's first layer.

Writers start at zero, whether factored (`o_z`, `down_z`) or, on the last stage, dense (`o`,
`down`), and so do E and the anchors. Hence a model computes the same at the start however it is
cut, and in a subspace of whatever rank: T_fixed straight into the head. Readers start at
0.5/sqrt(inputs). Measured against 0.02 for all weights: 150 steps of 2,048 tokens of source code,
d=128, 4 layers, a boundary after each, AdamW 2e-3, one seed; held-out loss, k=32:

    all weights at 0.02                            2.164   (T_fixed at std 0.1: 2.108)
    writers 0, readers 0.5/sqrt(inputs)            2.085   (T_fixed at std 0.1: 2.076)
    writers 0, readers 1/sqrt(inputs)              2.070   (T_fixed at std 0.1: 2.023)
    writers 0, readers 0.02                        2.183
    writers 0.02, readers 1/sqrt(inputs)           2.239

The half is a compromise. The first steps of AdamW move every writer by the learning rate, which
under unit readers and a T_fixed of std 0.02 drowns the tokens: at d=32, learning rate 5e-3 and four
steps of warm-up the loss after 20 steps is 4.536, against 4.392 with the half and 4.393 with 0.02.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarmd.model.counter_random import derive_key, gaussian
from swarmd.partition import Shapes, is_writer
from swarmd.run_config import RunConfig

_TABLES = ("embedding.weight", "embedding.e", "anchor.full", "anchor.b")
"""A row a token: a row gets a gradient only from micro-batches in which its token occurs."""


def start_std(run: RunConfig, name: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of a matrix's start values; 0: zeros."""
    if name == "embedding.weight":
        return run.boundary.table_std
    if name in _TABLES or is_writer(name):
        return 0.0
    if name == "anchor.r":
        # A step on b then moves the table about as far as one on a full table would.
        return 1 / math.sqrt(shape[0])
    if name == "head.weight":
        # Logits of a quarter: the first loss is that of guessing, 3 % above log V.
        return 0.25 / math.sqrt(run.model.width)
    return 0.5 / math.sqrt(shape[0])


def start_values(
    run: RunConfig, shapes: Shapes, first_layer: int, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Leaf tensors that require grad, in the order of `shapes`."""
    values: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            value = torch.ones(shape, device=device)
        elif (std := start_std(run, name, shape)) == 0:
            value = torch.zeros(shape, device=device)
        else:
            label = f"{name}@{first_layer}" if name.startswith("anchor.") else name
            value = gaussian(derive_key(run.seed, "start", label), shape, std, device=device)
        values[name] = value.to(dtype).requires_grad_()
    return values


def decays(name: str) -> bool:
    """Weight decay applies to matrices. Not to gains, whose rest position is 1; not to tables with
    a row a token: decay would act at every step on rows whose token has not occurred."""
    return not _is_gain(name) and name not in _TABLES


def orthogonalises(name: str) -> bool:
    """Whether Muon may take it: the layers' matrices. All else is AdamW's."""
    return name.startswith("layers.") and not _is_gain(name)


def _is_gain(name: str) -> bool:
    return name.endswith(".norm") or name == "norm.final"
