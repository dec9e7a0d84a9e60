"""How the state of a stage travels from peers that have it to one that needs it.

    joiner -> donors  StateRequest
    donor -> joiner   Manifest, or StateRefused
    joiner -> donors  ChunkRequest, several at a time
    donor -> joiner   Chunk, with the bytes as payload, or StateRefused

A snapshot is one body, cut into pieces of `chunk_bytes`; each piece is known by its BLAKE2b-256,
the whole by the hash over the hashes. What arrives is checked against them before it is kept. It is
what a round began with, so replicas that agree offer the same pieces.
"""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.schema import Message, message, number, optional, raw, sequence, text, uint

HASH_BYTES = 32
CHUNKS_MAX = 24_576
"""Their hashes fit into one message: 96 GiB of state in pieces of 4 MiB."""

GUARDED_MAX = 64
"""Snapshots of other stages that one peer tells of."""
SKETCH_VALUES_MAX = 64
SKETCH_MAX = 1e30


@message(90)
class StateRequest(Message):
    """Asks for a snapshot of a stage: as new as the donor can make one, or that of `round` if the
    donor still has it (the newest else)."""

    stage: int = uint(limits.STAGES_MAX)
    round: int | None = optional(uint(limits.ROUND_MAX))


@message(91)
class Manifest(Message):
    """What a snapshot is. Good for as long as the donor serves it."""

    stage: int = uint(limits.STAGES_MAX)
    round: int = uint(limits.ROUND_MAX)
    step: int = uint(limits.STEP_MAX)
    size_bytes: int = uint(low=1)
    chunk_bytes: int = uint(limits.CHUNK_BYTES_MAX, low=1)
    hashes: tuple[bytes, ...] = sequence(raw(HASH_BYTES), CHUNKS_MAX)
    digest: bytes = raw(HASH_BYTES)
    """BLAKE2b-256 over the hashes, one after the other."""
    sketch: tuple[float, ...] = sequence(number(-SKETCH_MAX, SKETCH_MAX), SKETCH_VALUES_MAX)
    """Sums over ranges of the parameters: two states are about as far apart as their sketches."""


@message(92)
class StateRefused(Message):
    """No snapshot, or no longer this one: wrong_stage, no_state, unknown_manifest, rate_exceeded,
    disk_error. `retry_in_s`: when asking again may help."""

    code: str = text()
    digest: bytes | None = optional(raw(HASH_BYTES))
    index: int | None = optional(uint(CHUNKS_MAX))
    retry_in_s: float = number(0.0, limits.SECONDS_MAX, default=0.0)


@message(93)
class ChunkRequest(Message):
    digest: bytes = raw(HASH_BYTES)
    index: int = uint(CHUNKS_MAX)


@message(94)
class Chunk(Message):
    """The bytes travel as payload."""

    digest: bytes = raw(HASH_BYTES)
    index: int = uint(CHUNKS_MAX)


@message(95)
class GuardedStage(Message):
    """A snapshot of another stage that a peer keeps. In records without the sketch, on disk with
    it; never sent by itself."""

    stage: int = uint(limits.STAGES_MAX)
    round: int = uint(limits.ROUND_MAX)
    sketch: tuple[float, ...] = sequence(number(-SKETCH_MAX, SKETCH_MAX), SKETCH_VALUES_MAX)
