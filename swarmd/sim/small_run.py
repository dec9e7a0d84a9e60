"""A run small enough to simulate."""

from __future__ import annotations

import hashlib

from swarmd.protocols.ids import RunId
from swarmd.protocols.run_shape import RunShape


def shape_of(stages: int, rounds: int, seed: int, *, micro_batches_per_step: int = 8) -> RunShape:
    """By default so many steps of so many micro-batches that a round takes seconds."""
    run_id = hashlib.blake2b(f"sim/{stages}/{rounds}/{seed}".encode(), digest_size=32).hexdigest()
    return RunShape(
        run_id=RunId(run_id),
        stages=stages,
        inner_steps=5,
        total_steps=5 * rounds,
        micro_batches_per_step=micro_batches_per_step,
        micro_batch_samples=4,
        sequence_tokens=128,
        held_out_micro_batches=4,
        width=128,
        seed=seed,
    )
