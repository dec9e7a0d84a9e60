"""Mixing messages for an exchange that is not on at this replica: not yet, no more, or never."""

from __future__ import annotations

from swarmd.protocols.messages.mixing import MixRef
from swarmd.protocols.mix_group import LATE, WITHDRAWN
from swarmd.protocols.mixing import MIX2, group_digest
from swarmd.protocols.outer_round import OuterRound
from swarmd.protocols.round_surroundings import Surroundings

ROUNDS_LATE = 2
"""What belongs to one of so many rounds before is late; of an earlier one, wrong."""
WRONG_GROUP = "wrong_group"
"""The rosters of two peers differ. No fault of either."""


def why_not_here(
    ref: MixRef, around: Surroundings, current: OuterRound | None, ended_round: int
) -> str | None:
    """The code to answer with; None if the exchange may soon be on here."""
    if ref.stage != around.stage:
        return "wrong_stage"
    if ref.round >= around.rounds:
        return "wrong_round"
    newest_over = ended_round if current is None else current.number - 1
    if ref.round <= newest_over:
        return LATE if ref.round > newest_over - ROUNDS_LATE else "wrong_round"
    if current is None:
        return WITHDRAWN
    if ref.round > current.number or (ref.mix == MIX2 and not current.is_past(MIX2)):
        return None
    if current.is_past(ref.mix) or group_digest(current.group(ref.mix)) != ref.group:
        return WRONG_GROUP
    return None
