"""One simulated peer and its host: what a machine is made from, and what surrounds it.

A machine is made by a factory, so the simulator runs whatever a peer is built of. Signatures are
keyed hashes: they stand for ed25519, and nobody but a peer's own process and liars with this very
key may make them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.membership import Membership
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.run_shape import RunShape
from swarmd.sim.clock import Action
from swarmd.sim.fake_compute import FakeCompute
from swarmd.sim.slots import SimSlots

SLOT_BYTES_MAX = 64 << 20


class SimMachine(Protocol):
    """What a factory makes: a machine that has a Membership inside."""

    membership: Membership

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]: ...


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """All that a factory may know of the peer it builds."""

    peer: PeerId
    name: str
    addresses: tuple[str, ...]
    incarnation: int
    recent_starts: int
    entries: dict[PeerId, tuple[str, ...]]
    """Empty: the founder."""
    disk: dict[str, Any]
    shape: RunShape
    rng: random.Random
    sign: Callable[[bytes], bytes]
    verify: Callable[[PeerId, bytes, bytes], bool]
    now_s: float
    """On the peer's own clock."""
    speed: Callable[[], float]
    """Of its worker, of the usual: for machines that only pretend to compute."""

    def membership_of(self, limits: MembershipLimits, **told: Any) -> Membership:
        """told: what else its first record says."""
        own = PeerRecord(
            peer=self.peer,
            incarnation=self.incarnation,
            version=0,
            run_id=self.shape.run_id,
            name=self.name,
            addresses=self.addresses,
            **told,
        )
        return Membership(own, limits, self.sign, self.verify, self.rng)


Factory = Callable[[PeerSpec], SimMachine]
Twist = Callable[[list[fx.Effect]], list[fx.Effect]]
"""How a liar changes what its machine wants done."""


@dataclass(slots=True)
class SimPeer:
    """One peer and its host."""

    number: int
    peer: PeerId
    name: str
    machine: SimMachine | None = None
    """None: no process runs."""
    epoch: int = 0
    """Tells one process of this peer from the next."""
    disk: dict[str, Any] = field(default_factory=dict)
    starts_s: list[float] = field(default_factory=list)
    clock_origin_s: float = 0.0
    clock_rate: float = 1.0
    is_paused: bool = False
    backlog: list[tuple[Action, tuple[Any, ...]]] = field(default_factory=list)
    """What came while it was paused, in order."""
    paused_at_s: float = 0.0
    timers: dict[str, int] = field(default_factory=dict)
    slots: SimSlots = field(default_factory=lambda: SimSlots(SLOT_BYTES_MAX))
    compute: FakeCompute | None = None
    speed: float = 1.0
    """Of its device, of the usual."""
    twist: Twist | None = None
    host_is_up: bool = True
    disturbed_until_s: float = 0.0
    """Until then something was done to it, on purpose."""
    ended: str | None = None
    """The code with which it ended by itself, for good."""

    @property
    def is_running(self) -> bool:
        return self.machine is not None

    @property
    def answers(self) -> bool:
        return self.machine is not None and not self.is_paused


@lru_cache(maxsize=8_192)
def signature_of(peer: PeerId, body: bytes) -> bytes:
    """Kept, since every peer verifies what every other has signed."""
    return hashlib.blake2b(body, key=peer.encode()[:64], digest_size=64).digest()


def verify(peer: PeerId, body: bytes, signature: bytes) -> bool:
    return signature == signature_of(peer, body)
