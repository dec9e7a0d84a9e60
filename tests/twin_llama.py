"""An uncut twin of the staged model, written apart from it, to compare with.

It carries the stream X itself through all layers, adds each branch as (h Z) U^T, rotates by complex
numbers, makes its own attention scores, and knows nothing of stages but which weights belong to
which. With `encode=True` it also cuts as the papers do: it sends (X - base) U and rebuilds X.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from swarmd.model.stage import Stage, build_stage
from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    ModelConfig,
    OuterConfig,
    RunConfig,
)

Weights = list[dict[str, Tensor]]

ODD_MODEL = ModelConfig(
    vocab_size=97, width=24, layers=4, heads=4, kv_heads=2, ff_width=40, norm_eps=1e-6
)


def make_run(
    *,
    model: ModelConfig = ODD_MODEL,
    kind: str = "subspace",
    rank: int = 6,
    anchor_rank: int = 0,
    stages: int = 4,
    tokens: int = 33,
    seed: int = 11,
    table_std: float = 0.02,
) -> RunConfig:
    """A run of evenly cut layers."""
    cuts = [model.layers * stage // stages for stage in range(stages + 1)]
    return RunConfig(
        name="twin",
        preset="none",
        model=model,
        boundary=BoundaryConfig(
            kind=kind,
            rank=0 if kind == "dense" else rank,
            anchor_rank=anchor_rank,
            table_std=table_std,
        ),
        inner=InnerConfig(),
        outer=OuterConfig(),
        data=DataConfig(),
        layer_ranges=tuple((a, b - 1) for a, b in itertools.pairwise(cuts)),
        inner_steps=5,
        total_steps=10,
        sequence_tokens=tokens,
        micro_batch_tokens=tokens,
        batch_tokens=tokens,
        seed=seed,
    )


def make_stages(run: RunConfig, dtype: torch.dtype = torch.float64) -> list[Stage]:
    return [build_stage(run, index, dtype=dtype) for index in range(run.stages)]


def scattered_weights(stages: list[Stage], seed: int = 5) -> Weights:
    """Random weights, for at the start many are zero or one: E, anchors, writers, gains. Of a size
    at which float32's rounding does not grow from layer to layer."""
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for stage in stages:
        params = {}
        for name, shape in stage.shapes.items():
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            if len(shape) == 1:
                value = 1 + 0.2 * noise
            else:
                value = noise * (0.5 if name.startswith(("embedding", "anchor")) else 0.05)
            params[name] = value.to(stage.dtype).requires_grad_()
        weights.append(params)
    return weights


def make_batch(run: RunConfig, batch: int = 3, seed: int = 7) -> tuple[Tensor, Tensor]:
    """ids and targets (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, run.sequence_tokens + 1)
    tokens = torch.randint(0, run.model.vocab_size, shape, generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


# ------------------------------------------------------------------------------- the cut pipeline


def pipeline_gradients(
    stages: list[Stage],
    weights: Weights,
    ids: Tensor,
    targets: Tensor,
    *,
    recompute: bool = False,
    wire: Callable[[Tensor], Tensor] = torch.clone,
    wire_ids: Callable[[Tensor], Tensor] = torch.clone,
) -> tuple[Tensor, Weights]:
    """Loss and every gradient, each stage alone with what came over the `wire`, as peers do it."""
    outputs: list[Tensor] = []
    leaves: list[Tensor] = []
    for stage, params in zip(stages, weights, strict=True):
        if stage.is_first:
            outputs.append(stage.forward(params, ids, recompute=recompute))
            continue
        received = wire(outputs[-1].detach()).requires_grad_()
        leaves.append(received)
        outputs.append(stage.forward(params, wire_ids(ids), received, recompute=recompute))
    loss = stages[-1].loss_sum(weights[-1], outputs[-1], targets)
    outputs[-1] = loss
    gradients: Weights = []
    gradient: Tensor | None = None
    for index in reversed(range(len(stages))):
        named = dict(weights[index])
        inputs = list(named.values()) + leaves[index - 1 : index][: 1 if index else 0]
        found = torch.autograd.grad(outputs[index], inputs, gradient)
        gradients.insert(0, dict(zip(named, found, strict=False)))
        gradient = wire(found[-1]) if index else None
    return loss.detach(), gradients


# --------------------------------------------------------------------------------- the uncut twin

ExtraWriter = Callable[[int, Tensor], Tensor | None]
"""(layer, normalised stream) to an addition to the stream, or None."""


def twin_loss(
    stages: list[Stage],
    weights: Weights,
    ids: Tensor,
    targets: Tensor,
    *,
    encode: bool = False,
    subtract_anchor: bool = True,
    extra: ExtraWriter | None = None,
    table_VD: Tensor | None = None,
) -> Tensor:
    """Sum over samples of the mean token cross-entropy, by the X form.

    encode: cut at the boundaries by (X - base) U. subtract_anchor: whether that sender subtracts
    its private table, as it must. table_VD: T_fixed to use in place of the stages' own.
    """
    last = stages[-1]
    x_BTD = _embed(stages[0], weights[0], ids)
    base_before, anchor_before = None, None
    for stage, params in zip(stages, weights, strict=True):
        base, anchor = _base(stage, params, ids, table_VD)
        if stage.is_first:
            x_BTD = x_BTD + base
        elif encode:
            left_out = 0.0 if subtract_anchor else anchor_before
            x_BTD = (x_BTD - base_before + left_out) @ stage.boundary.u_DK @ stage.boundary.u_DK.T
            x_BTD = x_BTD + base
        else:
            x_BTD = x_BTD + anchor - anchor_before
        for layer in range(stage.first_layer, stage.last_layer + 1):
            x_BTD = _twin_layer(stage, params, layer, x_BTD, extra)
        base_before, anchor_before = base, anchor
    h_BTD = _rms(x_BTD, last.run.model.norm_eps) * weights[-1]["norm.final"]
    logits = torch.einsum("btd,vd->btv", h_BTD, weights[-1]["head.weight"])
    picked = torch.log_softmax(logits, -1).gather(-1, targets[..., None])
    return -picked.squeeze(-1).mean(1).sum()


def _embed(stage: Stage, params: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The trainable embedding, full width."""
    if "embedding.weight" in params:
        return params["embedding.weight"][ids]
    return params["embedding.e"][ids] @ stage.boundary.u_DK.T


def _base(
    stage: Stage, params: dict[str, Tensor], ids: Tensor, table_VD: Tensor | None
) -> tuple[Tensor | float, Tensor | float]:
    """T_fixed[ids] + A[ids], and A[ids] alone; zeros where there is none."""
    if stage.run.boundary.kind == "dense":
        return 0.0, 0.0
    fixed = stage.boundary.table.rows(ids) if table_VD is None else table_VD[ids]
    anchor: Tensor | float = 0.0
    if "anchor.full" in params:
        anchor = params["anchor.full"][ids]
    elif "anchor.b" in params:
        anchor = (params["anchor.b"] @ params["anchor.r"])[ids]
    return fixed + anchor, anchor


def _twin_layer(
    stage: Stage, params: dict[str, Tensor], layer: int, x_BTD: Tensor, extra: ExtraWriter | None
) -> Tensor:
    eps = stage.run.model.norm_eps

    def weight(name: str) -> Tensor:
        return params[f"layers.{layer}.{name}"]

    def write(h: Tensor, name: str) -> Tensor:
        if f"layers.{layer}.{name}" in params:
            return h @ weight(name)
        return (h @ weight(f"{name}_z")) @ stage.boundary.u_DK.T

    h_BTD = _rms(x_BTD, eps) * weight("attention.norm")
    x_BTD = x_BTD + write(_twin_attention(stage.run.model, h_BTD, weight), "attention.o")
    h_BTD = _rms(x_BTD, eps) * weight("mlp.norm")
    gate, up = h_BTD @ weight("mlp.gate"), h_BTD @ weight("mlp.up")
    x_BTD = x_BTD + write(gate * torch.sigmoid(gate) * up, "mlp.down")
    added = extra(layer, _rms(x_BTD, eps)) if extra else None
    return x_BTD if added is None else x_BTD + added


def _twin_attention(model: ModelConfig, h_BTD: Tensor, weight: Callable[[str], Tensor]) -> Tensor:
    batch, length, width = h_BTD.shape
    head = width // model.heads
    q = (h_BTD @ weight("attention.q")).view(batch, length, model.heads, head)
    k = (h_BTD @ weight("attention.k")).view(batch, length, model.kv_heads, head)
    v = (h_BTD @ weight("attention.v")).view(batch, length, model.kv_heads, head)
    q, k = _turn(q, model.rope_base), _turn(k, model.rope_base)
    group = model.heads // model.kv_heads
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bthe,bshe->bhts", q, k) / head**0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(future, float("-inf")), -1)
    return torch.einsum("bhts,bshe->bthe", weights, v).reshape(batch, length, width)


def _turn(x: Tensor, base: float) -> Tensor:
    """Element i and i + E/2 are one complex number, turned by position * base^(-2 i / E)."""
    half = x.shape[-1] // 2
    number = torch.complex(x[..., :half], x[..., half:])
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * speed
    turned = number * torch.polar(torch.ones_like(angle), angle)[:, None].to(number.dtype)
    return torch.cat([turned.real, turned.imag], -1)


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def twin_gradients(
    stages: list[Stage], weights: Weights, ids: Tensor, targets: Tensor, **options: object
) -> tuple[Tensor, Weights]:
    loss = twin_loss(stages, weights, ids, targets, **options)  # type: ignore[arg-type]
    flat = [value for params in weights for value in params.values()]
    found = iter(torch.autograd.grad(loss, flat))
    return loss.detach(), [{name: next(found) for name in params} for params in weights]


# -------------------------------------------------------------------------------------- comparing


def largest_difference(ours: Weights, theirs: Weights) -> tuple[float, str]:
    """The largest relative difference of a gradient, and whose: ||a - b|| / ||b||."""
    worst = (0.0, "")
    for stage, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            assert b[name].norm() > 0, f"stage {stage} {name} takes no part"
            difference = float((a[name] - b[name]).norm() / b[name].norm())
            worst = max(worst, (difference, f"stage {stage} {name}"))
    return worst
