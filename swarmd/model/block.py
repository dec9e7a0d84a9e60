"""One transformer layer's arithmetic, without its residual stream.

Llama: RMSNorm with gain before each branch, rotary positions (halves rotated against each other, as
Hugging Face lays them out), grouped-query attention, SwiGLU, no biases. A branch here ends before
its writer: the writer's product and the addition to the stream are the stage's business, for only
they know whether the stream is X or its coefficients.

Shapes: B samples, T tokens, D width, H heads (query), G heads (key and value), E head width, F.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swarmd.model.fused import gated
from swarmd.run_config import InvalidRun, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """What stands between a branch's writer and the residual stream. Nothing does in any run; that
    it can be asked for lets the builder refuse it by name (algorithms.md 1.4)."""

    output_gain: bool = False
    """An element-wise learned gain, LayerScale too."""
    output_bias: bool = False
    output_layer_norm: bool = False
    output_dropout: float = 0.0

    def forbidden(self) -> str | None:
        """The first thing that takes a row out of the subspace."""
        if self.output_gain:
            return "a learned gain"
        if self.output_bias:
            return "a bias"
        if self.output_layer_norm:
            return "LayerNorm"
        if self.output_dropout > 0:
            return "dropout"
        return None


def check_block(spec: BlockSpec, writers: list[str], *, constrained: bool) -> None:
    """Raises InvalidRun, naming the first writer (as `layers.1.attention.o_z`)."""
    what = spec.forbidden()
    if what is None:
        return
    why = "leaves the subspace" if constrained else "is not built"
    raise InvalidRun("model.block", f"{writers[0]}: {what} on a branch's output {why}")


class RotaryTables:
    """Cosines and sines of a length, made once: (T, 1, E/2) each."""

    def __init__(self, model: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self._head_width = model.width // model.heads
        self._base = model.rope_base
        self._device, self._dtype = device, dtype
        self._of_length: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, length: int) -> tuple[Tensor, Tensor]:
        if length not in self._of_length:
            half = torch.arange(0, self._head_width, 2, dtype=torch.float64) / self._head_width
            position = torch.arange(length, dtype=torch.float64)
            angle = (position[:, None] * self._base**-half)[:, None, :]
            self._of_length[length] = (
                angle.cos().to(self._dtype).to(self._device),
                angle.sin().to(self._dtype).to(self._device),
            )
        return self._of_length[length]


def rotate(x_BTHE: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions, in the dtype of `x`."""
    cos, sin = rope
    first, second = x_BTHE.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).to(x_BTHE.dtype)


def attention(
    x_BTD: Tensor,
    q_DD: Tensor,
    k_DG: Tensor,
    v_DG: Tensor,
    rope: tuple[Tensor, Tensor],
    model: ModelConfig,
) -> Tensor:
    """Causal self-attention of a normalised stream, heads side by side (B, T, d)."""
    batch, length, width = x_BTD.shape
    head_width = width // model.heads
    q_BTHE = (x_BTD @ q_DD).view(batch, length, model.heads, head_width)
    k_BTGE = (x_BTD @ k_DG).view(batch, length, model.kv_heads, head_width)
    v_BTGE = (x_BTD @ v_DG).view(batch, length, model.kv_heads, head_width)
    y_BHTE = F.scaled_dot_product_attention(
        rotate(q_BTHE, rope).transpose(1, 2),
        rotate(k_BTGE, rope).transpose(1, 2),
        v_BTGE.transpose(1, 2),
        is_causal=True,
        enable_gqa=model.heads != model.kv_heads,
    )
    return y_BHTE.transpose(1, 2).reshape(batch, length, width)


def swiglu(x_BTD: Tensor, gate_DF: Tensor, up_DF: Tensor) -> Tensor:
    return gated(x_BTD @ gate_DF, x_BTD @ up_DF)
