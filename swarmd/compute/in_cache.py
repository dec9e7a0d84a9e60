"""Passes over pieces of long vectors in blocks that stay in the processor's cache.

A vector of millions is read from memory as often as somebody walks over it, and a temporary of its
size costs page faults besides. So whatever has to be known of a block, and made of it, is done
while it is here.

Nothing looks for what is not finite by itself: a sum of squares is finite if and only if every
coordinate is (`squares_of`), and lengths are wanted anyway.

Legend: G inputs of a group, N coordinates of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from swarmd.optim import robust
from swarmd.optim.mixing import weighted_mean
from swarmd.optim.outer import is_finite
from swarmd.protocols.mix_parts import BLOCK

BLOCK_ELEMENTS = 1 << 18
"""A mebibyte in float32. Of smaller ones more fit into a core's own cache, but there are more calls
into torch, at some microseconds each: a sixteenth of it takes twice the time (docs/lab.md)."""
MEAN_ELEMENTS = 1 << 17
"""The same where all members' blocks are needed at once."""
SQUARES_MIN, SQUARES_MAX = 1e-24, 1e30
"""Between them no square that matters, nor a sum of them, leaves float32's normal range."""

assert BLOCK_ELEMENTS % BLOCK == 0, "coordinates that share a scale stay together"


def blocks(count: int, elements: int | None = None) -> Iterator[slice]:
    """Of a piece of so many coordinates."""
    step = elements or BLOCK_ELEMENTS
    return (slice(at, min(at + step, count)) for at in range(0, count, step))


def squares_of(x_N: Tensor) -> float:
    """Their sum; inf or NaN if and only if a coordinate is. In float32 where that is safe: several
    times as fast, and guards need no more."""
    squares = float(torch.dot(x_N, x_N))
    if SQUARES_MIN < squares < SQUARES_MAX or (squares == 0.0 and _is_zero(x_N)):
        return squares
    return float(torch.linalg.vector_norm(x_N, dtype=torch.float64)) ** 2


def _is_zero(x_N: Tensor) -> bool:
    """As replicas' distances are while all are equal. `any` takes four times as long."""
    low, high = torch.aminmax(x_N)
    return bool(low == 0) and bool(high == 0)


def norm_of(x_N: Tensor) -> float:
    """Euclidean; inf or NaN as `squares_of`. In the type in which it lies."""
    return math.sqrt(sum(squares_of(x_N[block].float()) for block in blocks(x_N.numel())))


def mean_of_sound(
    inputs: Sequence[Tensor], weights: Sequence[float], out_N: Tensor, middle: int | None
) -> list[float] | None:
    """Fill out_N with the weighted mean. Returns each input's length; None, with out_N undefined,
    if an input or the mean is not finite.

    middle: None for lengths from zero; else from the group's middle, which in a pair is that input.
    """
    squares = [0.0] * len(inputs)
    for block in blocks(out_N.numel(), MEAN_ELEMENTS):
        rows = [x_N[block].float() for x_N in inputs]
        centre_N = None
        if middle is not None:
            centre_N = robust.middle_of(rows) if len(rows) > 2 else rows[middle]
        for number, row_N in enumerate(rows):
            squares[number] += squares_of(row_N if centre_N is None else row_N - centre_N)
        mean_N, _ = weighted_mean(rows, weights)
        assert mean_N is not None, "somebody weighs something"
        out_N[block].copy_(mean_N)
        if not math.isfinite(sum(squares)) or not is_finite(out_N[block]):
            return None
    return [math.sqrt(of_one) for of_one in squares]
