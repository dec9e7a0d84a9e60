"""Notices that nothing has moved for too long, and what is missing.

Liveness is progress, not ping. What moves is anything that a working swarm moves: micro-batches
that have ended, inner steps of anybody, what this peer counted itself. A round that takes long is
no stall: the patience grows with how long rounds usually take, within bounds.
"""

from __future__ import annotations

from swarmd.protocols.coverage import Coverage
from swarmd.protocols.pipeline_statistics import Waiting

ROUNDS = 5.0
"""So many usual rounds without progress are a stall."""
QUICK_ROUND_S = 5.0
QUICK_STALL_S_MAX = 60.0
"""While rounds are quicker than QUICK_ROUND_S, nobody waits longer than that."""


class StallWatch:
    """`look` at every review."""

    def __init__(self, least_s: float, now_s: float) -> None:
        """least_s: no shorter standstill is a stall (`stall_after_s`)."""
        self._least_s = least_s
        self._progress: tuple[int, ...] = ()
        self._moved_at_s = now_s

    def look(
        self, progress: tuple[int, ...], *, may_move: bool, round_s: float | None, now_s: float
    ) -> float | None:
        """Since when nothing has moved, once that is a stall.

        may_move: the run has begun, has not ended, and this peer is not told to stand still.
        round_s: what a round usually takes; None: not known yet.
        """
        if progress != self._progress or not may_move:
            self._progress, self._moved_at_s = progress, now_s
            return None
        is_stall = now_s - self._moved_at_s >= self.after_s(round_s)
        return self._moved_at_s if is_stall else None

    def after_s(self, round_s: float | None) -> float:
        """How long nothing may move."""
        if round_s is None:
            return self._least_s
        patience_s = max(self._least_s, ROUNDS * round_s)
        return min(patience_s, QUICK_STALL_S_MAX) if round_s < QUICK_ROUND_S else patience_s


def what_is_missing(coverage: Coverage, waiting: Waiting | None) -> str:
    """In words, as far as this peer can see it."""
    if coverage.missing:
        return f"stage {coverage.missing[0]} has no peer"
    if waiting is None:
        return "every stage has a peer, and none of them gets on"
    peer = waiting.subject.get("peer")
    return waiting.text + (f", asked of peer {str(peer)[-4:]}" if peer else "")
