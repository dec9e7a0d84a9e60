"""The outer round's rules as the machines need them, and what they ask of the compute worker.

`OuterRules` is floor 0's copy of the run's OuterConfig (swarmd/run_config.py), field by field. The
builders below are the contract with swarmd/compute/outer_calls.py; a fake must answer the same:

    mix_snapshot    remember the weights as x. data: elements, covered, norm
    mix_part        pack the own values of a range. output: a part. data: norm
    mix_reduce      mean of several parts. output: a mean. data: codes, one an input ("": counted)
    mix_take        Mix1: keep mean - own of a range. data: code ("": taken)
    outer_gradient  D of a range, looked at. data: squares, delta_squares, is_finite
    apply_outer     the outer step of a range, with Mix2's mean or without. data: code, of the mean
    outer_commit    the weights become what the steps made of x
    outer_divergence  how differently x and xmix predict. data: divergence, None if not known

Ranges are of the flat vector of the stage's parameters, in which those that Mix2 covers come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarmd.protocols.jobs import BufferRef, StageCall
from swarmd.protocols.mix_parts import Wire

NORM_RATIO_MAX = 10.0
"""A part so many times longer than others are is no honest one. Per part, because a liar's part may
be short against the whole vector; ten times, because parts of honest members differ: the rows of
rare tokens move at one replica and not at another, yet no coordinate moves much further than all
do under Adam. Guess, never tuned."""


RANGE_ELEMENTS = 1 << 22
"""Coordinates that one job looks at or steps: some ten milliseconds, less than a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRules:
    """`OuterRules(**dataclasses.asdict(run.outer))`. Meanings are OuterConfig's."""

    alpha: float = 1.0
    mu: float = 0.0
    mix1_group: int = 0
    mix2_group: int = 4
    mix2_cover: str = "all"
    mix1_wire: str = "bf16"
    mix2_wire: str = "fp32"
    mix1_blocking: bool = False
    sparse_topk: float = 0.0
    robust: str = "none"

    @property
    def is_plain(self) -> bool:
        """Whether a replica that mixes with nobody just goes on from where it is."""
        return self.alpha == 1.0 and self.mu == 0.0

    @property
    def is_clipped(self) -> bool:
        return self.robust == "centered_clip"

    def wire_of(self, mix: int) -> Wire:
        if mix == 1:
            return Wire(self.mix1_wire)
        return Wire(self.mix2_wire, self.sparse_topk)


@dataclass(frozen=True, slots=True)
class Range:
    """Coordinates first .. first + count - 1."""

    first: int
    count: int


def cut(first: int, end: int, elements: int = RANGE_ELEMENTS) -> list[Range]:
    """Into pieces of so many coordinates: those of one job each."""
    starts = [*range(first, end, elements), end] if first < end else []
    return [Range(start, stop - start) for start, stop in pairwise(starts)]


def joined(ranges: list[Range]) -> list[Range]:
    """Neighbours as one. The ranges ascend."""
    out: list[Range] = []
    for where in ranges:
        if out and out[-1].first + out[-1].count == where.first:
            out[-1] = Range(out[-1].first, out[-1].count + where.count)
        else:
            out.append(where)
    return out


def snapshot_call(round_number: int) -> StageCall:
    return StageCall("mix_snapshot", {"round": round_number})


def part_call(mix: int, wire: Wire, where: Range) -> StageCall:
    args = _args(mix, wire, where)
    return StageCall("mix_part", args, output_bytes=wire.part_bytes(where.count))


def reduce_call(
    mix: int,
    wire: Wire,
    where: Range,
    inputs: Sequence[BufferRef],
    weights: Sequence[float],
    *,
    own: int | None,
    usual_norm: float,
    is_clipped: bool,
    members: int,
) -> StageCall:
    """own: which input is ours. usual_norm: a larger contribution is left out; of Mix1, a larger
    distance from the middle ones; 0: no limit."""
    args = _args(mix, wire, where) | {
        "weights": list(weights),
        "own": -1 if own is None else own,
        "usual_norm": usual_norm,
        "is_clipped": is_clipped,
    }
    size = wire.mean_bytes_max(where.count, members)
    return StageCall("mix_reduce", args, tuple(inputs), output_bytes=size)


def take_call(
    wire: Wire, where: Range, mean: BufferRef, *, usual_norm: float, members: int
) -> StageCall:
    """usual_norm: as in reduce_call, of the mean's distance from the own values."""
    args = _args(1, wire, where) | {"usual_norm": usual_norm, "members": members}
    return StageCall("mix_take", args, (mean,))


def gradient_call(where: Range, *, owes: bool) -> StageCall:
    """owes: what travels is sparse, so D is added to what was not sent before."""
    return StageCall("outer_gradient", {"first": where.first, "count": where.count, "owes": owes})


def apply_call(
    rules: OuterRules,
    where: Range,
    mean: BufferRef | None,
    *,
    usual_norm: float,
    members: int,
    resets: bool,
    sent: bool,
) -> StageCall:
    """mean None: the own outer gradient. resets: this replica was too far off; it starts again from
    the group's mean, without momentum. sent: the own part has left (matters where it is sparse)."""
    args = _args(2, rules.wire_of(2), where) | {
        "alpha": rules.alpha,
        "mu": rules.mu,
        "usual_norm": usual_norm,
        "members": members,
        "resets": resets,
        "sent": sent,
    }
    return StageCall("apply_outer", args, () if mean is None else (mean,))


def commit_call(round_number: int) -> StageCall:
    return StageCall("outer_commit", {"round": round_number})


def divergence_call() -> StageCall:
    return StageCall("outer_divergence", {})


def _args(mix: int, wire: Wire, where: Range) -> dict[str, object]:
    return {
        "mix": mix,
        "first": where.first,
        "count": where.count,
        "wire": wire.dtype,
        "density": wire.density,
    }
