"""A micro-batch's passage through one peer: what the peer knows and holds of it.

A passage ends exactly once, and then no slot, graph or open question of it is left. The same
micro-batch may pass twice, one after the other or at once, if two callers bring it.

    QUEUED -> FORWARD -> ROUTING <-> AWAY -> RETURNED -> BACKWARD -> ended
                 |          ^                                 |
                 |          +---- the gradient was bad -------+
                 +-> ended (last stage; held-out micro-batches end when their loss is back)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import BufferRef


class Phase(Enum):
    """What a passage waits for."""

    QUEUED = "queued"
    """For the lane to take its forward."""
    FORWARD = "forward"
    """For its forward job."""
    ROUTING = "routing"
    """For a peer of the next stage that takes it."""
    AWAY = "away"
    """For the gradient."""
    RETURNED = "returned"
    """For the lane to take its backward."""
    BACKWARD = "backward"
    """For its backward job."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One Forward sent to one peer, not answered yet."""

    number: int
    peer: PeerId
    sent_s: float
    due_s: float
    is_overdue: bool = False


@dataclass(slots=True, eq=False)
class Outbound:
    """What goes to the next stage. The payload is kept until the gradient has proved good."""

    payload: BufferRef
    backoff_s: float
    first_attempt: int | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    refused_by: list[PeerId] = field(default_factory=list)
    refusals: int = 0
    pinned: PeerId | None = None
    """Only this peer may be asked next: it has counted the micro-batch already."""
    fault: tuple[PeerId, str] | None = None
    """Who failed it last, and how, until it is sent again."""
    won_by: PeerId | None = None
    """Whose gradient is being used."""
    retry_s: float | None = None

    @property
    def is_answer_due(self) -> bool:
        """Whether somebody was asked who may still answer in time."""
        return any(not attempt.is_overdue for attempt in self.attempts.values())

    @property
    def last_asked(self) -> dict[PeerId, Attempt]:
        """The newest open attempt of each peer, in the order in which they were asked."""
        return {attempt.peer: attempt for attempt in self.attempts.values()}

    @property
    def phase(self) -> Phase:
        return Phase.AWAY if self.attempts else Phase.ROUTING


@dataclass(slots=True, eq=False)
class Passage:
    """`serial` is unique at this peer; the compute worker knows the graph by it."""

    serial: int
    micro_batch: MicroBatchId
    tag: int
    """Inner step; of no meaning for held-out ones."""
    caller: PeerId | None
    """Who gets the answer; None: we are the head, the answer is ours."""
    attempt: int
    """The caller's number of its last question."""
    first_attempt: int
    samples: int
    tokens: int
    deadline_s: float
    born_round: int
    """Whose inner phase was on here when it came: what it is computed with is not older."""
    phase: Phase = Phase.QUEUED
    input: BufferRef | None = None
    gradient: BufferRef | None = None
    outbound: Outbound | None = None
    has_graph: bool = False
    weight_version: int = 0
    loss_sum: float = 0.0
    busy_s: float = 0.0
    redone: int = 0
    """How often it was sent again because somebody failed it."""

    @property
    def is_trained(self) -> bool:
        return not self.micro_batch.held_out

    @property
    def slots(self) -> list[BufferRef]:
        """Every slot that it holds."""
        payload = self.outbound.payload if self.outbound is not None else None
        return [slot for slot in (self.input, self.gradient, payload) if slot is not None]
