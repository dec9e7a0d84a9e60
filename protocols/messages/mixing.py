"""Messages of the exchange between replicas. Owned by exchange.py.

One exchange is one mix (1: parameters, 2: outer gradients) of one round in one group. Each member
reduces some of the parts:

    A <-> B   Offer    I am ready, and this is what I bring. Parts go only to whoever has said so.
    A  -> B   Part     with A's values of a part that B reduces
    B  -> A   Mean     with the mean of those that came, and who they are
    A  -> B   Taken    so that B may let go of it

Payloads: layout in mix_parts.py. Messages without a payload may overtake those with one.
"""

from __future__ import annotations

from swarmd.protocols import limits
from swarmd.protocols.mix_parts import PARTS_MAX
from swarmd.protocols.schema import (
    Message,
    flag,
    message,
    nested,
    number,
    optional,
    raw,
    sequence,
    text,
    uint,
)

MEMBERS_MAX = 62
"""Of one group. Who is in a mean is a bit each, in one integer."""
GROUP_DIGEST_BYTES = 8
ELEMENTS_MAX = 1 << 40


@message(70)
class MixRef(Message):
    """Which exchange; in place in the others. `group` is the digest of the members, in order: peers
    that see different groups find out at once, not by a deadline."""

    round: int = uint(limits.ROUND_MAX)
    mix: int = uint(2, low=1)
    stage: int = uint(limits.STAGES_MAX)
    group: bytes = raw(GROUP_DIGEST_BYTES)


@message(71)
class Offer(Message):
    """I take part. Sent again while somebody is waited for: it asks for a sign of life."""

    ref: MixRef = nested(MixRef)
    elements: int = uint(ELEMENTS_MAX)
    wire: str = text()
    weight: int = uint(default=0)
    """Samples behind an outer gradient; 1 for parameters. 0: receives, and is not counted."""
    norm: float = number(0.0, 1e30, default=0.0)
    """Euclidean, of the whole vector."""
    wants_reply: bool = flag(default=False)


@message(72)
class Later(Message):
    """I live, but am not there yet."""

    ref: MixRef = nested(MixRef)


@message(73)
class Part(Message):
    """To the part's reducer, with a payload."""

    ref: MixRef = nested(MixRef)
    part: int = uint(PARTS_MAX)


@message(74)
class Rejection(Message):
    """Whose contribution a reducer left out or clipped, in place in Mean."""

    member: int = uint(MEMBERS_MAX - 1)
    code: str = text()


@message(75)
class Mean(Message):
    """From the part's reducer, with a payload: the weighted mean of what came in time."""

    ref: MixRef = nested(MixRef)
    part: int = uint(PARTS_MAX)
    included: int = uint((1 << MEMBERS_MAX) - 1)
    """Bit i: member i of the group, in ascending order of ids, is in it."""
    rejected: tuple[Rejection, ...] = sequence(nested(Rejection), MEMBERS_MAX)


@message(76)
class Taken(Message):
    """The Mean has arrived."""

    ref: MixRef = nested(MixRef)
    part: int = uint(PARTS_MAX)


@message(77)
class NoRoom(Message):
    """A payload came when no slot was free. Not a fault: it is sent again."""

    ref: MixRef = nested(MixRef)
    part: int = uint(PARTS_MAX)
    was_mean: bool = flag(default=False)


@message(78)
class NotTaken(Message):
    """This will not be done here. `code` is a rejection code, wrong_group (we are not of one group,
    in my view), or withdrawn (I leave this exchange). Without a part: the whole exchange."""

    ref: MixRef = nested(MixRef)
    code: str = text()
    part: int | None = optional(uint(PARTS_MAX))


MixMessage = Offer | Later | Part | Mean | Taken | NoRoom | NotTaken
MESSAGES = (Offer, Later, Part, Mean, Taken, NoRoom, NotTaken)
"""Those that are sent by themselves; each has a `ref`."""
