"""The outer round's requests to a compute worker: protocols/outer_rules.py names and builds them.

Each is one piece of a stage's vector, some milliseconds of work. Payloads are read and written in
the slots (swarmd/optim/compress.py, sparse.py); what a peer's bytes can cause is a code in `data`,
one a sender, never a failed job: a reducer goes on with those that are sound.

    mix_snapshot    {round}                    -> elements, covered, norm
    mix_part        {mix, piece, wire}         -> norm; output: x (Mix1) or D (Mix2) of the piece
    mix_reduce      {.., weights, own,         -> codes, weight; output: the mean, if anybody of
                     usual_norm, is_clipped}      weight was sound
    mix_take        {.., usual_norm, members}  -> code; keeps mean - own
    outer_gradient  {piece, owes}              -> squares, delta_squares, is_finite
    apply_outer     {.., alpha, mu, usual_norm, members, resets, sent}  -> code
    outer_commit    {round}                    -> bytes_held
    outer_divergence {}                        -> divergence, or None (divergence.py)

`piece` is first and count; `wire` is wire and density. Codes: "", malformed, wrong_dtype,
wrong_shape, too_large, not_finite, norm_too_large, clipped.

Legend: G inputs of a group, N coordinates of the piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from swarmd.compute import in_cache
from swarmd.compute.divergence import divergence_of
from swarmd.compute.outer_state import FlatLayout, OuterState
from swarmd.errors import JobFailed
from swarmd.optim import compress, robust, sparse
from swarmd.optim.mixing import weighted_mean
from swarmd.optim.outer import outer_step_of_delta
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.mixing import MIX1
from swarmd.protocols.outer_rules import NORM_RATIO_MAX, Range

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import StageWorker

Args = dict[str, Any]
Done = tuple[dict[str, Any], int]
CLIPPED_BELOW = 0.5
"""Whoever is let in with less than half of its distance is named `clipped`."""
ROUNDED_MAX = 1e38
"""Below it, rounding to a plain wire keeps a number finite."""


def mix_snapshot(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    if worker.outer is None:
        layout = FlatLayout(worker.stage.shapes, worker.run_config.outer.mix2_cover)
        worker.outer = OuterState(layout)
    norm = worker.outer.snapshot(worker.params, args["round"])
    layout = worker.outer.layout
    return {"elements": layout.elements, "covered": layout.covered, "norm": norm}, 0


def mix_part(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    state, where = _state(worker), _piece(args)
    assert output is not None, "a part is written somewhere"
    if args["mix"] != MIX1 and args["density"]:
        owed_N = state.owed_of(where)
        norm = in_cache.norm_of(owed_N)
        return {"norm": norm}, sparse.pack_topk(output, owed_N, args["density"])
    if args["wire"] not in compress.PLAIN:
        x_N = _brought(worker, where, args)
        return {"norm": in_cache.norm_of(x_N)}, compress.pack_dense(output, x_N, args["wire"])
    values_N, size = compress.begin_dense(output, args["wire"], where.count)
    squares = 0.0
    for block in in_cache.blocks(where.count):
        x_N = _brought(worker, _part_of(where, block), args)
        squares += in_cache.squares_of(x_N)
        values_N[block].copy_(x_N)
    norm = math.sqrt(squares)
    if not norm < ROUNDED_MAX:
        compress.require_finite(values_N)
    return {"norm": norm}, size


def mix_reduce(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    """A mean of parts that are all as they should be is made in one pass; if one is not, they are
    looked at one after the other."""
    assert output is not None, "a mean is written somewhere"
    done = _mean_of_sound(args, inputs, output)
    if done is not None:
        return done
    codes, sound = [], []
    for number, view in enumerate(inputs):
        x_N, code = _unpacked(view, args)
        codes.append(code)
        if x_N is not None:
            sound.append((number, x_N))
    middle_N = _middle(args, sound)
    sizes = [in_cache.norm_of(x_N if middle_N is None else x_N - middle_N) for _, x_N in sound]
    limit = _norm_limit(args, sizes)
    kept = []
    for (number, x_N), size in zip(sound, sizes, strict=True):
        if size > limit:
            codes[number] = "norm_too_large"
        else:
            kept.append((number, x_N))
    weights = [float(args["weights"][number]) for number, _ in kept]
    if sum(weights) <= 0:
        return {"codes": codes, "weight": 0.0}, 0
    if args["is_clipped"] and len(kept) > 2:
        mean_N = _clipped_mean(kept, weights, codes)
    else:
        mean, _ = weighted_mean([x_N for _, x_N in kept], weights)
        assert mean is not None, "somebody weighs something"
        mean_N = mean
    return {"codes": codes, "weight": sum(weights)}, _pack_mean(output, mean_N, args)


def mix_take(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    """delta = mean - own, both as they travelled: rounding touches no replica's own part, and equal
    replicas stay equal."""
    state, where = _state(worker), _piece(args)
    mean_N, code = _mean_as_it_lies(inputs[0], args)
    if mean_N is None:
        return {"code": code}, 0
    squares = 0.0
    delta_N = torch.empty(where.count, dtype=torch.bfloat16)
    for block in in_cache.blocks(where.count):
        own_N = compress.rounded(state.start_of(_part_of(where, block)), args["wire"])
        moved_N = mean_N[block].float() - own_N
        squares += in_cache.squares_of(moved_N)
        delta_N[block].copy_(moved_N)
    if not math.isfinite(squares):
        return {"code": "not_finite"}, 0
    usual = args["usual_norm"]
    if usual and math.sqrt(squares) > NORM_RATIO_MAX * usual:
        return {"code": "norm_too_large"}, 0
    state.set_delta(where, delta_N)
    return {"code": ""}, 0


def outer_gradient(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    state, whole = _state(worker), _piece(args)
    squares = delta_squares = 0.0
    sound = True
    for block in in_cache.blocks(whole.count):
        where = _part_of(whole, block)
        d_N = state.gradient_of(worker.params, where)
        squares += in_cache.squares_of(d_N)
        sound = sound and math.isfinite(squares)
        if args["owes"] and sound:
            state.owed_of(where).mul_(sparse.FEEDBACK_DECAY).add_(d_N)
        delta_N = state.delta_of(where)
        delta_squares += 0.0 if delta_N is None else in_cache.squares_of(delta_N.float())
    squares = squares if sound else math.nan
    return {"squares": squares, "delta_squares": delta_squares, "is_finite": sound}, 0


def apply_outer(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    """The outer step of a piece; with a mean that is not sound, nothing but its code."""
    state, where = _state(worker), _piece(args)
    grad_N: Tensor | None = None
    if inputs:
        grad_N, code = _mean_as_it_lies(inputs[0], args)
        code = code or _why_not_mean(state, worker, where, grad_N, args)
        if code:
            return {"code": code}, 0
    if args["resets"]:
        _reset(state, where)
        grad_N = torch.zeros(where.count) if grad_N is None else grad_N
    sent_N: Tensor | None = None
    if args["sent"] and args["density"]:
        sent_N = sparse.choose(state.owed_of(where), args["density"]).dense()
        grad_N = sent_N if grad_N is None else grad_N
    steps = []
    for block in in_cache.blocks(where.count):
        piece = _part_of(where, block)
        own_N = None if grad_N is None else grad_N[block].float()
        steps.append((piece, *_step_of(state, worker, piece, own_N, args)))
    for piece, theta_N, momentum_N in steps:  # all of them were possible
        state.step(piece, theta_N)
        kept_N = state.momentum_of(piece, args["mu"])
        if kept_N is not None and momentum_N is not None:
            kept_N.copy_(momentum_N)
    if sent_N is not None:
        state.owed_of(where).sub_(sent_N)
    return {"code": ""}, 0


def outer_commit(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    state = _state(worker)
    worker.params = state.commit(worker.params, args["round"])
    return {"bytes_held": state.bytes_held}, 0


def outer_divergence(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    return {"divergence": divergence_of(worker, _state(worker))}, 0


OUTER_CALLS = {
    "mix_snapshot": mix_snapshot,
    "mix_part": mix_part,
    "mix_reduce": mix_reduce,
    "mix_take": mix_take,
    "outer_gradient": outer_gradient,
    "apply_outer": apply_outer,
    "outer_commit": outer_commit,
    "outer_divergence": outer_divergence,
}


# ----------------------------------------------------------------------------------------- pieces


def _state(worker: StageWorker) -> OuterState:
    if worker.outer is None:
        raise JobFailed("compute_failed", "no outer round has begun")
    return worker.outer


def _piece(args: Args) -> Range:
    return Range(args["first"], args["count"])


def _part_of(where: Range, block: slice) -> Range:
    return Range(where.first + block.start, block.stop - block.start)


def _brought(worker: StageWorker, where: Range, args: Args) -> Tensor:
    """What this replica brings to a mix."""
    state = _state(worker)
    if args["mix"] == MIX1:
        return state.start_of(where)
    return state.gradient_of(worker.params, where)


def _step_of(
    state: OuterState, worker: StageWorker, where: Range, grad_N: Tensor | None, args: Args
) -> tuple[Tensor, Tensor | None]:
    """(theta, momentum) after the outer step of a piece; nothing is changed yet. grad_N None: the
    own outer gradient."""
    delta_N = state.delta_of(where)
    momentum_N = state.momentum_of(where, args["mu"])
    momentum_N = None if momentum_N is None else momentum_N.clone()
    theta_N = outer_step_of_delta(
        state.start_of(where),
        None if grad_N is not None else state.layout.read(worker.params, where),
        None if delta_N is None else delta_N.float(),
        grad_N,
        momentum_N,
        alpha=args["alpha"],
        mu=args["mu"],
    )
    return theta_N, momentum_N


def _mean_of_sound(args: Args, inputs: Sequence[memoryview], output: memoryview) -> Done | None:
    """The usual reduction. None: somebody's part is not as it should be, or needs another way."""
    wire, weights = args["wire"], args["weights"]
    is_clipped = args["is_clipped"] and len(inputs) > 2
    if args["density"] or wire not in compress.PLAIN or is_clipped or sum(weights) <= 0:
        return None
    try:
        values = [compress.values_as_sent(view, wire, args["count"]) for view in inputs]
    except RemoteProtocolError:
        return None
    middle = max(0, args["own"]) if args["mix"] == MIX1 else None
    out_N, size = compress.begin_dense(output, wire, args["count"])
    sizes = in_cache.mean_of_sound(values, [float(x) for x in weights], out_N, middle)
    if sizes is None or max(sizes) > _norm_limit(args, sizes):
        return None
    return {"codes": [""] * len(inputs), "weight": float(sum(weights))}, size


def _unpacked(view: memoryview, args: Args) -> tuple[Tensor | None, str]:
    """(values, why there are none) of a member's part. They may lie in the slot itself."""
    try:
        if args["density"]:
            return sparse.unpack_topk(view, args["count"], args["density"]), ""
        return compress.unpack_dense(view, args["wire"], args["count"], copy=False), ""
    except RemoteProtocolError as error:
        return None, error.code


def _mean_as_it_lies(view: memoryview, args: Args) -> tuple[Tensor | None, str]:
    """(a mean's values, why there are none). They may lie in the slot itself, in the type in which
    they came, and not be finite."""
    try:
        if args["density"]:
            members = args["members"]
            return sparse.unpack_sparse(view, args["count"], args["density"], members), ""
        if args["wire"] in compress.PLAIN:
            return compress.values_as_sent(view, args["wire"], args["count"]), ""
        return compress.unpack_dense(view, args["wire"], args["count"]), ""
    except RemoteProtocolError as error:
        return None, error.code


def _pack_mean(output: memoryview, mean_N: Tensor, args: Args) -> int:
    if args["density"]:
        return sparse.pack_sparse(output, mean_N)
    return compress.pack_dense(output, mean_N, args["wire"])


def _middle(args: Args, sound: list[tuple[int, Tensor]]) -> Tensor | None:
    """From where lengths are measured: outer gradients are differences already, parameters are
    measured from the group's middle, in a pair from the own."""
    if args["mix"] != MIX1 or not sound:
        return None
    if len(sound) > 2:
        return robust.centre_of(torch.stack([x_N for _, x_N in sound]))
    own = [x_N for number, x_N in sound if number == args["own"]]
    return own[0] if own else sound[0][1]


def _norm_limit(args: Args, sizes: list[float]) -> float:
    usual = args["usual_norm"]
    if not usual:
        return math.inf
    if len(sizes) > 2:
        usual = max(usual, float(torch.tensor(sizes).median()))
    return NORM_RATIO_MAX * float(usual)


def _clipped_mean(kept: list[tuple[int, Tensor]], weights: list[float], codes: list[str]) -> Tensor:
    """CenteredClip, with a radius that fits the spread of this very group; names the clipped."""
    x_GN = torch.stack([x_N for _, x_N in kept])
    capped = robust.capped_weights(weights)
    centre_N = robust.centre_of(x_GN)
    tau = robust.suitable_tau(x_GN, centre_N)
    mean_N = robust.centered_clip(x_GN, capped, tau, centre_N=centre_N)
    factors = robust.clip_factors(x_GN, mean_N, tau).tolist()
    for (number, _), factor in zip(kept, factors, strict=True):
        if factor < CLIPPED_BELOW:
            codes[number] = "clipped"
    return mean_N


def _why_not_mean(
    state: OuterState, worker: StageWorker, where: Range, mean_N: Tensor | None, args: Args
) -> str:
    """The code of a mean of Mix2 that is not finite, or longer than honest gradients make it, our
    own among them."""
    if mean_N is None:
        return ""
    usual, size = args["usual_norm"], in_cache.norm_of(mean_N)
    if not math.isfinite(size):
        return "not_finite"
    if not usual or size <= NORM_RATIO_MAX * usual:
        return ""
    own = in_cache.norm_of(state.gradient_of(worker.params, where))
    return "norm_too_large" if size > NORM_RATIO_MAX * own else ""


def _reset(state: OuterState, where: Range) -> None:
    """What this replica has gathered by itself is worth nothing any more."""
    if state.momentum is not None:
        state.momentum[where.first : where.first + where.count].zero_()
    if state.owed is not None:
        state.owed[where.first : where.first + where.count].zero_()
