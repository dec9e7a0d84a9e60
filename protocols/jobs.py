"""What a machine may ask of the compute worker, and what comes back. Values only, no tensors.

A job is at most one micro-batch long, so that a stop never waits longer than that. Bytes of tensors
lie in slots of shared memory; a `BufferRef` names one. Exactly one owner holds a slot at a time:
whoever receives a ref must pass it on or release it. What a job reads stays its asker's slot: the
lane holds it too, from the asking until the job has ended, so the asker may release it at once.

Who runs them: swarmd/compute (torch, in its own process), or a fake with a cost model in the
simulator. Order is the order of submission.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarmd.protocols.ids import MicroBatchId


@dataclass(frozen=True, slots=True)
class BufferRef:
    """`size_bytes` bytes in slot `slot`. `generation` tells a reused slot from the former one."""

    slot: int
    generation: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the stage's layers on one micro-batch.

    First stage: no `input`; the worker reads the samples itself. Last stage: computes the loss and,
    if `train`, its own backward at once, so the result's output is the input gradient.
    `train=False`: no graph is kept, the output is what goes to the next stage (none at the last).

    `attempt` is this peer's own number of the passage, never used twice: with the micro-batch it
    names the graph, also when two callers brought the same micro-batch.
    """

    micro_batch: MicroBatchId
    attempt: int
    train: bool
    input: BufferRef | None = None
    accumulate: bool = True
    """Last stage only, as in Backward: False returns the input gradient and counts nothing."""


@dataclass(frozen=True, slots=True)
class Backward:
    """Continue a micro-batch whose graph the worker holds, with the gradient of what it sent on.

    `accumulate=False`: return the input gradient only, the parameter gradient was counted before.
    If it fails, the graph stays: another gradient may be tried, or the graph forgotten.
    """

    micro_batch: MicroBatchId
    attempt: int
    gradient: BufferRef
    accumulate: bool = True


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the graph of a micro-batch that has no backward here. Harmless if there is none."""

    micro_batch: MicroBatchId
    attempt: int


@dataclass(frozen=True, slots=True)
class Step:
    """Take one inner step with the mean of the gradients accumulated since the last.

    `step` is the step's number in the whole run, counted from 0; the learning rate follows it. With
    nothing accumulated it does nothing and decays nothing.
    """

    step: int


@dataclass(frozen=True, slots=True)
class StageCall:
    """Any other request to the worker, named; `args` and the result's `data` are plain values.

    Used by rounds, state and measurements (snapshot, apply_outer, export, digest ...). Each name is
    documented where the worker implements it.
    """

    name: str
    args: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[BufferRef, ...] = ()
    output_bytes: int = 0
    """The most bytes its output may have; 0: it has none, and no slot is lent for it."""


Job = Forward | Backward | Forget | Step | StageCall


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job gave. `output` is a slot that the receiver now owns."""

    output: BufferRef | None = None
    samples: int = 0
    """Sequences in the micro-batch."""
    tokens: int = 0
    loss_sum: float | None = None
    """Sum over samples of the mean loss per token, nats. Last stage only."""
    busy_s: float = 0.0
    cpu_s: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job gave nothing. Codes: malformed, wrong_shape, wrong_dtype (a peer's bytes),
    not_finite (a peer's, or computed here), out_of_memory, device_lost, compute_failed,
    data_missing, cancelled, worker_died, unknown_micro_batch; of a state also wrong_run,
    wrong_stage, too_large."""

    code: str
    text: str = ""
