"""What the pipeline moved, counted as an uncompressed one would have: the raw side of the ratio.

Dense 16-bit elements for activations and their gradients, each way. What really crossed the sockets
is counted there (swarmd/net); the two are put side by side in status, and by neighbour in `peers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.pipeline import Forward, Gradient
from swarmd.protocols.raw_by_peer import RawByPeer
from swarmd.protocols.run_shape import RunShape


@dataclass(slots=True)
class Traffic:
    """Bytes since the start of the machine."""

    shape: RunShape
    raw_bytes_sent: int = 0
    raw_bytes_received: int = 0
    raw_by_peer: RawByPeer = field(default_factory=RawByPeer)

    def sent(self, peer: PeerId, message: Message, has_payload: bool) -> None:
        if has_payload:
            size_bytes = self._raw_bytes(message)
            self.raw_bytes_sent += size_bytes
            self.raw_by_peer.add(peer, sent=size_bytes)

    def arrived(self, peer: PeerId, message: Message, has_payload: bool) -> None:
        if has_payload:
            size_bytes = self._raw_bytes(message)
            self.raw_bytes_received += size_bytes
            self.raw_by_peer.add(peer, received=size_bytes)

    def _raw_bytes(self, message: Message) -> int:
        match message:
            case Forward(tokens=tokens):
                return self.shape.dense_bytes(tokens)
            case Gradient(samples=samples):
                return self.shape.dense_bytes(samples * self.shape.sequence_tokens)
        return 0
