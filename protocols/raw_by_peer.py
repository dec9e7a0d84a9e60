"""Raw bytes by neighbour, sent and received: the upper side of the ratios that `peers` shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId

PEERS_MAX = 1_024
"""So many are told apart; more, one after the other, would be churn made on purpose."""


@dataclass(slots=True)
class RawByPeer:
    """Who comes when all places are taken is not counted."""

    _bytes: dict[PeerId, tuple[int, int]] = field(default_factory=dict)

    def add(self, peer: PeerId, *, sent: int = 0, received: int = 0) -> None:
        if not sent and not received:
            return
        if peer in self._bytes or len(self._bytes) < PEERS_MAX:
            before = self._bytes.get(peer, (0, 0))
            self._bytes[peer] = (before[0] + sent, before[1] + received)

    def add_all(self, other: RawByPeer) -> None:
        for peer, (sent, received) in other._bytes.items():
            self.add(peer, sent=sent, received=received)

    def told(self) -> dict[PeerId, tuple[int, int]]:
        """Peer to (sent, received)."""
        return dict(self._bytes)
