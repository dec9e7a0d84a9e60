"""What one peer's pipeline is, and the bounds it keeps.

Whatever arrives is checked against this before anything is held. Bytes of tensors are not: only the
compute worker reads those, and says malformed, wrong_shape, wrong_dtype or not_finite.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.messages.pipeline import Forward, Gradient, MicroBatchRef
from swarmd.protocols.run_shape import RunShape


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """One stage of a run."""

    run: RunShape
    stage: int

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.run.stages - 1

    @property
    def hops_below(self) -> int:
        """Stages between this one and the loss."""
        return self.run.stages - 1 - self.stage

    def is_in_run(self, micro_batch: MicroBatchId) -> bool:
        """Whether the run has such a micro-batch at all."""
        if not 0 <= micro_batch.round < self.run.rounds:
            return False
        if micro_batch.held_out:
            return micro_batch.index < self.run.held_out_micro_batches
        return micro_batch.index < self.run.micro_batches_of_round(micro_batch.round)

    def samples_fit(self, micro_batch: MicroBatchId, samples: int) -> bool:
        """Held-out micro-batches may be short, trained ones only where the data end."""
        if micro_batch.held_out:
            return 1 <= samples <= self.run.micro_batch_samples
        return samples == self.run.samples_of(micro_batch)

    def first_step_of(self, round_number: int) -> int:
        return self.run.step_of(MicroBatchId(round_number, 0))

    def why_not_forward(self, message: Forward) -> str | None:
        """The rejection code of a Forward that this stage must not take, or None."""
        micro_batch = message.ref.id
        if message.to_stage != self.stage or self.is_first:
            return "wrong_stage"
        if message.basis_version != self.run.basis_version:
            return "wrong_basis"
        if micro_batch.round >= self.run.rounds:
            return "wrong_round"
        if not self.is_in_run(micro_batch):
            return "malformed"
        if not self.samples_fit(micro_batch, message.samples):
            return "wrong_shape"
        if message.tokens != message.samples * self.run.sequence_tokens:
            return "wrong_shape"
        return None

    def why_not_gradient(self, message: Gradient, samples: int, has_payload: bool) -> str | None:
        """The rejection code of a Gradient that does not answer what was sent, or None."""
        if message.basis_version != self.run.basis_version:
            return "wrong_basis"
        if message.samples != samples:
            return "wrong_shape"
        if has_payload == message.ref.held_out:
            return "malformed"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """Bounds of one peer's pipeline. The composite scales them to its links and memory."""

    in_flight_max: int = 8
    """Micro-batches held at once, whatever they wait for. Each keeps a slot and a graph."""
    forward_queue_max: int = 4
    """Of them, those whose forward has not begun; beyond, BUSY."""
    lane_depth: int = 2
    """Micro-batch jobs at the compute worker at once: one runs, one is ready when it ends."""
    micro_batch_s: float = 60.0
    """From its start at the head, or its arrival here, until a micro-batch is given up."""
    hop_s_min: float = 1.0
    """Least time for an answer, for each stage below: an outer hop must outwait the recovery of an
    inner one, or one fault would be mended twice."""
    hop_s_max: float = 20.0
    """Most time for an answer, and the deadline until five answers are known."""
    refusals_max: int = 3
    """After so many refusals of one micro-batch it is the micro-batch's fault, or ours."""
    retry_s_first: float = 0.05
    retry_s_max: float = 1.0
    """Back-off while nobody can be asked, doubling. News of the next stage ends it at once."""
    busy_retry_s_max: float = 1.0
    """The longest patience asked of a caller that is told BUSY."""

    def __post_init__(self) -> None:
        assert 1 <= self.lane_depth
        assert 1 <= self.forward_queue_max
        assert 1 <= self.in_flight_max
        assert 0 < self.hop_s_min <= self.hop_s_max
        assert 0 < self.retry_s_first <= self.retry_s_max
        assert self.refusals_max >= 1


def micro_batch_ref(micro_batch: MicroBatchId, attempt: int) -> MicroBatchRef:
    """How a micro-batch and an attempt at it stand in a message."""
    return MicroBatchRef(
        round=micro_batch.round,
        index=micro_batch.index,
        held_out=micro_batch.held_out,
        attempt=attempt,
    )
