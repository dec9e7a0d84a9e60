"""What must never happen, looked for after every event; and what must come true in the end.

Safety checkers hang on the cluster and see each event with the peer that handled it, so a broken
rule is found at the event that broke it. They know more than any peer could (who signed what, who
was disturbed), and nothing of how the machines work inside. Liveness is asked for once the faults
are over (`unsettled`).

A checker that cannot fire is worth nothing: tests/sim/test_checkers.py breaks each rule on purpose.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swarmd.protocols import effects as fx
from swarmd.protocols.assignment import stage_map
from swarmd.protocols.dissemination import QUEUE_MAX
from swarmd.protocols.ids import PeerId
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.probing import RELAYS_MAX
from swarmd.protocols.records import stamp_of
from swarmd.protocols.roster import PRESENT, Entry
from swarmd.sim.cluster import Cluster
from swarmd.sim.sim_peer import SimPeer


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    at_s: float
    peer: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:10.3f}  {self.peer:<5} {self.rule}: {self.text}"


@dataclass(slots=True)
class Moment:
    """What one peer just did."""

    peer: SimPeer
    membership: Membership
    emits: Sequence[fx.Emit] = ()
    """What it had to tell."""
    changed: Sequence[Entry] = ()
    """Told to those who look at it: entries of its roster that are new or different since its last
    event."""


class Checker(Protocol):
    """Returns what is wrong after an event, or None."""

    rule: str
    looks_at: str
    """Asked after events with emits only ("emits"), with changed entries only ("changed"), when the
    roster's shape has changed ("shape"), or after every one ("all")."""

    def check(self, moment: Moment) -> str | None: ...


class RecordsAreTheirOwners:
    """Every foreign record in a roster was signed by the peer it speaks of, for this run."""

    rule = "record_not_its_owners"
    looks_at = "changed"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check(self, moment: Moment) -> str | None:
        for entry in moment.changed:
            signer = self._cluster.signed.get(entry.signed.body)
            if signer != entry.record.peer:
                return f"holds a record of {entry.record.peer[-4:]} signed by {signer}"
            if entry.record.run_id != self._cluster.shape.run_id:
                return f"holds a record of another run about {entry.record.peer[-4:]}"
        return None


class StampsOnlyRise:
    """What a peer knows of another never becomes older, and its own incarnation only rises."""

    rule = "stamp_fell"
    looks_at = "changed"

    def __init__(self, cluster: Cluster) -> None:
        self._stamps: dict[tuple[int, int, PeerId], tuple[int, int]] = {}

    def check(self, moment: Moment) -> str | None:
        for entry in moment.changed:
            key = (moment.peer.number, moment.peer.epoch, PeerId(entry.record.peer))
            stamp = stamp_of(entry.record)
            if stamp < self._stamps.get(key, (0, 0)):
                return f"went back to {stamp} of {entry.record.peer[-4:]}"
            self._stamps[key] = stamp
        return None


class OneEntryEach:
    """Peers are in a roster once, in order, never more than exist; the index agrees."""

    rule = "roster_inconsistent"
    looks_at = "shape"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check(self, moment: Moment) -> str | None:
        roster = moment.membership.roster
        ids = list(roster)
        if not all(map(operator.lt, ids, ids[1:])):
            return "ids are not in order, or one is there twice"
        if len(ids) != len(roster) or len(ids) > len(self._cluster.peers):
            return f"{len(ids)} entries for {len(self._cluster.peers)} peers"
        opinions = [entry.liveness for entry in roster.entries()]
        present = sum(map(opinions.count, PRESENT))
        if present != roster.present_count:
            return f"counts {roster.present_count} present, has {present}"
        return None


class QueuesAreBounded:
    """Nothing that others can fill grows beyond its limit."""

    rule = "limit_exceeded"
    looks_at = "all"

    def __init__(self, cluster: Cluster) -> None:
        pass

    def check(self, moment: Moment) -> str | None:
        membership = moment.membership
        if len(membership.news) > QUEUE_MAX:
            return f"{len(membership.news)} pieces of news wait"
        relayed = len(membership.prober.relays)
        return f"{relayed} probes for others" if relayed > RELAYS_MAX else None


class TheUndisturbedLive:
    """Nobody to whom nothing was done is held for dead by somebody to whom nothing was done."""

    rule = "false_death"
    looks_at = "emits"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check(self, moment: Moment) -> str | None:
        for emit in moment.emits:
            if emit.name != "peer_dead":
                continue
            number = self._cluster.number_of(emit.fields["peer"])
            assert number is not None
            accused, now_s = self._cluster.peers[number], self._cluster.world.now_s
            disturbed_s = max(
                self._cluster.disturbed_until_s,
                accused.disturbed_until_s,
                moment.peer.disturbed_until_s,
            )
            is_honest = accused.twist is None
            if is_honest and accused.answers and disturbed_s < now_s:
                return f"holds {accused.name} for dead, and it is well"
        return None


GOSSIP_CHECKERS = (
    RecordsAreTheirOwners,
    StampsOnlyRise,
    OneEntryEach,
    QueuesAreBounded,
    TheUndisturbedLive,
)


@dataclass(slots=True)
class _Seen:
    """How far one process' roster was when it was last looked at."""

    epoch: int
    revision: int = -1
    shape: int = -1


class Checkers:
    """Hangs checkers on a cluster and keeps what they find."""

    def __init__(self, cluster: Cluster, checkers: list[Checker], violations_max: int = 20) -> None:
        self._cluster = cluster
        self._asked_always = [checker for checker in checkers if checker.looks_at == "all"]
        self._asked_of_emits = [checker for checker in checkers if checker.looks_at == "emits"]
        self._asked_of_changed = [checker for checker in checkers if checker.looks_at == "changed"]
        self._asked_of_shape = [checker for checker in checkers if checker.looks_at == "shape"]
        self._violations_max = violations_max
        self.violations: list[Violation] = []
        self._seen = [_Seen(peer.epoch) for peer in cluster.peers]
        cluster.observe.append(self._observe)

    def _observe(self, peer: SimPeer, event: fx.Event, effects: list[fx.Effect]) -> None:
        if peer.twist is not None:
            return
        assert peer.machine is not None
        membership = peer.machine.membership
        roster = membership.roster
        seen = self._seen[peer.number]
        if seen.epoch != peer.epoch:
            seen = self._seen[peer.number] = _Seen(peer.epoch)
        moment = Moment(peer, membership)
        if effects:
            moment.emits = [effect for effect in effects if type(effect) is fx.Emit]
        asked = self._asked_always
        if moment.emits:
            asked = asked + self._asked_of_emits
        if seen.revision != roster.revision:
            moment.changed = roster.changed_since(seen.revision)
            seen.revision = roster.revision
            asked = asked + self._asked_of_changed
        if seen.shape != roster.shape:
            seen.shape = roster.shape
            asked = asked + self._asked_of_shape
        for checker in asked:
            text = checker.check(moment)
            if text is not None:
                self._note(peer, checker.rule, text)

    def _note(self, peer: SimPeer, rule: str, text: str) -> None:
        if len(self.violations) < self._violations_max:
            now_s = self._cluster.world.now_s
            self.violations.append(Violation(now_s, peer.name, rule, text))


def unsettled(cluster: Cluster) -> list[str]:
    """What is still not as it should be, now that all faults are over. Empty: all is well.

    Liars may be in or out (one that passes no news on cannot refute), but for all alike.
    """
    running = [peer for peer in cluster.running() if peer.twist is None]
    honest = {peer.peer for peer in running}
    everybody = {peer.peer for peer in cluster.running()}
    found = []
    versions = set()
    rosters = set()
    uncovered: set[int] = set()
    for peer in running:
        membership = _membership(peer)
        view = membership.view(cluster.clock_of(peer))
        present = {item.peer for item in view.present()}
        rosters.add(tuple(sorted(present)))
        if not honest <= present <= everybody:
            lacks = sorted(other[-4:] for other in honest - present)
            extra = sorted(other[-4:] for other in present - everybody)
            found.append(f"{peer.name} lacks {lacks}, has {extra} too many")
        current = stage_map(view, cluster.shape.stages)
        versions.add(current.version)
        uncovered.update(current.uncovered)
    if len(rosters) > 1:
        found.append(f"{len(rosters)} different rosters")
    if len(versions) > 1:
        found.append(f"{len(versions)} different stage maps")
    if uncovered and len(running) >= cluster.shape.stages:
        found.append(f"stages {sorted(uncovered)} have no peer")
    found += _different_records(cluster, running)
    return found


def _different_records(cluster: Cluster, running: list[SimPeer]) -> list[str]:
    """Who does not know the present stage and phase of whom."""
    found = []
    for peer in running:
        own = _membership(peer).record
        for other in running:
            entry = _membership(other).roster.get(peer.peer)
            if entry is None or _place(entry.record) != _place(own):
                found.append(f"{other.name} has an old record of {peer.name}")
    return found


def _place(record: PeerRecord) -> tuple[int | None, str, int]:
    return (record.stage, record.phase, record.incarnation)


def _membership(peer: SimPeer) -> Membership:
    assert peer.machine is not None
    return peer.machine.membership
