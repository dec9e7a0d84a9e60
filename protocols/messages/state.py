"""How the state of a stage travels from a peer that has it to one that needs it.

    joiner -> donor   StateRequest
    donor -> joiner   Manifest, or StateRefused
    joiner -> donor   ChunkRequest, several at a time
    donor -> joiner   Chunk, with the bytes as payload, or StateRefused

A snapshot is one body, cut into pieces of `chunk_bytes`; each piece is known by its BLAKE2b-256,
the whole by the hash over the hashes. What arrives is checked against them before it is kept.
"""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.schema import Message, message, number, optional, raw, sequence, text, uint

HASH_BYTES = 32
CHUNKS_MAX = 24_576
"""Their hashes fit into one message: 96 GiB of state in pieces of 4 MiB."""


@message(90)
class StateRequest(Message):
    """Asks for a snapshot of a stage, as new as the donor can make one."""

    stage: int = uint(limits.STAGES_MAX)


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
