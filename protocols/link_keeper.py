"""Keeps the links that this peer should have: dials, backs off, closes what nobody wants.

Wanted are: the neighbours on the rings, what other machines asked for, and entry addresses whose
peers we have not met. Everything else may be closed, but only when the other side does not want the
link either (each says so in its probes): else two machines would open and close it for ever. Who
closes says Goodbye, and the other side ends the link: so the word cannot be lost with it.

Every dial has an owner, which is here. Of two peers that want each other the one with the smaller
id dials first. The dead are tried again, one at a time and ever more rarely: it is how a healed
partition is found, and costs one dial a second while anybody is dead.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from swarmd.protocols.effects import Dial, Drop, Effect, Send
from swarmd.protocols.ids import PeerId
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.messages.control import Goodbye
from swarmd.protocols.rings import Rings
from swarmd.protocols.roster import Liveness, Roster

PARTING_S = 5.0
"""The other side ends a link after our Goodbye; when it does not by then, we do."""
SURPLUS_LOOK_S = 1.0
"""Between two looks at the links that nobody may want."""
STEADY_S = 10.0
"""A link that lived so long proves that dialling is right: back-off starts anew."""


@dataclass(slots=True)
class Link:
    """A neighbour with whom messages flow."""

    up_s: float
    heard_s: float
    """Any message from it."""
    bear_until_s: float = 0.0
    """No probe before: its silence has a reason that is not its own."""
    told_s: float = 0.0
    """When news last had a chance to travel to it."""
    rtt_s: float | None = None
    """Of our own probes, smoothed."""
    is_wanted_there: bool = True
    surplus_since_s: float | None = None
    parting_s: float = math.inf
    """When we said Goodbye: its end will be a clean one."""
    credit: float = 0.0
    """Messages that it may send now; refilled with time."""
    credit_at_s: float = 0.0

    @property
    def is_parting(self) -> bool:
        return self.parting_s < math.inf


@dataclass(slots=True)
class _Retry:
    failures: int = 0
    first_failure_s: float = 0.0
    next_s: float = 0.0
    in_flight: bool = False


class LinkKeeper:
    """Links and dials. `links` is read by the other parts of membership."""

    def __init__(
        self,
        own: PeerId,
        limits: MembershipLimits,
        roster: Roster,
        rings: Rings,
        rng: random.Random,
    ) -> None:
        self._own = own
        self._limits = limits
        self._roster = roster
        self._rings = rings
        self._rng = rng
        self.links: dict[PeerId, Link] = {}
        self._retries: dict[PeerId, _Retry] = {}
        self._contacts: dict[PeerId, tuple[str, ...]] = {}
        self._asked_for: frozenset[PeerId] = frozenset()
        self._wanted: tuple[PeerId, ...] | None = None
        self._reunite_s = 0.0
        self._surplus_look_s = -math.inf

    # ------------------------------------------------------------------------------ what is wanted

    @property
    def wanted(self) -> tuple[PeerId, ...]:
        """By id."""
        if self._wanted is None:
            strangers = (peer for peer in self._contacts if peer not in self._roster)
            wanted = {*self._rings.neighbours(self._own), *self._asked_for, *strangers}
            wanted.discard(self._own)
            self._wanted = tuple(sorted(wanted))
        return self._wanted

    def neighbours(self) -> list[PeerId]:
        """Linked peers to whom urgent news goes: those on the rings, else whoever there is."""
        on_rings = [p for p in self._rings.neighbours(self._own) if p in self.links]
        return on_rings or sorted(self.links)

    def wants(self, peer: PeerId) -> bool:
        return peer in self.wanted

    def rings_changed(self) -> None:
        self._wanted = None

    def introduce(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """An entry address: dialled until its peer is in the roster."""
        if peer != self._own:
            self._contacts[peer] = tuple(addresses)
            self._retries.pop(peer, None)
            self._wanted = None

    def ask_for(self, peers: Iterable[PeerId]) -> None:
        """Links that other machines need, all of them; replaces the former list."""
        asked = frozenset(peers)
        if asked != self._asked_for:
            self._asked_for = asked
            self._wanted = None

    # ---------------------------------------------------------------------------------- outcomes

    def link_up(self, peer: PeerId, now_s: float) -> Link:
        link = Link(now_s, now_s, credit=self._limits.messages_burst, credit_at_s=now_s)
        self.links[peer] = link
        retry = self._retries.get(peer)
        if retry is not None:
            retry.in_flight = False
        return link

    def link_down(self, peer: PeerId, now_s: float) -> bool:
        """True if a link ended that nobody meant to end."""
        link = self.links.pop(peer, None)
        self._note_end(peer, link, now_s)
        return link is not None and not link.is_parting

    def _note_end(self, peer: PeerId, link: Link | None, now_s: float) -> None:
        if peer not in self._roster and peer not in self._contacts:
            self._retries.pop(peer, None)
            return
        retry = self._retries.setdefault(peer, _Retry())
        retry.in_flight = False
        if link is not None and now_s - link.up_s >= STEADY_S:
            retry.failures = 0
            retry.next_s = now_s
        else:
            self._back_off(peer, retry, now_s)

    def dial_failed(self, peer: PeerId, now_s: float) -> None:
        retry = self._retries.setdefault(peer, _Retry())
        retry.in_flight = False
        self._back_off(peer, retry, now_s)

    def try_soon(self, peer: PeerId) -> None:
        """It has new addresses or a new life: what failed before says nothing now."""
        retry = self._retries.get(peer)
        if retry is not None:
            retry.failures = 0
            retry.next_s = 0.0

    def hurry(self, peer: PeerId, now_s: float) -> None:
        """It stands accused: one try now, whatever the back-off, so that it can answer."""
        retry = self._retries.get(peer)
        if retry is not None:
            retry.next_s = min(retry.next_s, now_s)

    def dial(self, peer: PeerId) -> list[Effect]:
        """At once, for a helper's probe. Nothing if a dial is on its way or no address is known."""
        retry = self._retries.setdefault(peer, _Retry())
        addresses = self._addresses_of(peer)
        if retry.in_flight or not addresses:
            return []
        retry.in_flight = True
        return [Dial(peer, addresses)]

    def drop(self, peer: PeerId, reason: str) -> list[Effect]:
        """Close a link. Its LinkDown will find nothing left."""
        if self.links.pop(peer, None) is None:
            return []
        return [Drop(peer, reason)]

    def forget(self, peers: Iterable[PeerId]) -> None:
        for peer in peers:
            self._retries.pop(peer, None)
            self._contacts.pop(peer, None)
        self._wanted = None

    def take_credit(self, link: Link, now_s: float) -> bool:
        """May this neighbour send one more message? A bucket that fills with time."""
        limits = self._limits
        credit = link.credit + (now_s - link.credit_at_s) * limits.messages_per_s
        if credit > limits.messages_burst:
            credit = limits.messages_burst
        link.credit_at_s = now_s
        is_enough = credit >= 1.0
        link.credit = credit - 1.0 if is_enough else credit
        return is_enough

    # -------------------------------------------------------------------------------------- tick

    def tick(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        lacking = [peer for peer in self.wanted if peer not in self.links]
        if lacking or now_s >= self._reunite_s:
            effects += self._dial_due(lacking, now_s)
        is_crowded = len(self.links) > self._limits.links_max
        if is_crowded or (now_s >= self._surplus_look_s and len(self.links) > len(self.wanted)):
            self._surplus_look_s = now_s + SURPLUS_LOOK_S
            effects += self._close_surplus(now_s, is_crowded)
        return effects

    def _dial_due(self, lacking: list[PeerId], now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        in_flight = sum(retry.in_flight for retry in self._retries.values())
        for peer in lacking:
            if in_flight >= self._limits.dials_max:
                break
            if self._is_due(peer, now_s):
                effects += self.dial(peer)
                in_flight += 1
        if now_s >= self._reunite_s and in_flight < self._limits.dials_max:
            self._reunite_s = now_s + self._limits.reunite_s
            effects += self._try_the_dead(now_s)
        return effects

    def retry_in_s(self, now_s: float) -> float | None:
        """Until the next dial of anybody wanted; None if nobody is waited for."""
        waits = [
            self._retries[peer].next_s - now_s
            for peer in self.wanted
            if peer not in self.links and peer in self._retries
        ]
        return max(0.0, min(waits)) if waits else None

    def _is_due(self, peer: PeerId, now_s: float) -> bool:
        if not self._addresses_of(peer):
            return False
        retry = self._retries.get(peer)
        if retry is None:
            patience_s = self._limits.dial_patience_s if peer < self._own else 0.0
            if peer not in self._roster:
                patience_s = 0.0
            retry = self._retries[peer] = _Retry(next_s=now_s + patience_s)
        return not retry.in_flight and now_s >= retry.next_s

    def _try_the_dead(self, now_s: float) -> list[Effect]:
        if self._roster.present_count == len(self._roster):
            return []
        due = []
        for entry in self._roster.entries():
            peer = PeerId(entry.record.peer)
            if entry.liveness is Liveness.DEAD and peer not in self.links:
                retry = self._retries.setdefault(peer, _Retry())
                if not retry.in_flight and now_s >= retry.next_s:
                    due.append(peer)
        return self.dial(self._rng.choice(due)) if due else []

    def _close_surplus(self, now_s: float, is_crowded: bool) -> list[Effect]:
        """One link at most, that neither side wants. The smaller id closes it."""
        wanted = set(self.wanted)
        for peer in sorted(self.links):
            link = self.links[peer]
            if link.is_parting:
                if now_s - link.parting_s > PARTING_S:
                    return self.drop(peer, "surplus")
            elif peer in wanted or link.is_wanted_there:
                link.surplus_since_s = None
            elif link.surplus_since_s is None:
                link.surplus_since_s = now_s
            elif is_crowded or (
                self._own < peer and now_s - link.surplus_since_s > self._limits.surplus_s
            ):
                link.parting_s = now_s
                return [Send(peer, Goodbye(reason="surplus"))]
        return []

    def _addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        entry = self._roster.get(peer)
        known = entry.record.addresses if entry is not None else ()
        return known or self._contacts.get(peer, ())

    def _back_off(self, peer: PeerId, retry: _Retry, now_s: float) -> None:
        """Doubling from retry_first_s, ± 25 %."""
        if retry.failures == 0:
            retry.first_failure_s = now_s
        limits = self._limits
        is_recent = now_s - retry.first_failure_s < limits.long_dead_s
        bound_s = limits.retry_known_max_s if is_recent else limits.retry_max_s
        delay_s = min(bound_s, limits.retry_first_s * 2.0 ** min(retry.failures, 16))
        retry.failures += 1
        retry.next_s = now_s + delay_s * self._rng.uniform(0.75, 1.25)
