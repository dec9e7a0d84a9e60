"""Accusations and how long the accused has to answer (Lifeguard, arXiv 1707.00788).

A lone accuser is often wrong, so the time begins long; every further independent accuser shortens
it, logarithmically, down to a minimum that leaves room to hear of the accusation and refute it:

    timeout(c) = max(min, max - (max - min) * log(c + 1) / log(k + 1))

with c confirmations out of k expected ones. Only witnesses confirm: ourselves, and those that
should have a link to the accused; others may accuse, and then it stands accused, but no sooner
dead.

An accusation concerns one life of a peer: a pair
(incarnation, refutation). A record of a later life ends it; a mere newer version does not, for such
news may have left before the peer froze.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import Rumour

Life = tuple[int, int]
"""(incarnation, refutation): what an accusation is about."""


def suspicion_timeout_s(
    confirmations: int, expected: int, timeout_s_min: float, timeout_s_max: float
) -> float:
    """Seconds from the first accusation to the verdict.

    confirmations: accusers besides the first. expected: how many would bring it to the minimum; 0
    where there is nobody else to ask, and then the minimum holds at once.
    """
    assert 0 <= timeout_s_min <= timeout_s_max
    if expected <= 0 or confirmations >= expected:
        return timeout_s_min
    share = math.log(confirmations + 1) / math.log(expected + 1)
    return max(timeout_s_min, timeout_s_max - (timeout_s_max - timeout_s_min) * share)


HEARSAY_MAX = 16
"""Accusers that are no witnesses, remembered for one accused."""


@dataclass(slots=True)
class Suspicion:
    """One peer that stands accused."""

    life: Life
    since_s: float
    expected: int
    witnesses: list[PeerId] = field(default_factory=list)
    """Accusers that should know."""
    hearsay: list[PeerId] = field(default_factory=list)
    """The others."""
    rumour: Rumour | None = None
    """The first accusation, for the accused to refute."""
    is_hastened: bool = False
    is_vouched: bool = False
    """A helper heard it, so it had more time; and still it did not refute."""
    grace_s: float = 0.0
    """Added when we ourselves were stopped: the accused could not reach us meanwhile."""
    deadline_s: float = math.inf

    def has_accuser(self, accuser: PeerId) -> bool:
        return accuser in self.witnesses or accuser in self.hearsay


class Suspicions:
    """The accused, with the moment at which each counts as dead."""

    def __init__(self, timeout_s_min: float, timeout_s_max: float, expected_max: int) -> None:
        self.timeout_s_min = timeout_s_min
        self._timeout_s_max = timeout_s_max
        self._expected_max = expected_max
        self._of: dict[PeerId, Suspicion] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._of

    def __len__(self) -> int:
        return len(self._of)

    def get(self, peer: PeerId) -> Suspicion | None:
        return self._of.get(peer)

    def life_of(self, peer: PeerId, otherwise: Life) -> Life:
        """The life in which it stands accused."""
        held = self._of.get(peer)
        return otherwise if held is None else max(held.life, otherwise)

    def accuse(
        self,
        peer: PeerId,
        life: Life,
        accuser: PeerId,
        now_s: float,
        *,
        rumour: Rumour | None = None,
        is_witness: bool,
        others: int,
    ) -> bool:
        """Note an accusation. True if it is worth passing on: it is new, or a new witness.

        others: peers besides the accused and ourselves that could confirm it.
        """
        held = self._of.get(peer)
        is_new = held is None or life > held.life
        if held is None or life > held.life:
            held = Suspicion(life, now_s, min(self._expected_max, others), rumour=rumour)
            self._of[peer] = held
        elif life < held.life or held.has_accuser(accuser):
            return False
        if is_witness:
            held.witnesses.append(accuser)
        elif len(held.hearsay) < HEARSAY_MAX:
            held.hearsay.append(accuser)
        self._set_deadline(held)
        return is_new or (is_witness and len(held.witnesses) <= held.expected + 1)

    def hasten(self, peer: PeerId) -> None:
        """Somebody's time for this peer has run out: ours is the minimum now."""
        held = self._of[peer]
        held.is_hastened = True
        self._set_deadline(held)

    def vouch(self, peer: PeerId) -> None:
        """It was heard: it gets the longest time once more, to be told and to refute."""
        held = self._of[peer]
        if not held.is_vouched:
            held.is_vouched = True
            held.grace_s += self._timeout_s_max
            self._set_deadline(held)

    def is_half_spent(self, peer: PeerId, now_s: float) -> bool:
        """Has it stood accused for half the least time?"""
        held = self._of[peer]
        return now_s - held.since_s - held.grace_s >= self.timeout_s_min / 2

    def end(self, peer: PeerId) -> None:
        self._of.pop(peer, None)

    def extend(self, grace_s: float) -> None:
        """We were stopped for so long: everybody accused gets it on top."""
        for held in self._of.values():
            held.grace_s += grace_s
            self._set_deadline(held)

    def expired(self, now_s: float) -> list[PeerId]:
        """Whose time is up, by id."""
        if not self._of:
            return []
        return sorted(peer for peer, held in self._of.items() if held.deadline_s <= now_s)

    def _set_deadline(self, held: Suspicion) -> None:
        timeout_s = suspicion_timeout_s(
            max(0, len(held.witnesses) - 1),
            0 if held.is_hastened else held.expected,
            self.timeout_s_min,
            self._timeout_s_max,
        )
        held.deadline_s = held.since_s + held.grace_s + timeout_s
