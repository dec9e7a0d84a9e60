"""What links stand on: something that dials, accepts and carries bytes in order.

Three implementations of `Carrier`: a TLS connection (tls_bulk.py), a libp2p stream
(libp2p_host.py), a pipe in memory (memory.py). Links, planes and lanes are the same above all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swarmd.net.frames import Hello
from swarmd.net.transport import Answer, CapHeld
from swarmd.protocols.ids import PeerId

Buffer = bytes | bytearray | memoryview


class CarrierEnded(Exception):
    """Nothing more goes over this carrier.

    `cause`: closed (the far side said goodbye), lost (it ended without one), stalled (it took or
    sent nothing for too long), dropped (we closed it), refused (by the far side, with its reason in
    `text`).
    """

    def __init__(self, cause: str, text: str = "") -> None:
        super().__init__(f"{cause}: {text}" if text else cause)
        self.cause = cause
        self.text = text


class DialFailed(Exception):
    """An address gave no connection. `cause` as in protocols.effects.DialFailed."""

    def __init__(self, cause: str, text: str = "") -> None:
        super().__init__(f"{cause}: {text}" if text else cause)
        self.cause = cause
        self.text = text


@dataclass(slots=True)
class Tally:
    """Bytes through a socket, framing, encryption and repeats included."""

    sent: int = 0
    received: int = 0


class Carrier(Protocol):
    """Bytes in order, both ways. One task sends and one receives.

    A `send` is whole or the carrier is broken: cancellation is seen before or after it, never
    inside. A cancelled `receive_into` breaks the carrier.
    """

    kind: str
    """tls, stream or memory."""
    frame_bytes: int
    """The largest frame to send at once."""
    tally: Tally

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Raises CarrierEnded."""
        ...

    async def receive_into(self, view: memoryview) -> None:
        """Fill `view`. Raises CarrierEnded."""
        ...

    def close_now(self) -> None:
        """Synchronous; whoever waits in the carrier gets CarrierEnded."""
        ...


class Channel(Protocol):
    """An authenticated connection to one peer, with the control carrier on it."""

    peer: PeerId
    carrier: Carrier
    path: str
    """direct or relay."""
    remote: str
    """Where the peer sits, as `IP:PORT`; empty if unknown."""
    local: str
    """Our own end of it; likewise."""

    async def open_bulk(self) -> Carrier:
        """The fallback bulk carrier, on this connection. Raises CarrierEnded."""
        ...

    def close_now(self) -> None: ...


class Acceptor(Protocol):
    """What an underlay calls for what others open. Both return when the carrier has ended."""

    async def control_opened(self, channel: Channel) -> None: ...

    async def bulk_opened(self, peer: PeerId, carrier: Carrier) -> None: ...


class Underlay(Protocol):
    peer_id: PeerId
    wire: Tally
    """All sockets since the start."""

    def addresses(self) -> Sequence[str]: ...

    def bulk_addresses(self) -> Sequence[str]: ...

    def reachable(self, address: str) -> Answer: ...

    async def run(self, acceptor: Acceptor, *, task_status: Any) -> None:
        """Serve until cancelled; started once the listeners are bound."""
        ...

    async def dial(self, peer: PeerId, address: str) -> Channel:
        """Connect, prove both ids, open the control carrier. Raises DialFailed."""
        ...

    def relay_addresses(self, neighbours: Sequence[PeerId]) -> Sequence[str]:
        """Ways to a peer that cannot be dialled, through one of these; for `dial`."""
        ...

    async def dial_bulk(self, peer: PeerId, address: str) -> Carrier:
        """A dedicated bulk connection. Raises DialFailed."""
        ...

    @property
    def certificate(self) -> bytes:
        """What we show on bulk connections, for our HELLO; may be empty."""
        ...

    def link_opened(self, channel: Channel, hello: Hello) -> None:
        """A neighbour, and what it said: its certificate for bulk connections, its shape."""
        ...

    def link_ended(self, peer: PeerId) -> None: ...

    def held(self) -> list[CapHeld]:
        """Our own caps, and whether they bite."""
        ...

    def count(self) -> dict[str, int]:
        """Refusals below the links, by reason."""
        ...
