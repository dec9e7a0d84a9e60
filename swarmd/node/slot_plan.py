"""How much shared memory a stage needs: slots for micro-batches on their way, and for chunks.

Bounds, not measures: a slot costs address space until it is written to. Sizes follow from the
run alone, so that the daemon, which has no torch, knows them before the worker is there.
"""

from __future__ import annotations

from swarmd.protocols.limits import CHUNK_BYTES
from swarmd.protocols.mix_parts import PART_BYTES_MAX
from swarmd.run_config import RunConfig

HEADER_BYTES = 4_096
"""More than the payload header needs (compute/tensor_bytes.py)."""
SLOTS_PER_MICRO_BATCH = 4
"""What came in, what goes out, the gradient back, and its answer."""
SLOTS_SPARE = 8
OUTPUT_RESERVE = 2
"""Only the own worker may take these, so that it can always finish what it has."""
CHUNK_SLOTS = 96
"""A mix of large vectors has up to seventy parts under way (protocols/exchange_plan.py)."""


def payload_bytes_bound(run: RunConfig) -> int:
    """At least what one micro-batch's payload takes, in any wire precision."""
    columns = run.boundary.rank or run.model.width
    rows = run.micro_batch_tokens
    ids = run.micro_batch_samples * (run.sequence_tokens + 1)
    return HEADER_BYTES + rows * (4 * columns + 4) + 4 * ids


def slot_classes(run: RunConfig, in_flight_max: int) -> list[tuple[int, int]]:
    """(bytes, count) of each size class, for a SlotPool."""
    payload_bytes = payload_bytes_bound(run)
    payload_slots = SLOTS_PER_MICRO_BATCH * in_flight_max + SLOTS_SPARE
    chunk_bytes = max(CHUNK_BYTES, PART_BYTES_MAX) + HEADER_BYTES
    if abs(payload_bytes - chunk_bytes) < 2 * HEADER_BYTES:
        return [(max(payload_bytes, chunk_bytes), payload_slots + CHUNK_SLOTS)]
    return [(payload_bytes, payload_slots), (chunk_bytes, CHUNK_SLOTS)]
