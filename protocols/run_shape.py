"""The numbers of a run that the machines need, and the arithmetic of its clock.

Made from the RunConfig (swarmd/run_config.py), which floor 0 does not know. The clock rides on the
micro-batch: index i of a round's M_b carries a step tag, and nobody needs a counter of the swarm's
progress (docs/design.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.ids import MicroBatchId, RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """Sizes of one run. Counts unless named otherwise."""

    run_id: RunId
    stages: int
    inner_steps: int
    """H."""
    total_steps: int
    micro_batches_per_step: int
    """Over all heads."""
    micro_batch_samples: int
    sequence_tokens: int
    held_out_micro_batches: int
    """Forward-only ones at the end of each round."""
    width: int
    """d, for what an uncompressed pipeline would send."""
    samples_total: int = 0
    """All samples of a run over a fixed number of epochs; 0: the data repeat."""
    peers_min: int = 1
    protocol_min: int = 1
    protocol_max: int = 1
    basis_version: int = 0
    seed: int = 0

    @property
    def micro_batch_tokens(self) -> int:
        return self.micro_batch_samples * self.sequence_tokens

    @property
    def rounds(self) -> int:
        """Outer rounds of the run; the last may be short."""
        return -(-self.total_steps // self.inner_steps)

    def steps_of_round(self, round_number: int) -> int:
        """H, or what is left for the last round."""
        return min(self.inner_steps, self.total_steps - round_number * self.inner_steps)

    def micro_batches_of_round(self, round_number: int) -> int:
        """M_b. Fewer in the last round of a run whose data end before its last step does."""
        full = self.steps_of_round(round_number) * self.micro_batches_per_step
        if self.samples_total:
            until_the_end = -(-self.samples_total // self.micro_batch_samples)
            return max(0, min(full, until_the_end - self.first_micro_batch(round_number)))
        return full

    def first_micro_batch(self, round_number: int) -> int:
        """How many micro-batches the rounds before have: the number of index 0 in the whole run."""
        return round_number * self.inner_steps * self.micro_batches_per_step

    def samples_of(self, micro_batch: MicroBatchId) -> int:
        """Sequences of a micro-batch that is trained on; only the data's very last may be short."""
        if not self.samples_total:
            return self.micro_batch_samples
        before = self.first_micro_batch(micro_batch.round) + micro_batch.index
        left = self.samples_total - before * self.micro_batch_samples
        return max(0, min(self.micro_batch_samples, left))

    def step_of(self, micro_batch: MicroBatchId) -> int:
        """The step tag of a micro-batch, counted over the whole run (algorithms 3.1)."""
        return micro_batch.round * self.inner_steps + (
            micro_batch.index // self.micro_batches_per_step
        )

    def dense_bytes(self, tokens: int) -> int:
        """What a pipeline without compression sends one way: 16 bit an element."""
        return 2 * self.width * tokens
