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

from swarmd.compute.divergence import divergence_of
from swarmd.compute.outer_state import FlatLayout, OuterState
from swarmd.errors import JobFailed
from swarmd.optim import compress, robust, sparse
from swarmd.optim.mixing import weighted_mean
from swarmd.optim.outer import is_finite, outer_step_of_delta
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.mixing import MIX1
from swarmd.protocols.outer_rules import NORM_RATIO_MAX, Range, cut

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import StageWorker

Args = dict[str, Any]
Done = tuple[dict[str, Any], int]
CLIPPED_BELOW = 0.5
"""Whoever is let in with less than half of its distance is named `clipped`."""
CACHED_ELEMENTS = 1 << 18
"""What is read several times is read in pieces that stay in a core's cache."""
SQUARES_MIN, SQUARES_MAX = 1e-24, 1e30
"""Between them no square that matters, nor a sum of them, leaves float32's normal range."""


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
    if args["mix"] == MIX1:
        x_N = state.start_of(where)
    elif args["density"]:
        owed_N = state.owed_of(where)
        return {"norm": _norm(owed_N)}, sparse.pack_topk(output, owed_N, args["density"])
    else:
        x_N = state.gradient_of(worker.params, where)
    return {"norm": _norm(x_N)}, compress.pack_dense(output, x_N, args["wire"])


def mix_reduce(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    assert output is not None, "a mean is written somewhere"
    codes, sound = [], []
    for number, view in enumerate(inputs):
        x_N, code = _unpacked(view, args)
        codes.append(code)
        if x_N is not None:
            sound.append((number, x_N))
    middle_N = _middle(args, sound)
    sizes = [_norm(x_N if middle_N is None else x_N - middle_N) for _, x_N in sound]
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
    mean_N, code = _unpacked_mean(inputs[0], args)
    if mean_N is None:
        return {"code": code}, 0
    delta_N = mean_N - compress.rounded(state.start_of(where), args["wire"])
    usual = args["usual_norm"]
    if usual and _norm(delta_N) > NORM_RATIO_MAX * usual:
        return {"code": "norm_too_large"}, 0
    state.set_delta(where, delta_N)
    return {"code": ""}, 0


def outer_gradient(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    state, first = _state(worker), args["first"]
    squares = delta_squares = 0.0
    sound = True
    for where in cut(first, first + args["count"], CACHED_ELEMENTS):
        d_N = state.gradient_of(worker.params, where)
        sound = sound and is_finite(d_N)
        if args["owes"] and sound:
            state.owed_of(where).mul_(sparse.FEEDBACK_DECAY).add_(d_N)
        squares += _norm(d_N) ** 2 if sound else math.nan
        delta_N = state.delta_of(where)
        delta_squares += 0.0 if delta_N is None else _norm(delta_N.float()) ** 2
    return {"squares": squares, "delta_squares": delta_squares, "is_finite": sound}, 0


def apply_outer(
    worker: StageWorker, args: Args, inputs: Sequence[memoryview], output: memoryview | None
) -> Done:
    """The outer step of a piece; with a mean that is not sound, nothing but its code."""
    state, where = _state(worker), _piece(args)
    grad_N: Tensor | None = None
    if inputs:
        grad_N, code = _unpacked_mean(inputs[0], args)
        code = code or _too_long(state, worker, where, grad_N, args)
        if code:
            return {"code": code}, 0
    if args["resets"]:
        _reset(state, where)
        grad_N = torch.zeros(where.count) if grad_N is None else grad_N
    sent_N: Tensor | None = None
    if args["sent"] and args["density"]:
        sent_N = sparse.choose(state.owed_of(where), args["density"]).dense()
        grad_N = sent_N if grad_N is None else grad_N
    delta_N = state.delta_of(where)
    theta_N = outer_step_of_delta(
        state.start_of(where),
        None if grad_N is not None else state.layout.read(worker.params, where),
        None if delta_N is None else delta_N.float(),
        grad_N,
        state.momentum_of(where, args["mu"]),
        alpha=args["alpha"],
        mu=args["mu"],
    )
    state.step(where, theta_N)
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


def _norm(x_N: Tensor) -> float:
    """Euclidean. In float32 where that is safe: several times as fast, and guards need no more."""
    squares = float(torch.dot(x_N, x_N))
    if SQUARES_MIN < squares < SQUARES_MAX:
        return math.sqrt(squares)
    return float(torch.linalg.vector_norm(x_N, dtype=torch.float64))


def _unpacked(view: memoryview, args: Args) -> tuple[Tensor | None, str]:
    """(values, why there are none) of a member's part. They may lie in the slot itself."""
    try:
        if args["density"]:
            return sparse.unpack_topk(view, args["count"], args["density"]), ""
        return compress.unpack_dense(view, args["wire"], args["count"], copy=False), ""
    except RemoteProtocolError as error:
        return None, error.code


def _unpacked_mean(view: memoryview, args: Args) -> tuple[Tensor | None, str]:
    try:
        if args["density"]:
            members = args["members"]
            return sparse.unpack_sparse(view, args["count"], args["density"], members), ""
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


def _too_long(
    state: OuterState, worker: StageWorker, where: Range, mean_N: Tensor | None, args: Args
) -> str:
    """Whether Mix2's mean is longer than honest gradients make it, our own among them."""
    usual = args["usual_norm"]
    if mean_N is None or not usual:
        return ""
    size = _norm(mean_N)
    if size <= NORM_RATIO_MAX * usual:
        return ""
    own = _norm(state.gradient_of(worker.params, where))
    return "norm_too_large" if size > NORM_RATIO_MAX * own else ""


def _reset(state: OuterState, where: Range) -> None:
    """What this replica has gathered by itself is worth nothing any more."""
    if state.momentum is not None:
        state.momentum[where.first : where.first + where.count].zero_()
    if state.owed is not None:
        state.owed[where.first : where.first + where.count].zero_()
