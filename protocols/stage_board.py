"""Peers on stages, and how fast each stage would be: the arithmetic under assignment.py.

A pipeline is as fast as its slowest stage, and a stage as fast as its replicas together:

    rate(stage) = sum of the capacities of its peers / cost of the stage

Rates are rounded to nine digits, so that sums in another order do not break ties differently.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from statistics import median

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import PeerRecord

DIGITS = 9


def capacities_of(
    records: Mapping[PeerId, PeerRecord],
    costs: Sequence[float],
    proven: Container[PeerId] | None = None,
) -> dict[PeerId, float]:
    """Work a second of each peer: its tokens a second times what a token costs where it measured.

    Who has not measured counts as the median; where nobody has, all count as 1. Where some are
    proven, the median is theirs, and nobody else is believed to do more than it.
    """
    usual_cost = math.fsum(costs) / len(costs)
    known = {}
    for peer, record in records.items():
        if record.tokens_per_s > 0.0:
            is_placed = record.stage is not None and record.stage < len(costs)
            cost = costs[record.stage or 0] if is_placed else usual_cost
            known[peer] = record.tokens_per_s * cost
    seen = {peer: known[peer] for peer in known if proven is None or peer in proven}
    usual = median((seen or known).values()) if known else 1.0
    if seen and proven is not None:
        known = {peer: known[peer] if peer in seen else min(known[peer], usual) for peer in known}
    return {peer: known.get(peer, usual) for peer in records}


def classed(capacities: Mapping[PeerId, float], ratio: float) -> dict[PeerId, float]:
    """Capacities rounded to powers of `ratio` around the median: noise within a class vanishes."""
    if not capacities:
        return {}
    middle = median(capacities.values())
    classes = {
        capacity: ratio ** round(math.log(capacity / middle, ratio))
        for capacity in set(capacities.values())
    }
    return {peer: classes[capacity] for peer, capacity in capacities.items()}


class StageBoard:
    """Who sits where. capacities: of everybody who may be put. costs: of each stage. proven: who
    has been seen to work; None: nobody needs to have been."""

    def __init__(
        self,
        capacities: Mapping[PeerId, float],
        costs: Sequence[float],
        proven: Container[PeerId] | None = None,
    ) -> None:
        self._capacities = capacities
        self._costs = costs
        self._proven = proven
        self._stage_of: dict[PeerId, int] = {}
        self._work = [0.0] * len(costs)
        self.holders: list[list[PeerId]] = [[] for _ in costs]

    def copy(self, capacities: Mapping[PeerId, float] | None = None) -> StageBoard:
        """The same seats; with other capacities, if given."""
        twin = StageBoard(capacities or self._capacities, self._costs, self._proven)
        twin._stage_of = dict(self._stage_of)
        twin.holders = [list(peers) for peers in self.holders]
        twin._work = list(self._work)
        if capacities is not None:
            twin._work = [sum(capacities[peer] for peer in peers) for peers in self.holders]
        return twin

    def put(self, peer: PeerId, stage: int) -> None:
        """On this stage, and off the one it was on."""
        capacity = self._capacities[peer]
        former = self._stage_of.get(peer)
        if former is not None:
            self.holders[former].remove(peer)
            self._work[former] -= capacity
        self._stage_of[peer] = stage
        self.holders[stage].append(peer)
        self._work[stage] += capacity

    def uncovered(self) -> list[int]:
        return [stage for stage, peers in enumerate(self.holders) if not peers]

    def rate(self, stage: int) -> float:
        return round(self._work[stage] / self._costs[stage], DIGITS)

    def slowest(self) -> int:
        """Among equals the first."""
        return min(range(len(self._costs)), key=lambda stage: (self.rate(stage), stage))

    def slowest_rate(self) -> float:
        return self.rate(self.slowest())

    def is_proven(self, peer: PeerId) -> bool:
        return self._proven is None or peer in self._proven

    def can_spare(self, peer: PeerId, stage: int, *, to_anybody: bool = False) -> bool:
        """It sits elsewhere, and leaves behind somebody who is proven. to_anybody: or who is not.

        What a stage has learned goes with its last holder, and a record is only a claim.
        """
        source = self._stage_of.get(peer)
        if source is None or source == stage:
            return False
        others = (other for other in self.holders[source] if other != peer)
        return any(to_anybody or self.is_proven(other) for other in others)

    def rate_without(self, peer: PeerId) -> float:
        """Of the stage that it sits on, were it gone."""
        source = self._stage_of[peer]
        work = self._work[source] - self._capacities[peer]
        return round(work / self._costs[source], DIGITS)

    def slower_end_after(self, peer: PeerId, stage: int) -> float:
        """The slower one of the two stages concerned, had it gone to `stage`."""
        work = self._work[stage] + self._capacities[peer]
        return min(self.rate_without(peer), round(work / self._costs[stage], DIGITS))
