"""The coordinator: who is in the swarm, told by everybody to everybody. SWIM with Lifeguard.

After Das, Gupta and Motivala, "SWIM" (DSN 2002), and Lifeguard (arXiv 1707.00788). Where we differ,
and why: over long-lived streams (not datagrams), so a message is late rather than lost, and EOF
without a goodbye is a sign; probes go to ring neighbours (rings.py), so that every peer is watched
by known others and news has paths that nobody has to negotiate; an accusation concerns a life,
(incarnation, refutation), and a death is believed only after the accused had time to answer.
Each part has its file:

    own_record     what others may know of us          own_voice      when we say it, and contradict
    roster         what all say, joined
    link_keeper    whom we have links to               probing        who answers
    suspicion      who stands accused, how long        local_health   whether it is our own fault
    dissemination  what is still to be told            anti_entropy   what gossip missed
    judgement      what we make of what we hear        accusers       who may accuse, how often
    telling        when news leaves, and to whom

This file turns events into calls on them, and keeps one rule of its own: a pause of ours (SIGSTOP,
a starved host) accuses nobody, and contradicts what others may think of us: after one so long that
they may hold us for dead, by a new life. A machine (effects.py): no clock, no random of its own.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.accusers import Accusers
from swarmd.protocols.anti_entropy import AntiEntropy
from swarmd.protocols.dissemination import Dissemination
from swarmd.protocols.effects import Effect, Event
from swarmd.protocols.ids import PeerId
from swarmd.protocols.judgement import Judgement
from swarmd.protocols.link_keeper import Link, LinkKeeper
from swarmd.protocols.local_health import LocalHealth
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.messages import control, gossip
from swarmd.protocols.messages.gossip import PeerRecord, Rumour, SignedRecord
from swarmd.protocols.own_record import OwnRecord, Sign
from swarmd.protocols.own_voice import OwnVoice
from swarmd.protocols.probing import Prober
from swarmd.protocols.records import Haste
from swarmd.protocols.rings import Rings
from swarmd.protocols.roster import Roster, RosterView, Verify
from swarmd.protocols.suspicion import Suspicions
from swarmd.protocols.telling import GOSSIP, Teller

TICK = "membership/tick"
FORGET_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class MembershipStatistics:
    """Cheap and frozen, for status."""

    known: int
    present: int
    suspect: int
    links: int
    health_score: int
    news_waiting: int
    rejected: dict[PeerId, dict[str, int]]
    """By sender and code."""
    counters: dict[str, int]


class Membership:
    """A floor 0 machine. `own` carries this start's incarnation; versions count up from its own."""

    def __init__(
        self,
        own: PeerRecord,
        limits: MembershipLimits,
        sign: Sign,
        verify: Verify,
        rng: random.Random,
    ) -> None:
        self.peer = PeerId(own.peer)
        self.limits = limits
        self.own = OwnRecord(own, sign, limits)
        self.roster = Roster(self.peer, own.run_id, verify)
        self.health = LocalHealth(limits.health_score_max)
        self.rings = Rings(limits.rings, limits.full_mesh_max)
        self.keeper = LinkKeeper(self.peer, limits, self.roster, self.rings, rng)
        self.news = Dissemination()
        self._out: list[Effect] = []
        anti_entropy = AntiEntropy(self.roster, limits.forget_s / 2)
        self.teller = Teller(limits, self.keeper, self.news, anti_entropy, self._out, rng)
        self.prober = Prober(
            self.peer, limits, self.health, self.keeper, self.rings, self.teller.news_for, rng
        )
        self.suspicions = Suspicions(
            limits.suspicion_s_min, limits.suspicion_s_max, limits.confirmations
        )
        self.counters: Counter[str] = Counter()
        self.voice = OwnVoice(self.own, self.roster, self.news, self.health, self._out, rng)
        self.judgement = Judgement(
            self.peer,
            self.voice,
            self.roster,
            self.rings,
            self.keeper,
            self.prober,
            self.suspicions,
            Accusers(self.peer, own.run_id, sign, verify),
            self.news,
            self._out,
        )
        self._rng = rng
        self._lag_s_min = limits.probe_interval_s / 2
        self._tick_due_s = math.inf
        self._forget_due_s = 0.0
        self._woke_until_s = -math.inf
        self._has_left = False
        self._on_message: dict[type[Any], Callable[[PeerId, Link, Any, float], None]] = {
            gossip.Probe: self._on_probe,
            gossip.Ack: self._on_ack,
            gossip.ProbeRequest: self._on_probe_request,
            gossip.ProbeReply: self._on_probe_reply,
            gossip.Gossip: self._on_gossip,
            gossip.SyncSummary: self._on_sync_summary,
            gossip.SyncEntries: self._on_sync_entries,
            control.Goodbye: self._on_goodbye,
        }

    # -------------------------------------------------------------------------------- what it tells

    @property
    def record(self) -> PeerRecord:
        """Our own, as last signed."""
        return self.own.record

    @property
    def signed(self) -> SignedRecord:
        """For a Hello."""
        return self.own.signed

    def view(self, now_s: float) -> RosterView:
        return self.roster.view(now_s)

    def rtt_s(self, peer: PeerId) -> float | None:
        link = self.keeper.links.get(peer)
        return None if link is None else link.rtt_s

    def statistics(self) -> MembershipStatistics:
        return MembershipStatistics(
            known=len(self.roster),
            present=self.roster.present_count,
            suspect=len(self.suspicions),
            links=len(self.keeper.links),
            health_score=self.health.score,
            news_waiting=len(self.news),
            rejected={peer: dict(count) for peer, count in sorted(self.judgement.rejected.items())},
            counters=dict(self.roster.counters + self.counters),
        )

    # ---------------------------------------------------------------------------------- what to do

    def update_own(self, now_s: float, *, insist: bool = False, **changes: Any) -> list[Effect]:
        """Say something new of ourselves: any fields of PeerRecord but identity and stamps.

        Progress and rounds (records.SHAPELESS_FIELDS) are told every so often, unless the caller
        insists on a new round; everything else is signed at once. Raises LocalProtocolError for
        fields that are not ours to set.
        """
        haste = self.own.change(changes, now_s)
        if haste is Haste.AT_ONCE or (insist and haste is Haste.SOON):
            self.voice.publish(now_s, haste)
        return self._flush(now_s)

    def introduce(self, peer: PeerId, addresses: Iterable[str]) -> list[Effect]:
        """An entry address; dialled at the next tick, and again until its peer is known."""
        self.keeper.introduce(peer, addresses)
        return []

    def want_links(self, peers: Iterable[PeerId]) -> None:
        """The links that other machines need now, all of them; dialled and kept like our own."""
        self.keeper.ask_for(peers)

    def learn(self, signed: SignedRecord, source: PeerId, now_s: float) -> list[Effect]:
        """A record that came some other way, as in a Hello."""
        self._take_news(source, (signed,), (), now_s)
        return self._flush(now_s)

    def heard(self, peer: PeerId, now_s: float) -> list[Effect]:
        """A message that is none of gossip's came from this neighbour: it lives."""
        self._mind_pauses(now_s)
        link = self.keeper.links.get(peer)
        if link is not None:
            self._heard(peer, link, now_s)
        return self._flush(now_s)

    def refute(self, now_s: float, why: str) -> list[Effect]:
        """Contradict whatever others may hold against us."""
        self.voice.refute((self.record.incarnation, self.record.refutation), now_s, why)
        return self._flush(now_s)

    def leave(self, now_s: float) -> list[Effect]:
        """Say goodbye to everybody: our last record. Nothing is done after it."""
        self.own.change({"phase": "left"}, now_s)
        self.voice.publish(now_s, Haste.WHENEVER)
        self._has_left = True
        for peer in sorted(self.keeper.links):
            self._out.append(fx.Send(peer, gossip.Gossip(records=(self.signed,))))
        return self._flush(now_s)

    def forget(self, peer: PeerId) -> bool:
        """Drop a dead entry from our own roster; others keep theirs."""
        self.keeper.forget((peer,))
        return self.roster.forget(peer)

    # ------------------------------------------------------------------------------------- events

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if now_s - self._tick_due_s > self._lag_s_min:
            self._mind_pauses(now_s)
        if self._has_left:
            return []
        match event:
            case fx.Arrived():
                self._on_arrived(event, now_s)
            case fx.TimerFired(name):
                if name == TICK:
                    self._on_tick(now_s)
                elif name == GOSSIP:
                    self.teller.on_timer(now_s)
            case fx.LinkUp(peer):
                self._on_link_up(peer, now_s)
            case fx.LinkDown(peer, cause):
                self._on_link_down(peer, cause, now_s)
            case fx.DialFailed(peer):
                self._on_dial_failed(peer, now_s)
            case fx.LoopLag(lag_s):
                if lag_s > self._lag_s_min:
                    self.health.lagged()
            case fx.Started():
                self._on_started(now_s)
        return self._flush(now_s)

    def _flush(self, now_s: float) -> list[Effect]:
        if self.news.fresh is not Haste.WHENEVER:
            self.teller.hurry(self.news.fresh, now_s)
            self.news.fresh = Haste.WHENEVER
        effects = self._out.copy()
        self._out.clear()
        return effects

    def _on_started(self, now_s: float) -> None:
        self.own.start(now_s)
        self.judgement.introductions.begin(now_s)
        self.roster.put_own(self.signed, self.record, now_s)
        self.rings.add(self.peer)
        self.keeper.rings_changed()
        self.teller.start(now_s)
        self._set_tick(now_s, self.limits.tick_s * self._rng.uniform(0.1, 1.0))

    def _set_tick(self, now_s: float, delay_s: float) -> None:
        self._tick_due_s = now_s + delay_s
        self._out.append(fx.SetTimer(TICK, delay_s))

    def _mind_pauses(self, now_s: float) -> None:
        """Notice that we ourselves stood still (SIGSTOP, a starved host): nobody else did wrong."""
        lag_s = now_s - self._tick_due_s
        if lag_s <= self._lag_s_min:
            return
        self._tick_due_s = now_s
        self.health.lagged()
        self.suspicions.extend(lag_s)
        self.prober.extend(lag_s, now_s)
        self.counters["pauses"] += 1
        if lag_s >= self.limits.suspect_after_s and not self._has_left:
            self._woke_until_s = now_s + self.limits.dead_after_s
            if lag_s >= self.limits.dead_soonest_s:
                self.voice.rejoin(now_s)
                self.judgement.introductions.begin(now_s)
            else:
                life = (self.record.incarnation, self.record.refutation)
                self.voice.refute(life, now_s, "paused")

    def _on_tick(self, now_s: float) -> None:
        unheard, effects = self.prober.tick(now_s)
        self._out += effects
        for peer in unheard:
            self.judgement.accuse(peer, "silent", now_s)
        self.judgement.judge(now_s)
        self.voice.answer_accusers(now_s)
        self.judgement.follow_up(now_s)
        self._out += self.keeper.tick(now_s)
        if self.own.is_due(now_s):
            self.voice.publish(now_s, self.own.haste)
        self.teller.tick(now_s)
        if now_s >= self._forget_due_s:
            self._forget_due_s = now_s + FORGET_EVERY_S
            self.keeper.forget(self.roster.forget_older_than(self.limits.forget_s, now_s))
        self._set_tick(now_s, self.limits.tick_s)

    def _on_link_up(self, peer: PeerId, now_s: float) -> None:
        link = self.keeper.link_up(peer, now_s)
        self._out += self.prober.link_up(peer, link, now_s)
        self.roster.heard(peer, now_s)
        self.judgement.link_went_up(peer, now_s)
        if self.peer < peer:
            self.teller.sync(peer, now_s)

    def _on_link_down(self, peer: PeerId, cause: str, now_s: float) -> None:
        is_unmeant = self.keeper.link_down(peer, now_s)
        self._out += self.prober.link_down(peer)
        entry = self.roster.get(peer)
        if not is_unmeant or entry is None or not entry.is_present:
            return
        if cause in ("lost", "stalled") and now_s >= self._woke_until_s:
            self.judgement.accuse(peer, "link_" + cause, now_s)

    def _on_dial_failed(self, peer: PeerId, now_s: float) -> None:
        self.keeper.dial_failed(peer, now_s)
        self._out += self.prober.link_down(peer)
        entry = self.roster.get(peer)
        if entry is not None and entry.is_present and peer not in self.keeper.links:
            self.prober.doubt(peer, now_s)

    # ----------------------------------------------------------------------------------- messages

    def _on_arrived(self, event: fx.Arrived, now_s: float) -> None:
        peer = event.peer
        link = self.keeper.links.get(peer)
        if link is None:
            self.counters["no_link"] += 1
            return
        message = event.message
        handler = self._on_message.get(type(message))
        if handler is None:
            self._heard(peer, link, now_s)
            return
        if not self.keeper.take_credit(link, now_s):
            self.judgement.reject(peer, "rate_exceeded", "too many gossip messages")
            return
        if isinstance(message, gossip.Ack):
            self.prober.take_ack(peer, message, link, now_s)
        self._heard(peer, link, now_s)
        handler(peer, link, message, now_s)

    def _heard(self, peer: PeerId, link: Link, now_s: float) -> None:
        self._out += self.prober.heard(peer, link, now_s)
        self.roster.heard(peer, now_s)
        if peer in self.suspicions:
            self.judgement.tell_the_accused(peer, now_s)

    def _on_probe(self, peer: PeerId, link: Link, probe: gossip.Probe, now_s: float) -> None:
        self._take_news(peer, probe.records, probe.rumours, now_s)
        self._out += self.prober.take_probe(peer, probe, link, now_s)

    def _on_ack(self, peer: PeerId, link: Link, ack: gossip.Ack, now_s: float) -> None:
        self._take_news(peer, ack.records, ack.rumours, now_s)

    def _on_probe_request(
        self, peer: PeerId, link: Link, request: gossip.ProbeRequest, now_s: float
    ) -> None:
        is_known = PeerId(request.target) in self.roster
        self._out += self.prober.take_request(peer, request, is_known, now_s)

    def _on_probe_reply(
        self, peer: PeerId, link: Link, reply: gossip.ProbeReply, now_s: float
    ) -> None:
        heard, effects = self.prober.take_reply(reply, now_s)
        self._out += effects
        if heard is not None:
            self.counters["bad_paths"] += 1
            self.judgement.vouch(heard)

    def _on_gossip(self, peer: PeerId, link: Link, news: gossip.Gossip, now_s: float) -> None:
        self._take_news(peer, news.records, news.rumours, now_s)
        if news.wanted:
            self.teller.fulfil(peer, news.wanted)

    def _on_sync_summary(
        self, peer: PeerId, link: Link, summary: gossip.SyncSummary, now_s: float
    ) -> None:
        self.teller.answer_summary(peer, summary, now_s)

    def _on_sync_entries(
        self, peer: PeerId, link: Link, entries: gossip.SyncEntries, now_s: float
    ) -> None:
        self.teller.answer_entries(peer, entries, now_s)

    def _on_goodbye(self, peer: PeerId, link: Link, goodbye: control.Goodbye, now_s: float) -> None:
        self._out += self.keeper.drop(peer, "goodbye")

    # --------------------------------------------------------------------------------------- news

    def _take_news(
        self,
        source: PeerId,
        records: tuple[SignedRecord, ...],
        rumours: tuple[Rumour, ...],
        now_s: float,
    ) -> None:
        if not records and not rumours:
            return
        strangers, learned = self.judgement.take_records(source, records, now_s)
        for rumour in rumours:
            self.judgement.take_rumour(source, rumour, strangers, now_s)
        if learned:
            self.teller.merged(source, learned)
