"""Whether the swarm stands still, or this peer alone does while the others get on."""

from __future__ import annotations

from swarmd.protocols.ids import PeerId
from swarmd.protocols.progress_book import ProgressBook
from swarmd.protocols.roster import RosterView
from swarmd.protocols.stall_watch import StallWatch

HEARSAY = 1.5
"""Others are held for stalled so many times later than we ourselves: what they have done comes by
gossip, and comes late in large swarms."""


class Standstill:
    """`look` at every review; then the rest may be asked."""

    def __init__(self, own: PeerId, least_s: float, now_s: float) -> None:
        self._own = own
        self._swarm = StallWatch(least_s, now_s)
        self._book = ProgressBook()
        self._round_s: float | None = None
        self.since_s: float | None = None
        """Since when we have done nothing, once that is a stall."""
        self.is_ours_alone = False
        """The others get on."""

    def look(
        self,
        view: RosterView,
        moved: tuple[int, ...],
        *,
        may_move: bool,
        is_covered: bool,
        rounds_done: int,
        round_s: float | None,
        now_s: float,
    ) -> None:
        """moved: numbers that change when anybody gets on. is_covered: every stage has a peer.

        may_move: the run has begun and not ended, and this peer is not told to stand still.
        round_s: what a round usually takes.
        """
        self._round_s = round_s
        self._book.look(view, rounds_done, now_s)
        self.since_s = self._swarm.look(moved, may_move=may_move, round_s=round_s, now_s=now_s)
        self.is_ours_alone = False
        if self.since_s is None and may_move and is_covered:
            after_s = self._swarm.after_s(round_s)
            self.since_s = self._book.stalled_since_s(self._own, after_s, now_s)
            self.is_ours_alone = self.since_s is not None

    @property
    def after_s(self) -> float:
        """How long nothing may move until that is a stall: `stall_after_s`."""
        return self._swarm.after_s(self._round_s)

    def is_stalled(self, peer: PeerId, now_s: float) -> bool:
        """Whether that peer has done nothing for too long while others did."""
        if peer == self._own:
            return self.since_s is not None
        after_s = HEARSAY * self._swarm.after_s(self._round_s)
        return self._book.stalled_since_s(peer, after_s, now_s) is not None

    def contributes(self, peer: PeerId) -> bool:
        """Work of it was counted in the last finished round."""
        return self._book.contributes(peer)
