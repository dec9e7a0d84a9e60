"""The outer round's jobs on short lists of numbers: a stage of a few weights, really mixed.

Answers the calls of protocols/outer_rules.py as swarmd/compute/outer_calls.py does, with plain
arithmetic, so that what machines do to each other's parameters can be followed in the simulator and
in tests. Where a check is about bytes (types, shapes, sizes) it stands in the real worker only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from swarmd.protocols.jobs import StageCall
from swarmd.protocols.outer_rules import NORM_RATIO_MAX


class FakeJobFailed(Exception):
    """Becomes a JobFailure."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Values:
    """What lies in a slot: numbers of a range."""

    first: int
    numbers: tuple[float, ...]

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.numbers))


def norm(numbers: Sequence[float]) -> float:
    return math.sqrt(math.fsum(x * x for x in numbers))


class FakeOuter:
    """One replica's weights. `covered`: how many of them Mix2 is over; None: all."""

    def __init__(self, weights: Sequence[float], covered: int | None = None) -> None:
        self.weights = list(weights)
        self.covered = len(self.weights) if covered is None else covered
        self.x: list[float] = []
        self.momentum = [0.0] * len(self.weights)
        self.delta = [0.0] * len(self.weights)
        self.round = -1
        """The one that begins with x."""
        self.is_stepping = False
        """x is neither this round's start nor the next one's."""
        self.stepped: dict[int, float] = {}
        """Coordinates of x that the outer step has been taken for (twice would be a bug), and the
        outer gradient it was taken with."""

    def run(self, job: StageCall, inputs: Sequence[Values]) -> tuple[dict[str, Any], Values | None]:
        """(data, what lies in the output). Raises FakeJobFailed."""
        args = job.args
        if job.name == "mix_snapshot":
            self.x = list(self.weights)
            self.delta = [0.0] * len(self.x)
            self.stepped.clear()
            self.round, self.is_stepping = args["round"], False
            return {
                "elements": len(self.x),
                "covered": self.covered,
                "norm": norm(self.x),
            }, None
        if job.name == "outer_commit":
            assert len(self.stepped) == len(self.x), "a coordinate was not stepped"
            self.weights = list(self.x)
            self.round, self.is_stepping = args["round"] + 1, False
            return {}, None
        if job.name == "outer_divergence":
            return {"divergence": None}, None
        where = range(args["first"], args["first"] + args["count"])
        match job.name:
            case "mix_part":
                return self._part(args["mix"], where)
            case "mix_reduce":
                return self._reduce(args, where, inputs)
            case "mix_take":
                return self._take(args, where, inputs[0])
            case "outer_gradient":
                d = self._gradient(where)
                return {
                    "squares": norm(d) ** 2,
                    "delta_squares": norm([self.delta[i] for i in where]) ** 2,
                    "is_finite": all(map(math.isfinite, d)),
                }, None
            case "apply_outer":
                return self._apply(args, where, inputs)
        raise FakeJobFailed("compute_failed")

    # --------------------------------------------------------------------------------------- pieces

    def _gradient(self, where: range) -> list[float]:
        return [self.x[i] - self.weights[i] for i in where]

    def _part(self, mix: int, where: range) -> tuple[dict[str, Any], Values]:
        assert self.stepped.keys().isdisjoint(where), "x is not what it was"
        numbers = [self.x[i] for i in where] if mix == 1 else self._gradient(where)
        if not all(map(math.isfinite, numbers)):
            raise FakeJobFailed("not_finite")
        return {"norm": norm(numbers)}, Values(where.start, tuple(numbers))

    def _reduce(
        self, args: dict[str, Any], where: range, inputs: Sequence[Values]
    ) -> tuple[dict[str, Any], Values | None]:
        codes = ["" if part.is_finite else "not_finite" for part in inputs]
        sound = [part.numbers for part, code in zip(inputs, codes, strict=True) if not code]
        middle = [0.0] * len(where)
        if args["mix"] == 1:
            own = args["own"]
            middle = (
                list(inputs[own].numbers)
                if len(inputs) <= 2 and own >= 0
                else [median(column) for column in zip(*sound, strict=True)]
            )
        sizes = []
        for part in inputs:
            assert part.first == where.start, "a part of another range"
            assert len(part.numbers) == len(where), "a part of another size"
            sizes.append(norm([a - b for a, b in zip(part.numbers, middle, strict=True)]))
        usual = args["usual_norm"]
        if len(sound) > 2:
            usual = max(usual, median(s for s, code in zip(sizes, codes, strict=True) if not code))
        for place, size in enumerate(sizes):
            if not codes[place] and args["usual_norm"] and size > NORM_RATIO_MAX * usual:
                codes[place] = "norm_too_large"
        kept = [
            (part.numbers, weight)
            for part, weight, code in zip(inputs, args["weights"], codes, strict=True)
            if not code
        ]
        total = sum(weight for _, weight in kept)
        if not total:
            return {"codes": codes, "weight": 0.0}, None
        mean = tuple(
            math.fsum(numbers[i] * weight for numbers, weight in kept) / total
            for i in range(len(where))
        )
        return {"codes": codes, "weight": total}, Values(where.start, mean)

    def _take(
        self, args: dict[str, Any], where: range, mean: Values
    ) -> tuple[dict[str, Any], None]:
        delta = [mean.numbers[i - where.start] - self.x[i] for i in where]
        code = self._code(mean, delta, args["usual_norm"])
        if not code:
            self.delta[where.start : where.stop] = delta
        return {"code": code}, None

    def _apply(
        self, args: dict[str, Any], where: range, inputs: Sequence[Values]
    ) -> tuple[dict[str, Any], None]:
        assert self.stepped.keys().isdisjoint(where), "stepped twice"
        d = self._gradient(where)
        if inputs:
            usual = args["usual_norm"] and max(args["usual_norm"], norm(d))
            code = self._code(inputs[0], inputs[0].numbers, usual)
            if code:
                return {"code": code}, None
            d = list(inputs[0].numbers)
        elif args["resets"]:
            d = [0.0] * len(where)
        alpha, mu = args["alpha"], args["mu"]
        for i, change in zip(where, d, strict=True):
            before = 0.0 if args["resets"] else self.momentum[i]
            self.momentum[i] = mu * before + change
            self.x[i] += self.delta[i] - alpha * (change + mu * self.momentum[i])
        self.is_stepping = True
        self.stepped.update(zip(where, d, strict=True))
        return {"code": ""}, None

    @staticmethod
    def _code(mean: Values, size: Sequence[float], usual_norm: float) -> str:
        if not mean.is_finite:
            return "not_finite"
        is_too_large = usual_norm and norm(size) > NORM_RATIO_MAX * usual_norm
        return "norm_too_large" if is_too_large else ""
