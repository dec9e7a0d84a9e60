"""Who gets on with its work, and since when somebody does not. Liveness is progress, not ping.

Every peer tells in its record how many micro-batches it has done. That number is looked at here: a
peer that answers every probe and whose number stands still while the swarm's work moves is stalled,
for itself and for everybody who sees it; one whose number rose in the last finished round
contributes. Neither says that it is to blame: it may be slow, or nobody gives it anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.roster import RosterView


@dataclass(slots=True)
class _Seen:
    """Of one life of one peer, in one stage."""

    life: tuple[int, int | None]
    count: int
    moved_at_s: float
    round: int
    """In which `at_round_start` was noted."""
    at_round_start: int = 0
    was_in_last_round: bool = False

    def take(self, count: int, round_number: int, now_s: float) -> None:
        if count != self.count:
            self.count, self.moved_at_s = count, now_s
        if round_number != self.round:
            self.was_in_last_round = count > self.at_round_start
            self.round, self.at_round_start = round_number, count


class ProgressBook:
    """`look` at every review, on the machine's own clock."""

    def __init__(self) -> None:
        self._seen: dict[PeerId, _Seen] = {}

    def look(self, view: RosterView, rounds_done: int, now_s: float) -> None:
        """rounds_done: of the run, by the ledger."""
        holding = {peer.peer: peer.record for peer in view.present() if _holds(peer.record)}
        for peer in self._seen.keys() - holding.keys():
            del self._seen[peer]
        for peer, record in holding.items():
            life = (record.incarnation, record.stage)
            seen = self._seen.get(peer)
            if seen is None or seen.life != life:
                self._seen[peer] = _Seen(life, record.micro_batches, now_s, rounds_done)
            else:
                seen.take(record.micro_batches, rounds_done, now_s)

    def stalled_since_s(self, peer: PeerId, after_s: float, now_s: float) -> float | None:
        """Since when it has done nothing while others did, once that has lasted for `after_s`."""
        own = self._seen.get(peer)
        if own is None or now_s - own.moved_at_s < after_s:
            return None
        others_move = any(
            seen.moved_at_s > now_s - after_s for other, seen in self._seen.items() if other != peer
        )
        return own.moved_at_s if others_move else None

    def contributes(self, peer: PeerId) -> bool:
        """Work of it was counted in the last finished round; in the first one, at all."""
        seen = self._seen.get(peer)
        if seen is None:
            return False
        return seen.was_in_last_round or (seen.round == 0 and seen.count > 0)


def _holds(record: PeerRecord) -> bool:
    return record.phase == "active" and record.stage is not None
