"""S10: what is exported is a plain Llama with the logits of the factored model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from twin_llama import make_batch, make_run, make_stages, scattered_weights

from swarmd.model.export import dense_state
from swarmd.model.stage import Stage
from swarmd.run_config import ModelConfig


def pipeline_logits(stages: list[Stage], weights: list[dict[str, Tensor]], ids: Tensor) -> Tensor:
    state = None
    for stage, params in zip(stages, weights, strict=True):
        state = stage.forward(params, ids, state)
    assert state is not None
    return stages[-1].logits(weights[-1], state)


def plain_llama(
    state: dict[str, Tensor], model: ModelConfig, ids: Tensor, first_layers: list[int]
) -> Tensor:
    """Logits by Hugging Face's names, layout and rotation (x cos + rotate_half(x) sin)."""
    x = state["model.embed_tokens.weight"][ids]
    head = model.width // model.heads
    angle = torch.arange(ids.shape[1])[:, None] * model.rope_base ** (
        -torch.arange(0, head, 2) / head
    )
    cos, sin = (torch.cat([f(angle), f(angle)], -1) for f in (torch.cos, torch.sin))

    def turn(y: Tensor) -> Tensor:
        a, b = y.chunk(2, -1)
        return y * cos + torch.cat([-b, a], -1) * sin

    for layer in range(model.layers):
        if layer in first_layers[1:] and f"swarmd.anchor.{layer}.weight" in state:
            before = first_layers[first_layers.index(layer) - 1]
            x = x + state[f"swarmd.anchor.{layer}.weight"][ids]
            x = x - state[f"swarmd.anchor.{before}.weight"][ids]

        def linear(name: str, y: Tensor, layer: int = layer) -> Tensor:
            return F.linear(y, state[f"model.layers.{layer}.{name}.weight"])

        def norm(name: str, y: Tensor) -> Tensor:
            return F.rms_norm(y, (model.width,), state[f"model.{name}.weight"], model.norm_eps)

        def heads(name: str, y: Tensor) -> Tensor:
            return linear(f"self_attn.{name}", y).unflatten(-1, (-1, head)).transpose(1, 2)

        h = norm(f"layers.{layer}.input_layernorm", x)
        y = F.scaled_dot_product_attention(
            turn(heads("q_proj", h)),
            turn(heads("k_proj", h)).repeat_interleave(model.heads // model.kv_heads, 1),
            heads("v_proj", h).repeat_interleave(model.heads // model.kv_heads, 1),
            is_causal=True,
        )
        x = x + linear("self_attn.o_proj", y.transpose(1, 2).flatten(2))
        h = norm(f"layers.{layer}.post_attention_layernorm", x)
        x = x + linear(
            "mlp.down_proj", F.silu(linear("mlp.gate_proj", h)) * linear("mlp.up_proj", h)
        )
    return F.linear(norm("norm", x), state["lm_head.weight"])


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(
    ("kind", "anchor_rank"), [("dense", 0), ("subspace", 0), ("anchored", 5), ("anchored", -1)]
)
def test_s10_the_exported_llama_has_the_pipelines_logits(
    kind: str, anchor_rank: int, stages: int
) -> None:
    run = make_run(kind=kind, anchor_rank=anchor_rank, stages=stages)
    built = make_stages(run, torch.float32)
    weights, (ids, _) = scattered_weights(built), make_batch(run)
    state: dict[str, Tensor] = {}
    for stage, params in zip(built, weights, strict=True):
        part = dense_state(stage, params)
        assert not state.keys() & part.keys()
        state |= part
    ours = pipeline_logits(built, weights, ids).detach()
    theirs = plain_llama(state, run.model, ids, [stage.first_layer for stage in built])
    assert float((ours - theirs).abs().max() / theirs.abs().max()) <= 1e-5


def test_a_subspace_run_exports_exactly_the_names_of_a_llama() -> None:
    built = make_stages(make_run(stages=2), torch.float32)
    state = {}
    for stage in built:
        state |= dense_state(stage, stage.init_parameters())
    layer_names = {
        "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    }  # fmt: skip
    expected = {f"model.layers.{n}.{name}.weight" for n in range(4) for name in layer_names}
    expected |= {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert state.keys() == expected
    for value in state.values():
        assert value.is_contiguous()
        assert not value.requires_grad
