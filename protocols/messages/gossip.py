"""What peers tell about themselves and each other. Owned by roster.py and membership.py."""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.schema import Message, flag, message, number, optional, raw, sequence
from swarmd.protocols.schema import text, uint

RECORD_BYTES_MAX = 4 * limits.KIB
PHASES = ("joining", "syncing", "active", "draining", "left")


@message(20)
class SignedRecord(Message):
    """A PeerRecord's bytes (as wire.encode gives them) and its peer's signature over them."""

    body: bytes = raw(RECORD_BYTES_MAX)
    signature: bytes = raw(64)


@message(21)
class PeerRecord(Message):
    """What one peer says of itself. Only it can sign; the highest (incarnation, version) wins."""

    peer: str = text(limits.NAME_CHARS_MAX)
    incarnation: int = uint()
    version: int = uint()
    run_id: str = text(64)
    name: str = text()
    phase: str = text()
    """One of PHASES."""
    stage: int | None = optional(uint(limits.STAGES_MAX))
    """None: an observer, or not assigned yet."""
    pinned: bool = flag(default=False)
    cordoned: bool = flag(default=False)
    addresses: tuple[str, ...] = sequence(text(limits.ADDRESS_CHARS_MAX), limits.ADDRESSES_MAX)
    """Where libp2p listens, as multiaddresses without the /p2p part."""
    bulk_addresses: tuple[str, ...] = sequence(
        text(limits.ADDRESS_CHARS_MAX), limits.ADDRESSES_MAX
    )
    protocol_min: int = uint(65_535, default=1)
    protocol_max: int = uint(65_535, default=1)
    tokens_per_s: float = number(0.0, 1e12, default=0.0)
    """Measured capacity at its stage (or by the dry step before it has one)."""
    memory_bytes: int = uint(default=0)
    """What its device may use for a stage."""
    round: int = uint(limits.ROUND_MAX, default=0)
    step: int = uint(limits.STEP_MAX, default=0)
    micro_batches: int = uint(default=0)
    """Done so far in this incarnation; what tells a stalled peer from a working one."""
