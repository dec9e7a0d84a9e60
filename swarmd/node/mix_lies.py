"""Lies on purpose in the messages of a mix, so that they can be seen refused.

    wrong_stage  wrong_round  lie_samples=FACTOR

(grammar and all other kinds: swarmd/injection.py; lies about the numbers themselves are told by the
worker, swarmd/compute/worker_lies.py.) Messages are changed as they leave, where a liar would:
the machine that meant them does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from swarmd.injection import Injection, parse_injection
from swarmd.protocols.messages import Message
from swarmd.protocols.messages import mixing as wire

ROUNDS_BACK = 3
"""Further back than any message may be late."""
MIX_LIES = ("wrong_stage", "wrong_round", "lie_samples")


class MixLies:
    """clock: s, for lies that begin later. Raises BadValue."""

    def __init__(self, specs: Sequence[str], clock: Callable[[], float]) -> None:
        lies = [parse_injection(spec) for spec in specs]
        self._lies = [lie for lie in lies if lie.kind in MIX_LIES]
        self._clock = clock
        self._since_s = clock()

    def __bool__(self) -> bool:
        return bool(self._lies)

    def told(self, message: Message) -> Message:
        """What is sent in place of a message."""
        for lie in self._lies:
            if isinstance(message, wire.Part | wire.Offer) and self._has_come(lie, message.ref):
                message = _changed(message, lie)
        return message

    def _has_come(self, lie: Injection, ref: wire.MixRef) -> bool:
        if lie.trigger == "after":
            return self._clock() - self._since_s >= lie.at
        return lie.trigger == "now" or (lie.trigger == "round" and ref.round >= lie.at)


def _changed(message: wire.Part | wire.Offer, lie: Injection) -> wire.Part | wire.Offer:
    ref = message.ref
    match message, lie.kind:
        case wire.Offer(), "lie_samples":
            return replace(message, weight=round(message.weight * lie.param))
        case wire.Part(), "wrong_stage":
            return replace(message, ref=replace(ref, stage=ref.stage + 1))
        case wire.Part(), "wrong_round" if ref.round >= ROUNDS_BACK:
            return replace(message, ref=replace(ref, round=ref.round - ROUNDS_BACK))
    return message
