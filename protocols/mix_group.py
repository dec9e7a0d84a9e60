"""The members of one exchange: who has offered, who is waited for, who is out and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.mixing import Offer

SILENT, UNREACHABLE, LATE, WITHDRAWN = "silent", "unreachable", "late", "withdrawn"
REVIVABLE = (SILENT, UNREACHABLE, WITHDRAWN)
"""With a sign of life these are in again."""


@dataclass(slots=True, eq=False)
class Member:
    peer: PeerId
    number: int
    """Its place in the group, as messages name it."""
    heard_s: float
    asked_s: float = float("-inf")
    """When it was last sent our offer."""
    is_there: bool = False
    """It has offered: it takes parts and means."""
    came_s: float = float("-inf")
    """When it offered."""
    weight: int = 0
    norm: float = 0.0
    last_part_s: float = float("-inf")
    out: str = ""
    """Why nothing more is expected of it."""
    is_ahead: bool = False
    """It says that we are late: it has gone on."""


class MixGroup:
    """excluded: members that are out from the beginning, and why. tardy: those that nothing waits
    for before they come."""

    def __init__(
        self,
        members: tuple[PeerId, ...],
        own: PeerId,
        *,
        excluded: Mapping[PeerId, str],
        tardy: frozenset[PeerId],
        weight_caps: Mapping[PeerId, int],
        patience_s: float,
        now_s: float,
    ) -> None:
        self.peers = members
        self.own = members.index(own)
        self.members = [Member(peer, number, now_s) for number, peer in enumerate(members)]
        self._place = {peer: number for number, peer in enumerate(members)}
        self._weight_caps = weight_caps
        self._tardy = tardy
        self.patience_s = patience_s
        self.last_came_s = now_s
        """When the last of those who are there has come."""
        self.waits_no_more = False
        """The deadline has passed: what is not here is not awaited."""
        for member in self.others():
            member.out = excluded.get(member.peer, "")

    def __len__(self) -> int:
        return len(self.members)

    def get(self, peer: PeerId) -> Member | None:
        """Another member."""
        number = self._place.get(peer)
        return None if number is None or number == self.own else self.members[number]

    def others(self) -> Iterator[Member]:
        return (member for member in self.members if member.number != self.own)

    def present(self) -> list[Member]:
        """Others that take parts and means now."""
        return [member for member in self.others() if member.is_there and not member.out]

    # ------------------------------------------------------------------------------------ changes

    def offered(self, member: Member, offer: Offer, now_s: float) -> None:
        """It is there, with what it says it brings, as far as others have seen it work. Only its
        first word counts."""
        if member.is_there:
            return
        member.is_there = True
        member.came_s = self.last_came_s = now_s
        cap = self._weight_caps.get(member.peer)
        member.weight = offer.weight if cap is None else min(offer.weight, cap)
        member.norm = offer.norm

    def heard(self, member: Member, now_s: float) -> None:
        member.heard_s = now_s
        if member.out in REVIVABLE:
            member.out = ""

    def lagged(self, lag_s: float, now_s: float) -> None:
        """We stood still for so long, and could hear nobody."""
        for member in self.others():
            member.heard_s = min(now_s, member.heard_s + lag_s)
            member.last_part_s = min(now_s, member.last_part_s + lag_s)

    def is_alive(self, member: Member, now_s: float) -> bool:
        """It is not out, and was heard not long ago."""
        return not member.out and now_s - member.heard_s <= self.patience_s

    def is_coming(self, member: Member) -> bool:
        """It lives and has not come, and is worth waiting for."""
        return not member.is_there and not member.out and member.peer not in self._tardy

    def is_part_awaited(self, member: Member, since_s: float, now_s: float) -> bool:
        """Whether a part that was opened at `since_s` waits for this member's values."""
        if self.waits_no_more or not self.is_alive(member, now_s):
            return False
        if not member.is_there:
            return member.peer not in self._tardy
        if not member.weight:
            return False
        return now_s - max(since_s, member.came_s, member.last_part_s) <= self.patience_s

    # ------------------------------------------------------------------------------------- limits

    def usual_norm(self, own_weight: int, own_norm: float, usual_norm: float) -> float:
        """How long outer gradients are here; 0: there is nothing to compare with.

        In a pair there is no majority, so the own norm is the measure; and what was usual in the
        rounds before, because one that took few steps has a short gradient and must not take its
        honest partner for a liar.
        """
        norms = [own_norm] if own_weight else []
        others = [member.norm for member in self.others() if member.is_there and member.weight]
        if len(norms) != 1 or len(others) != 1:
            norms += others
        return max(median(norms) if norms else 0.0, usual_norm)
