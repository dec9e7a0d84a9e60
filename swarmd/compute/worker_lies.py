"""Lies on purpose about what a replica brings to a mix, so that they can be seen refused.

    nan_update  inf_update  zero_update  sign_flip  huge_update=FACTOR  stale_update=ROUNDS
    copy_update  wrong_shape  wrong_dtype

(grammar and all other kinds: swarmd/injection.py.) A part is spoilt after it was packed, where a
liar would: nothing else of the worker knows of it. Those of updates are about outer gradients
(Mix2); the last two about anything that is mixed. Kinds that are about messages are carried out by
the daemon (swarmd/node/mix_lies.py).

copy_update: a liar learns of others only what they send it to be reduced, which are not the ranges
that it sends itself. So what it passes off as its own is a neighbour's, of other coordinates:
numbers of the right size that say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from swarmd.injection import Injection
from swarmd.optim import compress
from swarmd.protocols.jobs import StageCall
from swarmd.protocols.mix_parts import ALIGNMENT, HEADER_BYTES
from swarmd.protocols.mixing import MIX2

NOT_NUMBERS = {"nan_update": math.nan, "inf_update": math.inf}
FACTORS = {"zero_update": 0.0, "sign_flip": -1.0}
UPDATES = (*NOT_NUMBERS, *FACTORS, "huge_update")
_AT_DTYPE = 5
"""Where a part's header has the code of its type."""
NO_SUCH_DTYPE = 0xEE


class WorkerLies:
    """Remembers what it packed in the rounds before, if a lie needs that."""

    def __init__(self) -> None:
        self._past: dict[tuple[int, int], bytes] = {}
        """Round and first coordinate to the part that was sent."""
        self._overheard: dict[int, bytes] = {}
        """By size: the last outer gradient that a neighbour sent."""

    def overhear(self, job: StageCall, inputs: Sequence[memoryview]) -> None:
        """What others brought to a mean that this replica reduces."""
        if job.args["mix"] == MIX2:
            others = [view for place, view in enumerate(inputs) if place != job.args["own"]]
            self._overheard |= {len(view): bytes(view) for view in others}

    def spoil(
        self, lies: Sequence[Injection], round_number: int, job: StageCall, part: memoryview
    ) -> int:
        """Change a packed part in place; returns how many of its bytes are sent."""
        size = len(part)
        for lie in lies:
            if lie.kind == "stale_update":
                self._put_old(part, round_number, job, int(lie.param))
            elif lie.kind == "copy_update":
                self._put_overheard(part, job)
            elif lie.kind in UPDATES and job.args["mix"] == MIX2:
                _spoil_numbers(part, job, lie)
            elif lie.kind == "wrong_dtype":
                part[_AT_DTYPE] = NO_SUCH_DTYPE
            elif lie.kind == "wrong_shape":
                size -= ALIGNMENT
        return size

    def _put_old(self, part: memoryview, round_number: int, job: StageCall, age: int) -> None:
        if job.args["mix"] != MIX2:
            return
        first = job.args["first"]
        self._past[round_number, first] = bytes(part)
        self._past.pop((round_number - age - 1, first), None)
        old = self._past.get((round_number - age, first))
        if old is not None and len(old) == len(part):
            part[:] = old

    def _put_overheard(self, part: memoryview, job: StageCall) -> None:
        copied = self._overheard.get(len(part))
        if job.args["mix"] == MIX2 and copied is not None:
            part[:] = copied


def _spoil_numbers(part: memoryview, job: StageCall, lie: Injection) -> None:
    """Of a dense part all coordinates; of one with scales or levels, the first of those."""
    wire, count = job.args["wire"], job.args["count"]
    if job.args["density"] or wire not in ("fp32", "bf16"):
        scales = compress.section(part, HEADER_BYTES, 1, torch.float32)
        scales *= NOT_NUMBERS.get(lie.kind, _factor(lie))
        return
    dtype = torch.float32 if wire == "fp32" else torch.bfloat16
    values = compress.section(part, HEADER_BYTES, count, dtype)
    if lie.kind in NOT_NUMBERS:
        values.fill_(NOT_NUMBERS[lie.kind])
    else:
        values *= _factor(lie)


def _factor(lie: Injection) -> float:
    return FACTORS.get(lie.kind, float(lie.param or 1.0))
