"""Who has been seen to work in this run, by the receipts of its ledger (receipts.py).

A record says of a peer only what the peer says itself, and anybody can make as many as they like.
Whoever gives up the last copy of a stage for the sake of such a record has lost it (assignment.py).
"""

from __future__ import annotations

from swarmd.protocols.ledger import Ledger

LOOK_S = 30.0
"""Receipts arrive a while after their round, and adding them up takes milliseconds."""


class Proven:
    """Their tags, added up anew when a round has ended, and every so often."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tags: frozenset[bytes] = frozenset()
        self._settled = -1
        self._looked_s = 0.0

    def look(self, now_s: float) -> frozenset[bytes]:
        is_late = now_s - self._looked_s >= LOOK_S
        if self._settled != self._ledger.settled or is_late:
            self._settled, self._looked_s = self._ledger.settled, now_s
            self._tags = frozenset(self._ledger.witnessed_total())
        return self._tags
