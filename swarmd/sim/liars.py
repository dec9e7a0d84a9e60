"""Peers that lie: they run the honest machine, and twist what it wants done.

They hold their own key and no other, like anybody on the open network. Each lie names what must
come of it: nothing is believed, nobody honest is hurt, the liar is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarmd.protocols import effects as fx
from swarmd.protocols import wire
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.gossip import Ack, Gossip, PeerRecord, Probe, Rumour, SignedRecord
from swarmd.protocols.records import read_record
from swarmd.sim.cluster import Cluster
from swarmd.sim.sim_peer import SimPeer, signature_of

KEPT_MAX = 64
"""Old messages that a replayer remembers."""

Lie = Callable[["Liar", Message], Message | None]
"""What is sent in place of a message; None: nothing."""


class Liar:
    """One liar's knowledge. `twist` is hung on its SimPeer."""

    def __init__(self, cluster: Cluster, peer: SimPeer, lie: Lie) -> None:
        self.cluster = cluster
        self.peer = peer
        self.rng = cluster.world.rng_for(f"liar/{peer.number}")
        self.kept: list[Message] = []
        self._lie = lie

    def twist(self, effects: list[fx.Effect]) -> list[fx.Effect]:
        twisted: list[fx.Effect] = []
        for effect in effects:
            if isinstance(effect, fx.Send):
                message = self._lie(self, effect.message)
                if message is None:
                    continue
                effect = replace(effect, message=message)
            twisted.append(effect)
        return twisted

    def victim(self) -> SimPeer:
        """Somebody else, running."""
        others = [peer for peer in self.cluster.running() if peer is not self.peer]
        return self.rng.choice(others or [self.peer])

    def record_of(self, victim: SimPeer) -> SignedRecord | None:
        """What the liar's own roster has of the victim."""
        assert self.peer.machine is not None
        entry = self.peer.machine.membership.roster.get(victim.peer)
        return None if entry is None else entry.signed

    def rumour(self, victim: SimPeer, record: PeerRecord, verdict: str, accuser: PeerId) -> Rumour:
        """An accusation in somebody's name, signed with the liar's own key."""
        bare = Rumour(
            peer=victim.peer,
            incarnation=record.incarnation,
            refutation=record.refutation,
            verdict=verdict,
            accuser=accuser,
        )
        text = self.cluster.shape.run_id.encode() + wire.encode(bare)
        return replace(bare, signature=signature_of(self.peer.peer, text))

    def sign(self, record: PeerRecord) -> SignedRecord:
        """With its own key, whatever the record says."""
        body = wire.encode(record)
        return SignedRecord(body=body, signature=signature_of(self.peer.peer, body))


def _forge(liar: Liar, message: Message) -> Message:
    """Another's record, changed, signed with the liar's key. -> bad_signature."""
    victim = liar.victim()
    held = liar.record_of(victim)
    if held is None or not isinstance(message, Probe | Ack | Gossip):
        return message
    true = read_record(held.body)
    false = replace(true, version=true.version + 1_000, stage=0, phase="left")
    return replace(message, records=(*message.records, liar.sign(false)))


def _foreign(liar: Liar, message: Message) -> Message:
    """Its own record, but of another run. -> wrong_run."""
    if not isinstance(message, Probe | Ack | Gossip):
        return message
    assert liar.peer.machine is not None
    own = liar.peer.machine.membership.record
    return replace(message, records=(*message.records, liar.sign(replace(own, run_id="f" * 64))))


def _accuse(liar: Liar, message: Message) -> Message:
    """Calls others dead, in its own name and in others'. -> bad_signature; the accused refute, and
    soon the liar has no credit left."""
    victim = liar.victim()
    held = liar.record_of(victim)
    if held is None or not isinstance(message, Probe | Ack | Gossip):
        return message
    record = read_record(held.body)
    rumours = tuple(
        liar.rumour(victim, record, verdict, accuser)
        for verdict in ("suspect", "dead")
        for accuser in (liar.peer.peer, liar.victim().peer)
    )
    return replace(message, rumours=(*message.rumours, *rumours))


def _replay(liar: Liar, message: Message) -> Message:
    """Old news instead of new. -> older records change nothing."""
    liar.kept.append(message)
    del liar.kept[:-KEPT_MAX]
    old = liar.rng.choice(liar.kept)
    if isinstance(message, Probe | Ack | Gossip) and isinstance(old, Probe | Ack | Gossip):
        return replace(message, records=old.records, rumours=old.rumours)
    return message


def _mute(liar: Liar, message: Message) -> Message:
    """Passes nothing on: answers probes, and tells no news. -> others bring it."""
    if isinstance(message, Probe | Ack | Gossip):
        return replace(message, records=(), rumours=())
    return message


def _garble(liar: Liar, message: Message) -> Message:
    """Bytes that are no record. -> malformed."""
    if not isinstance(message, Probe | Ack | Gossip):
        return message
    body = liar.rng.randbytes(liar.rng.randint(0, 200))
    noise = SignedRecord(body=body, signature=signature_of(liar.peer.peer, body))
    return replace(message, records=(*message.records, noise))


LIES: dict[str, Lie] = {
    "forge": _forge,
    "foreign": _foreign,
    "accuse": _accuse,
    "replay": _replay,
    "mute": _mute,
    "garble": _garble,
}


def make_liar(cluster: Cluster, number: int, lie: str) -> None:
    """From now on this peer lies."""
    peer = cluster.peers[number]
    peer.twist = Liar(cluster, peer, LIES[lie]).twist
