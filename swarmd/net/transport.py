"""The one interface through which bytes move between peers. Two planes, one shape.

`control` carries small messages on a long-lived libp2p stream per neighbour. `bulk` carries
messages with a tensor behind them: on a dedicated TLS connection bound to the peer id where it can
be had, on a libp2p stream otherwise. Above this line nobody can tell which, except by asking
`statistics()`.

Implementations: memory.py (twin for tests), swarm_transport.py (real). One contract suite runs
against both (tests/transport_contract.py).

The rules a user of this interface may rely on:
  * every message body is a frame: whole or not at all, in order per peer, plane and priority;
  * `send` never blocks; a full queue is Backpressure, and nothing was queued. Each priority has a
    queue of its own, so state that waits never turns an activation away;
  * a payload is read from its view until `on_sent` was called, exactly once, sent or not. With a
    payload, "sent" means that the peer has it whole; without one, that the socket took it;
  * what arrives with a payload is written straight into a slot from `acquire`; if that gives None
    the bytes are read and dropped, and the arrival says so (`refused`);
  * a link counts as up only once the other side's first frame came; the end of a link is told once;
  * a message counts as taken when `next_event` returned it: a reader that does not read stops its
    senders, and only them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """`body` is an encoded message; `payload` the slot its tensor lies in, now the receiver's."""

    peer: PeerId
    body: bytes
    payload: BufferRef | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class LinkOpened:
    peer: PeerId


@dataclass(frozen=True, slots=True)
class LinkEnded:
    """`cause` as in protocols.effects.LinkDown."""

    peer: PeerId
    cause: str


@dataclass(frozen=True, slots=True)
class DialEnded:
    """A dial that gave no link. `causes`: address to cause, as in protocols.effects.DialFailed."""

    peer: PeerId
    causes: dict[str, str]


Answer = Literal["yes", "no", "unknown"]
Way = Literal["up", "down"]
TransportEvent = FrameArrived | LinkOpened | LinkEnded | DialEnded


class PayloadStore(Protocol):
    """Where payloads lie. The slot pool of shared memory is one (swarmd/buffers.py)."""

    def acquire(self, size_bytes: int) -> BufferRef | None: ...

    def view(self, ref: BufferRef) -> memoryview: ...

    def retain(self, ref: BufferRef) -> None: ...

    def release(self, ref: BufferRef) -> None: ...


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One neighbour, both planes. Bytes are counted at the sockets, framing included."""

    peer: PeerId
    path: str
    """direct, relay or none."""
    bulk_carrier: str
    """tls, stream or none; with why in `bulk_reason`."""
    bulk_reason: str
    rtt_s: float | None
    up_bytes_per_s: float | None
    down_bytes_per_s: float | None
    wire_bytes_sent: int
    wire_bytes_received: int
    bytes_by_purpose: dict[str, tuple[int, int]]
    """Priority name to (sent, received), frames only."""
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class CapHeld:
    """One of our own caps on traffic. `share`: of the last half minute, how much transfers waited
    for it."""

    way: Way
    bytes_per_s: float
    share: float


class Transport(Protocol):
    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> Sequence[str]:
        """Where others can reach the control plane; no wildcard, real ports."""
        ...

    def bulk_addresses(self) -> Sequence[str]: ...

    def reachable(self, address: str) -> Answer:
        """Whether neighbours reach us at one of our addresses, as they say."""
        ...

    async def run(self, *, task_status: Any) -> None:
        """Serve until cancelled. Started once the listeners are bound."""
        ...

    async def next_event(self) -> TransportEvent:
        """Waits for what happens next. One reader."""
        ...

    def dial(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Ends as LinkOpened or DialEnded. Harmless when a link or a dial exists."""
        ...

    def tell_bulk_addresses(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """From the peer's signed record; used at the next bulk connection."""
        ...

    def send(
        self,
        peer: PeerId,
        body: bytes,
        *,
        priority: Priority = Priority.CONTROL,
        payload: BufferRef | None = None,
        on_sent: Callable[[bool], None] | None = None,
    ) -> None:
        """Queue a frame. Raises LinkClosed or Backpressure; on_sent is not called then."""
        ...

    def drop(self, peer: PeerId, reason: str, *, deny_s: float = 0.0) -> None:
        """End the link now, whatever hangs in it; refuse the peer for `deny_s`."""
        ...

    def statistics(self) -> list[LinkStatistics]:
        """By peer id. Also of links that ended less than a minute ago."""
        ...

    def totals(self) -> tuple[int, int]:
        """Bytes sent and received at all sockets since the start, strangers' included."""
        ...

    def sent_by_purpose(self) -> dict[str, int]:
        """Frames sent since the start, bytes by priority name; also over links that ended."""
        ...

    def caps(self) -> list[CapHeld]:
        """Our own caps on what all links use together, and whether they bite."""
        ...

    def counters(self) -> dict[str, int]:
        """Refusals and oddities by reason: bad_certificate, wrong_peer_id, oversize_frame ..."""
        ...

    async def aclose(self) -> None:
        """Bounded: says goodbye where it can, then closes everything."""
        ...
