"""What each stage holds and costs, and where the model is cut. stdlib only: the daemon asks this.

One inventory of parameters, by name and shape, serves the torch model, the checkpoints, the fit
check and the cut, so that they cannot disagree. A stage that is not the last is constrained: its
writers to the residual stream are factored, `W = Z U^T` (algorithms.md 1.1), hence smaller and
cheaper than the last stage's dense ones, and the last stage carries the head. Equal numbers of
layers are therefore not equal work. Integers only: every platform finds the same cut.

Weights are stored as (in, out), `y = x W`; tables and the head hold one row a token.
"""

from __future__ import annotations

import itertools
import math

from swarmd.run_config import BoundaryConfig, InvalidRun, ModelConfig, RunConfig

Shapes = dict[str, tuple[int, ...]]
Range = tuple[int, int]

BYTES_PER_PARAMETER = 20
"""Weight, gradient, two moments, and the copy that graphs in flight keep; float32 each."""


def layer_shapes(model: ModelConfig, boundary: BoundaryConfig, *, constrained: bool) -> Shapes:
    """One layer's parameters, without the `layers.N.` before each name."""
    d, f, k = model.width, model.ff_width, boundary.rank
    kv = d // model.heads * model.kv_heads
    return {
        "attention.norm": (d,),
        "attention.q": (d, d),
        "attention.k": (d, kv),
        "attention.v": (d, kv),
        **({"attention.o_z": (d, k)} if constrained else {"attention.o": (d, d)}),
        "mlp.norm": (d,),
        "mlp.gate": (d, f),
        "mlp.up": (d, f),
        **({"mlp.down_z": (f, k)} if constrained else {"mlp.down": (f, d)}),
    }


def is_writer(name: str) -> bool:
    """Whether a layer's weight adds to the residual stream; all others read it."""
    return name.rsplit(".", 1)[-1] in ("o", "o_z", "down", "down_z")


def is_constrained(boundary: BoundaryConfig, *, is_last: bool) -> bool:
    """Whether a stage's writers stay in the subspace: every stage that sends coefficients on."""
    return boundary.kind != "dense" and not is_last


def cut_shapes(
    model: ModelConfig, boundary: BoundaryConfig, layers: Range, *, is_first: bool, is_last: bool
) -> Shapes:
    """Every parameter of a stage that holds `layers` (first and last, inclusive), in order.

    embedding.weight (V, d) with dense boundaries, else embedding.e (V, k): first stage.
    anchor.full (V, d), or anchor.b (V, r) and anchor.r (r, d): every stage of an anchored run.
    layers.N.*: as layer_shapes. norm.final (d) and head.weight (V, d): last stage.
    """
    vocab, d, k = model.vocab_size, model.width, boundary.rank
    shapes: Shapes = {}
    if is_first:
        dense = boundary.kind == "dense"
        shapes |= {"embedding.weight": (vocab, d)} if dense else {"embedding.e": (vocab, k)}
    if boundary.anchor_rank == -1:
        shapes["anchor.full"] = (vocab, d)
    elif boundary.anchor_rank > 0:
        shapes["anchor.b"] = (vocab, boundary.anchor_rank)
        shapes["anchor.r"] = (boundary.anchor_rank, d)
    one_layer = layer_shapes(model, boundary, constrained=is_constrained(boundary, is_last=is_last))
    for layer in range(layers[0], layers[1] + 1):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in one_layer.items()}
    if is_last:
        shapes |= {"norm.final": (d,), "head.weight": (vocab, d)}
    return shapes


def stage_shapes(run: RunConfig, stage: int) -> Shapes:
    """Every parameter of a stage of a run, in the order of its state dict."""
    return cut_shapes(
        run.model,
        run.boundary,
        run.layer_ranges[stage],
        is_first=stage == 0,
        is_last=stage == run.stages - 1,
    )


def stage_parameters(run: RunConfig, stage: int) -> int:
    """Trainable parameters of a stage. T_fixed and U are not among them."""
    return _count(stage_shapes(run, stage))


def stage_bytes(run: RunConfig, stage: int) -> int:
    """Memory that a stage's parameters take while it trains, activations not counted."""
    return BYTES_PER_PARAMETER * stage_parameters(run, stage)


def flops_per_token(run: RunConfig, stage: int) -> float:
    """Floating-point operations of forward and backward a token, what MFU counts.

    Recomputation, the optimiser, norms and lookups are left out; attention is causal, half of T^2.
    """
    return float(_flops(stage_shapes(run, stage), run.model, run.boundary, run.sequence_tokens))


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _flops(
    shapes: Shapes, model: ModelConfig, boundary: BoundaryConfig, sequence_tokens: int
) -> int:
    """2 a weight forward and 4 backward. U is a weight without a gradient of its own: 2 and 2."""
    flops = 0
    for name, shape in shapes.items():
        if name.startswith("layers.") or name in ("anchor.r", "head.weight"):
            flops += 6 * math.prod(shape) if len(shape) == 2 else 0
        if name.endswith(".attention.q"):
            # Scores and weighted values, forward and twice backward, over T/2 keys on average.
            flops += 3 * 2 * 2 * model.width * sequence_tokens // 2
        if name.endswith("_z"):
            flops += 4 * boundary.rank * model.width
    return flops


def balance_layers(
    model: ModelConfig, boundary: BoundaryConfig, stages: int, sequence_tokens: int
) -> tuple[Range, ...]:
    """Contiguous layer ranges, first and last inclusive, whose slowest stage is as fast as can be.

    Cost is counted arithmetic, as flops_per_token has it. All stages but the last cost the same for
    the same number of layers, so only the last one's number is searched; the rest is spread evenly,
    and of two such stages the one nearer the start, with the embedding's parameters, has no more
    layers. Between equal maxima the least sum of squares wins, so a last stage that dominates, as
    it may under the head of a large vocabulary, does not excuse the others.

    Raises InvalidRun if a stage would be left without a layer.
    """
    if not 1 <= stages <= model.layers:
        raise InvalidRun(
            "run.stages", f"must be 1 to {model.layers}, the number of layers, not {stages}"
        )

    def cost(layer_count: int, *, is_last: bool) -> int:
        layers = (0, layer_count - 1)
        shapes = cut_shapes(model, boundary, layers, is_first=False, is_last=is_last)
        return _flops(shapes, model, boundary, sequence_tokens)

    def counts(last_count: int) -> list[int]:
        if stages == 1:
            return [last_count]
        even, more = divmod(model.layers - last_count, stages - 1)
        return [even] * (stages - 1 - more) + [even + 1] * more + [last_count]

    def badness(last_count: int) -> tuple[int, int]:
        *others, _ = counts(last_count)
        costs = [cost(count, is_last=False) for count in others] + [cost(last_count, is_last=True)]
        return max(costs), sum(one * one for one in costs)

    choices = range(1, model.layers - stages + 2) if stages > 1 else (model.layers,)
    starts = itertools.accumulate(counts(min(choices, key=badness)), initial=0)
    return tuple((first, after - 1) for first, after in itertools.pairwise(starts))
