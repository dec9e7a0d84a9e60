"""How two peers greet, refuse and leave, and how a run's description and tokeniser are fetched."""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.messages.gossip import SignedRecord
from swarmd.protocols.schema import Message, flag, message, nested, optional, raw, text, uint

RUN_BYTES_MAX = 256 * limits.KIB
TOKENISER_BYTES_MAX = 64 * limits.MIB
TOKENISER_PART_BYTES = 256 * limits.KIB


@message(1)
class Hello(Message):
    """First message each way on a new link. A link counts only once the other's Hello came."""

    run_id: str = text(64)
    """Empty: a peer that only asks (for addresses, for a dial back)."""
    incarnation: int = uint()
    protocol_min: int = uint(65_535)
    protocol_max: int = uint(65_535)
    agent: str = text(default="")
    is_reply: bool = flag(default=False)
    """A Hello that is no reply is replied to: who came up first, or heard nothing yet, learns all
    the same who is there."""
    record: SignedRecord | None = optional(nested(SignedRecord))


@message(2)
class Goodbye(Message):
    """The sender closes on purpose: what follows is a clean end, not a loss."""

    reason: str = text()


@message(3)
class Refusal(Message):
    """Why a Hello was not accepted: wrong_run, version_mismatch, run_full, not_admitted, banned,
    identity_in_use_elsewhere."""

    code: str = text()
    text: str = text(limits.TEXT_CHARS_MAX, default="")


@message(4)
class RunRequest(Message):
    """Asks for the description of a run whose id is known."""

    run_id: str = text(64)


@message(5)
class RunDescription(Message):
    """The canonical bytes of a RunConfig; accepted if they hash to the run id."""

    run_id: str = text(64)
    body: bytes = raw(RUN_BYTES_MAX)


@message(6)
class TokeniserRequest(Message):
    """Asks for a piece of the run's tokeniser."""

    name: str = text(64)
    """BLAKE2b-256 of the file."""
    offset: int = uint(TOKENISER_BYTES_MAX)


@message(7)
class TokeniserPart(Message):
    """A piece of the file; the whole is accepted if it hashes to its name."""

    name: str = text(64)
    offset: int = uint(TOKENISER_BYTES_MAX)
    size_bytes: int = uint(TOKENISER_BYTES_MAX)
    """Of the file. 0: the sender has none of this name."""
    body: bytes = raw(TOKENISER_PART_BYTES, default=b"")


@message(8)
class DrainAsked(Message):
    """An operator asks the receiver to drain. It obeys who the run names, and nobody else."""

    incarnation: int = uint()
    """Of the receiver: it is this life that is meant, not one after it."""
