"""Records, keys and machines for tests of the coordinator."""

from __future__ import annotations

import itertools
import random
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols import wire
from swarmd.protocols.ids import PeerId
from swarmd.protocols.membership import Membership
from swarmd.protocols.membership_limits import MembershipLimits, wan
from swarmd.protocols.messages.gossip import PeerRecord, SignedRecord
from swarmd.protocols.roster import Liveness, PeerView, RosterView
from swarmd.sim.sim_peer import signature_of, verify

RUN = "a" * 64
_revisions = itertools.count()


def peer_id(name: str) -> PeerId:
    return PeerId(f"12D3KooW{name}")


def record(name: str, **fields: Any) -> PeerRecord:
    """A member in its first life, with whatever differs."""
    usual: dict[str, Any] = {
        "peer": peer_id(name),
        "incarnation": 1,
        "version": 1,
        "run_id": RUN,
        "name": name,
        "phase": "active",
        "stage": 0,
        "addresses": ("/ip4/10.0.0.1/tcp/4001",),
    }
    return PeerRecord(**(usual | fields))


def signed(of: PeerRecord, by: str | None = None) -> SignedRecord:
    """Signed by its own peer, or by another."""
    body = wire.encode(of)
    key = PeerId(of.peer) if by is None else peer_id(by)
    return SignedRecord(body=body, signature=signature_of(key, body))


def view_of(*records: PeerRecord, liveness: dict[str, Liveness] | None = None) -> RosterView:
    """A roster view of these records; everybody alive unless said otherwise, by name."""
    opinions = liveness or {}
    peers = tuple(
        PeerView(item, opinions.get(item.name, Liveness.ALIVE), 0.0)
        for item in sorted(records, key=lambda item: item.peer)
    )
    number = next(_revisions)
    index = {view.peer: place for place, view in enumerate(peers)}
    return RosterView(peers, number, number, index)


def membership(
    name: str, limits: MembershipLimits | None = None, seed: int = 1, **fields: Any
) -> Membership:
    """A machine before its Started."""
    own = record(name, version=0, **fields)
    key = peer_id(name)
    return Membership(
        own,
        limits or wan(),
        lambda body: signature_of(key, body),
        verify,
        random.Random(f"{seed}/{name}"),
    )


class Pair:
    """Two machines joined by a perfect wire: what one sends arrives at the other at once."""

    def __init__(self, a: Membership, b: Membership) -> None:
        self.machines = {a.peer: a, b.peer: b}
        self.now_s = 100.0
        self.emits: list[tuple[PeerId, fx.Emit]] = []
        self.sent: list[tuple[PeerId, object]] = []
        self.dropped: list[tuple[PeerId, PeerId]] = []
        for machine in (a, b):
            self.do(machine.peer, fx.Started())

    def do(self, peer: PeerId, event: fx.Event) -> None:
        self.carry(peer, self.machines[peer].handle(event, self.now_s))

    def carry(self, peer: PeerId, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.Send):
                self.sent.append((peer, effect.message))
                if effect.peer in self.machines:
                    self.do(effect.peer, fx.Arrived(peer, effect.message))
            elif isinstance(effect, fx.Emit):
                self.emits.append((peer, effect))
            elif isinstance(effect, fx.Drop):
                self.dropped.append((peer, effect.peer))

    def link(self) -> None:
        a, b = sorted(self.machines)
        self.do(b, fx.LinkUp(a))
        self.do(a, fx.LinkUp(b))

    def tick(self, seconds: float, *who: PeerId, step_s: float = 0.25) -> None:
        """Let time pass for these machines (all if none is named), ticking."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += step_s
            for peer in sorted(who or self.machines):
                self.do(peer, fx.TimerFired("membership/tick"))
                self.do(peer, fx.TimerFired("membership/gossip"))

    def names(self, peer: PeerId) -> list[str]:
        """What it emitted, in order."""
        return [emit.name for who, emit in self.emits if who == peer]
