"""Is a silent peer dead, or only the path to it? Probes, and helpers that probe for us (SWIM).

A link that has been quiet for an interval is probed; any message counts as an answer. No answer in
time: a few helpers are asked, best those that should have a link to the target themselves, and each
says in the end whether it heard it. Nobody did: the machine may accuse. Somebody did: the path is
bad and not the peer; after a few times the link is closed and made anew.

Over streams a message is late rather than lost (a frozen peer, a full pipe), and neither side of a
frozen connection notices by itself. Hence time-outs of our own, stretched by local health and by
the link's usual round trip.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols.effects import Effect, Send
from swarmd.protocols.ids import PeerId
from swarmd.protocols.link_keeper import Link, LinkKeeper
from swarmd.protocols.local_health import LocalHealth
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.messages.gossip import (
    Ack,
    Gossip,
    Probe,
    ProbeReply,
    ProbeRequest,
    Rumour,
    SignedRecord,
)
from swarmd.protocols.rings import Rings

RELAYS_MAX = 32
"""Probes for others under way at once; above it the answer is "not heard"."""
BAD_PATH_MAX = 3
"""So many times helpers heard a peer that we did not: then the link is made anew."""
RTT_SHARE = 0.2
"""Of a new measurement in the smoothed round trip."""

NewsFor = Callable[[PeerId], tuple[tuple[SignedRecord, ...], tuple[Rumour, ...]]]


@dataclass(slots=True)
class _Doubt:
    """A probe under way."""

    sequence: int
    asked_s: float
    deadline_s: float
    helpers: int = 0
    """0: we are still asking the target itself."""
    silent_helpers: int = 0
    accusation: tuple[Rumour, ...] = ()
    """Passed on through the helpers, so that the target can refute it."""


@dataclass(slots=True)
class _Relay:
    """A probe that we make for somebody else."""

    requester: PeerId
    sequence: int
    target: PeerId
    deadline_s: float
    is_sent: bool
    accusation: tuple[Rumour, ...] = ()


class Prober:
    """Doubts and relays. `tick` returns those about whom nobody knew anything."""

    def __init__(
        self,
        own: PeerId,
        limits: MembershipLimits,
        health: LocalHealth,
        keeper: LinkKeeper,
        rings: Rings,
        news_for: NewsFor,
        rng: random.Random,
    ) -> None:
        self._own = own
        self._limits = limits
        self._health = health
        self._keeper = keeper
        self._rings = rings
        self._news_for = news_for
        self._rng = rng
        self._sequence = 0
        self._doubts: dict[PeerId, _Doubt] = {}
        self.relays: list[_Relay] = []
        """Probes under way for others."""
        self._bad_paths: dict[PeerId, int] = {}

    def heard_recently(self, peer: PeerId, now_s: float) -> bool:
        """By ourselves, within the time in which we would not have begun to doubt."""
        link = self._keeper.links.get(peer)
        return link is not None and now_s - link.heard_s <= self._limits.suspect_after_s

    # ------------------------------------------------------------------------------------ inputs

    def heard(self, peer: PeerId, link: Link, now_s: float) -> list[Effect]:
        """Any message came from it."""
        link.heard_s = now_s
        if peer in self._doubts:
            del self._doubts[peer]
            self._bad_paths.pop(peer, None)
        return self._answer_relays(peer) if self.relays else []

    def take_ack(self, peer: PeerId, ack: Ack, link: Link, now_s: float) -> None:
        """Call before `heard`, which ends the doubt."""
        link.is_wanted_there = ack.link_wanted
        doubt = self._doubts.get(peer)
        if doubt is None or doubt.sequence != ack.sequence:
            return
        self._health.probe_answered()
        rtt_s = now_s - doubt.asked_s
        smooth_s = rtt_s if link.rtt_s is None else link.rtt_s
        link.rtt_s = smooth_s + RTT_SHARE * (rtt_s - smooth_s)

    def take_probe(self, peer: PeerId, probe: Probe, link: Link, now_s: float) -> list[Effect]:
        link.is_wanted_there = probe.link_wanted
        link.told_s = now_s
        records, rumours = self._news_for(peer)
        ack = Ack(
            sequence=probe.sequence,
            link_wanted=self._keeper.wants(peer),
            records=records,
            rumours=rumours,
        )
        return [Send(peer, ack)]

    def take_request(
        self, peer: PeerId, request: ProbeRequest, is_known: bool, now_s: float
    ) -> list[Effect]:
        """Probe `target` for somebody, and tell it of what it stands accused. Answered at once from
        what we just heard, if we did."""
        target = PeerId(request.target)
        link = self._keeper.links.get(target)
        told = _tell(target, request.rumours) if link is not None else []
        if link is not None and now_s - link.heard_s <= self._limits.probe_interval_s / 2:
            return [*told, Send(peer, ProbeReply(sequence=request.sequence, heard=True))]
        if not is_known or target == self._own or len(self.relays) >= RELAYS_MAX:
            return [Send(peer, ProbeReply(sequence=request.sequence, heard=target == self._own))]
        deadline_s = now_s + 0.8 * self._limits.indirect_timeout_s
        relay = _Relay(
            peer, request.sequence, target, deadline_s, link is not None, request.rumours
        )
        self.relays.append(relay)
        if link is not None:
            return [*told, *self._send_probe(target, link, now_s)]
        return self._keeper.dial(target)

    def take_reply(self, reply: ProbeReply, now_s: float) -> tuple[PeerId | None, list[Effect]]:
        """(whom a helper heard, what to do)."""
        target = self._target_of(reply.sequence)
        if target is None:
            return None, []
        if not reply.heard:
            self._doubts[target].silent_helpers -= 1
            return None, []
        del self._doubts[target]
        times = self._bad_paths.get(target, 0) + 1
        self._bad_paths[target] = times
        link = self._keeper.links.get(target)
        if link is not None:
            link.bear_until_s = now_s + self._limits.probe_interval_s
        if times < BAD_PATH_MAX:
            return target, []
        del self._bad_paths[target]
        return target, self._keeper.drop(target, "stalled")

    def link_up(self, peer: PeerId, link: Link, now_s: float) -> list[Effect]:
        """A link is proof of life, and what a relay may have waited for."""
        self._doubts.pop(peer, None)
        self._bad_paths.pop(peer, None)
        effects: list[Effect] = []
        for relay in self.relays:
            if relay.target == peer:
                relay.is_sent = True
                effects += _tell(peer, relay.accusation)
                effects += self._send_probe(peer, link, now_s)
        return effects

    def link_down(self, peer: PeerId) -> list[Effect]:
        """Also when a dial failed: nobody can be probed there now."""
        doubt = self._doubts.get(peer)
        if doubt is not None and not doubt.helpers:
            doubt.deadline_s = 0.0
        return self._refuse_relays([relay for relay in self.relays if relay.target == peer])

    def doubt(self, peer: PeerId, now_s: float, accusation: tuple[Rumour, ...] = ()) -> None:
        """We have no link to it, or hearsay only: have the helpers look at the next tick."""
        if peer not in self._doubts:
            self._sequence += 1
            self._doubts[peer] = _Doubt(
                self._sequence, now_s, deadline_s=now_s, accusation=accusation
            )

    def forget(self, peer: PeerId) -> None:
        self._doubts.pop(peer, None)
        self._bad_paths.pop(peer, None)

    def extend(self, grace_s: float, now_s: float) -> None:
        """We were stopped for so long: silence in that time proves nothing."""
        for doubt in self._doubts.values():
            doubt.deadline_s += grace_s
        for link in self._keeper.links.values():
            link.bear_until_s = now_s + self._limits.probe_interval_s / 2

    # -------------------------------------------------------------------------------------- tick

    def tick(self, now_s: float) -> tuple[list[PeerId], list[Effect]]:
        """(whom nobody heard, what to do)."""
        effects: list[Effect] = []
        if self.relays:
            late = [relay for relay in self.relays if relay.deadline_s <= now_s]
            effects += self._refuse_relays(late)
        unheard = []
        due = [peer for peer, doubt in self._doubts.items() if doubt.deadline_s <= now_s]
        for peer in sorted(due):
            doubt = self._doubts[peer]
            helpers = [] if doubt.helpers else self._choose_helpers(peer)
            if helpers:
                effects += self._ask(helpers, peer, doubt, now_s)
                continue
            self._health.probe_failed(doubt.helpers, doubt.helpers - doubt.silent_helpers)
            del self._doubts[peer]
            unheard.append(peer)
        quiet_since_s = now_s - self._limits.probe_interval_s
        for peer, link in self._keeper.links.items():
            if link.heard_s <= quiet_since_s and link.bear_until_s <= now_s:
                effects += self._send_probe(peer, link, now_s)
        return unheard, effects

    def _send_probe(self, peer: PeerId, link: Link, now_s: float) -> list[Effect]:
        """Nothing if one is under way: its deadline must not move."""
        if peer in self._doubts:
            return []
        usual_s = 0.0 if link.rtt_s is None else 3.0 * link.rtt_s
        timeout_s = max(self._limits.probe_timeout_s, usual_s) * self._health.multiplier
        self._sequence += 1
        self._doubts[peer] = _Doubt(self._sequence, now_s, now_s + timeout_s)
        link.told_s = now_s
        records, rumours = self._news_for(peer)
        probe = Probe(
            sequence=self._sequence,
            link_wanted=self._keeper.wants(peer),
            records=records,
            rumours=rumours,
        )
        return [Send(peer, probe)]

    def _target_of(self, sequence: int) -> PeerId | None:
        """Whom the helpers were asked about under this number."""
        for target, doubt in self._doubts.items():
            if doubt.sequence == sequence and doubt.helpers:
                return target
        return None

    def _choose_helpers(self, target: PeerId) -> list[PeerId]:
        """Linked peers, those first that should have a link to the target."""
        witnesses = set(self._rings.neighbours(target))
        linked = [peer for peer in sorted(self._keeper.links) if peer != target]
        self._rng.shuffle(linked)
        linked.sort(key=lambda peer: (peer in self._doubts, peer not in witnesses))
        return linked[: self._limits.helpers]

    def _ask(
        self, helpers: list[PeerId], target: PeerId, doubt: _Doubt, now_s: float
    ) -> list[Effect]:
        doubt.helpers = doubt.silent_helpers = len(helpers)
        doubt.deadline_s = now_s + self._limits.indirect_timeout_s * self._health.multiplier
        request = ProbeRequest(sequence=doubt.sequence, target=target, rumours=doubt.accusation)
        return [Send(helper, request) for helper in helpers]

    def _answer_relays(self, heard: PeerId) -> list[Effect]:
        done = [relay for relay in self.relays if relay.target == heard and relay.is_sent]
        if not done:
            return []
        self.relays = [relay for relay in self.relays if relay not in done]
        return [
            Send(relay.requester, ProbeReply(sequence=relay.sequence, heard=True)) for relay in done
        ]

    def _refuse_relays(self, ended: list[_Relay]) -> list[Effect]:
        if not ended:
            return []
        self.relays = [relay for relay in self.relays if relay not in ended]
        return [
            Send(relay.requester, ProbeReply(sequence=relay.sequence, heard=False))
            for relay in ended
        ]


def _tell(target: PeerId, accusation: tuple[Rumour, ...]) -> list[Effect]:
    return [Send(target, Gossip(rumours=accusation))] if accusation else []
