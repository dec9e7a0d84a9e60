"""How many peers a neighbour may introduce to us: those that come by hearsay cost their teller.

A peer is in the roster as soon as anybody tells of it, and counts as there until it was found to be
silent. Keys cost nothing: who makes up peers could fill the swarm with them faster than the others
can look. So each neighbour has a credit, half as large as the roster and refilled slowly, for peers
that were unknown or gone before. What goes beyond it is not taken now, and comes again when rosters
are compared. Who links to us needs nobody's introduction.

Who has just begun, or was asleep, takes the word of those it finds for everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.ids import PeerId

CREDIT_MIN = 16.0
"""Of a small swarm, in which some may start at once."""
SHARE_OF_SWARM = 0.5
CREDIT_PER_S = 0.5
"""Six neighbours and more bring it, each for itself."""
NEW_HERE_S = 60.0
"""Two comparisons of rosters with each neighbour."""
TELLERS_MAX = 1_024


@dataclass(slots=True)
class _Credit:
    spent: float
    at_s: float


class Introductions:
    """Counts newcomers by who told of them."""

    def __init__(self) -> None:
        self._credits: dict[PeerId, _Credit] = {}
        self._begun_s: float | None = None

    def begin(self, now_s: float) -> None:
        """We know nobody, or what we know is old."""
        self._begun_s = now_s

    def take(self, source: PeerId, known: int, now_s: float) -> bool:
        """Whether `source` may tell of one more; if so, it has. known: peers in the roster."""
        if self._begun_s is None or now_s - self._begun_s < NEW_HERE_S:
            return True
        credit = self._credits.get(source)
        if credit is None:
            if len(self._credits) >= TELLERS_MAX:
                del self._credits[next(iter(self._credits))]
            credit = self._credits[source] = _Credit(0.0, now_s)
        credit.spent = max(0.0, credit.spent - (now_s - credit.at_s) * CREDIT_PER_S)
        credit.at_s = now_s
        if credit.spent + 1.0 > max(CREDIT_MIN, SHARE_OF_SWARM * known):
            return False
        credit.spent += 1.0
        return True
