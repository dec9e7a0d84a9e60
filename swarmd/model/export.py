"""A stage's weights as an ordinary dense Llama has them, in Hugging Face's names and layout.

Every factored writer is multiplied out, `W = Z U^T`; the embedding is `T_fixed + E U^T`. So a tool
that knows nothing of subspaces computes the same logits (algorithms.md 1.12, S10). Products are
made in float64 and rounded once.

An anchored run is no plain Llama: the stream of a stage after the first starts with its own table
in place of the one before, X + (A_s - A_{s-1})[ids]. A_0 goes into the embedding; every A_s is also
given, as `swarmd.anchor.N.weight` (V, d), N the stage's first layer, for a modelling file to use.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from swarmd.model.boundary import SubspaceBoundary
from swarmd.model.stage import Parameters, Stage

_LAYER_NAMES = {
    "attention.norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "mlp.norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.final": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


@torch.no_grad()
def dense_state(stage: Stage, params: Parameters) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, in the stage's dtype. Linear weights as (out, in)."""
    state: dict[str, Tensor] = {}
    if stage.is_first:
        state["model.embed_tokens.weight"] = _embedding(stage, params)
    if (anchor_VD := _anchor(params)) is not None:
        state[f"swarmd.anchor.{stage.first_layer}.weight"] = anchor_VD
    for name, value in params.items():
        if name.startswith("layers."):
            _, layer, kind = name.split(".", 2)
            hf_name = _LAYER_NAMES[kind.removesuffix("_z")]
            state[f"model.layers.{layer}.{hf_name}.weight"] = _as_linear(stage, kind, value)
    if stage.is_last:
        state["model.norm.weight"] = params["norm.final"]
        state["lm_head.weight"] = params["head.weight"]
    return {
        name: value.detach().cpu().to(stage.dtype).contiguous() for name, value in state.items()
    }


def dense_parameters(stage: Stage, tensors: Mapping[str, Tensor]) -> Parameters:
    """The inverse, for a stage of a dense run: what it needs of a whole Llama.

    Raises KeyError for a weight that is missing, or has another shape.
    """
    assert stage.boundary.ut_KD is None, "a dense stage"
    params: Parameters = {}
    for name, shape in stage.shapes.items():
        value = tensors[_dense_name(name)].to(stage.device, stage.dtype)
        if name.startswith("layers.") and value.dim() == 2:
            value = value.T
        if tuple(value.shape) != shape:
            raise KeyError(f"{_dense_name(name)} of shape {shape}")
        params[name] = value.contiguous()
    return params


def _dense_name(name: str) -> str:
    """Of a dense stage's parameter."""
    if name.startswith("layers."):
        _, layer, kind = name.split(".", 2)
        return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight"
    return _OUTER_NAMES[name]


def _as_linear(stage: Stage, kind: str, value: Tensor) -> Tensor:
    """(out, in), a factored weight as (Z U^T)^T = U Z^T; a gain as it is."""
    if kind.endswith("_z"):
        assert isinstance(stage.boundary, SubspaceBoundary)
        return stage.boundary.u_DK.cpu().double() @ value.cpu().double().T
    return value if value.dim() == 1 else value.T


def _embedding(stage: Stage, params: Parameters) -> Tensor:
    """(V, d): all that the first stage makes of a token's id."""
    every_1V = torch.arange(stage.run.model.vocab_size, device=stage.device)[None]
    state = stage.boundary.start(params, every_1V)
    return stage.boundary.read(state, stage.boundary.base(params, every_1V))[0]


def _anchor(params: Parameters) -> Tensor | None:
    if "anchor.b" in params:
        return params["anchor.b"] @ params["anchor.r"]
    return params.get("anchor.full")
