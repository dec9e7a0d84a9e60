"""The life of a micro-batch between two stages. Owned by pipeline.py.

Payloads (layout in swarmd/compute/tensor_bytes.py): Forward carries token ids and coefficients C,
Gradient carries G U. Attempts are numbered by the caller, one number for each Forward it ever sends
(cyclic), so that an answer names exactly one Forward, whatever became of the micro-batch since.

Messages with a payload travel on another plane than those without: a Cancel may overtake the
Forward it means. That costs the callee one computation in vain and nothing else.
"""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.schema import (
    Message,
    flag,
    message,
    nested,
    number,
    optional,
    seconds,
    text,
    uint,
)

LOSS_SUM_MAX = 1e12
"""A larger one is as good as infinite."""


@message(40)
class MicroBatchRef(Message):
    """A MicroBatchId and the caller's attempt, in place in the others."""

    round: int = uint(limits.ROUND_MAX)
    index: int = uint(limits.MICRO_BATCHES_PER_ROUND_MAX)
    held_out: bool = flag(default=False)
    attempt: int = uint(limits.ATTEMPTS_MAX)

    @property
    def id(self) -> MicroBatchId:
        return MicroBatchId(self.round, self.index, self.held_out)


@message(41)
class Forward(Message):
    """From stage s to s+1, with a payload. The callee answers Gradient, Busy or Refused."""

    ref: MicroBatchRef = nested(MicroBatchRef)
    first_attempt: int = uint(limits.ATTEMPTS_MAX)
    """The attempt that first carried these very bytes. Asked again with the same bytes, a callee
    that is still at it goes on; with others, it begins anew."""
    to_stage: int = uint(limits.STAGES_MAX)
    basis_version: int = uint(65_535)
    weight_version: int = uint(limits.STEP_MAX, default=0)
    """Inner steps behind the caller's weights. For diagnostics and audits."""
    samples: int = uint(1 << 20, low=1)
    tokens: int = uint(1 << 30, low=1)
    deadline_s: float = seconds()
    """What is left of the micro-batch's own deadline, from receipt."""


@message(42)
class Gradient(Message):
    """Back from s+1 to s. With a payload if the micro-batch is trained on, without if held out."""

    ref: MicroBatchRef = nested(MicroBatchRef)
    basis_version: int = uint(65_535)
    samples: int = uint(1 << 20, low=1)
    loss_sum: float = number(-LOSS_SUM_MAX, LOSS_SUM_MAX)
    """Sum over samples of the mean loss per token, nats."""
    busy_s: float = seconds(default=0.0)
    """Time the callee's own worker spent on it, for routing."""


@message(43)
class Busy(Message):
    """No room now. Not a fault: the caller asks another, or again."""

    ref: MicroBatchRef = nested(MicroBatchRef)
    retry_in_s: float = seconds(default=0.0)


@message(44)
class Refused(Message):
    """It will not be done here. `code` is a rejection code, a JobFailure's code, draining or
    expired; an unknown one is a refusal like any other."""

    ref: MicroBatchRef = nested(MicroBatchRef)
    code: str = text()
    text: str = text(limits.TEXT_CHARS_MAX, default="")
    basis_version: int | None = optional(uint(65_535))
    """With wrong_basis: the callee's."""


@message(45)
class Cancel(Message):
    """The caller wants no answer any more: the callee forgets graph and payload."""

    ref: MicroBatchRef = nested(MicroBatchRef)
    code: str = text(default="")
    """done_elsewhere (another replica's gradient came first), done_already (its own answer to the
    question before did), expired, caller_lost, or why the caller's own part failed."""
