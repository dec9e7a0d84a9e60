"""When news leaves, and to whom: urgent news soon, what is left over now and then, rosters by sync.

Urgent news is held for a moment to travel together, a new round for longer. Where news never ends
it leaves a few times a second only, so that messages stay bounded. Links that are busy with other
things are not probed, so nothing rides to them of itself: they are told every so often. Rosters are
compared on every new link, with a random neighbour every so often, and with all neighbours after a
merger.
"""

from __future__ import annotations

import math
import random

from swarmd.protocols import effects as fx
from swarmd.protocols.anti_entropy import AntiEntropy
from swarmd.protocols.dissemination import Dissemination
from swarmd.protocols.ids import PeerId
from swarmd.protocols.link_keeper import LinkKeeper
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.messages.gossip import Gossip, Rumour, SignedRecord, SyncEntries, SyncSummary
from swarmd.protocols.records import Haste

GOSSIP = "membership/gossip"
SYNC_AFTER_RECORDS = 8
"""More news than this from one message is a merger of rosters: it travels on by comparing digests
with the other links, which costs each of them only what it lacks."""


class Teller:
    """Effects go to `out`, which the machine hands on."""

    def __init__(
        self,
        limits: MembershipLimits,
        keeper: LinkKeeper,
        news: Dissemination,
        anti_entropy: AntiEntropy,
        out: list[fx.Effect],
        rng: random.Random,
    ) -> None:
        self._limits = limits
        self._keeper = keeper
        self._news = news
        self._anti_entropy = anti_entropy
        self._out = out
        self._rng = rng
        self._due_s = math.inf
        """When the timer fires."""
        self._told_at_s = -math.inf
        self._sync_due_s = 0.0
        self._sync_with: set[PeerId] = set()

    def start(self, now_s: float) -> None:
        self._sync_due_s = now_s + self._limits.sync_interval_s * self._rng.uniform(0.5, 1.5)

    # ------------------------------------------------------------------------------------- gossip

    def hurry(self, haste: Haste, now_s: float) -> None:
        """There is news that should not wait for the next probe."""
        limits = self._limits
        is_urgent = haste is Haste.AT_ONCE
        delay_s = limits.gossip_delay_s if is_urgent else limits.gossip_gathered_s
        due_s = max(now_s + delay_s, self._told_at_s + limits.gossip_spacing_s)
        if due_s < self._due_s:
            self._due_s = due_s
            self._out.append(fx.SetTimer(GOSSIP, due_s - now_s))

    def on_timer(self, now_s: float) -> None:
        """Tell the neighbours; again soon if a message was too small for all of it."""
        self._due_s = math.inf
        self._told_at_s = now_s
        listeners = self._keeper.neighbours()
        for peer in listeners:
            self._tell(peer, now_s)
        self._news.settle(listeners)
        if listeners and self._news.haste is not Haste.WHENEVER:
            self.hurry(self._news.haste, now_s)

    def news_for(self, link: PeerId) -> tuple[tuple[SignedRecord, ...], tuple[Rumour, ...]]:
        """What rides on a probe or an acknowledgement."""
        return self._news.take(link)

    def _tell(self, peer: PeerId, now_s: float) -> None:
        records, rumours = self._news.take(peer)
        self._keeper.links[peer].told_s = now_s
        if records or rumours:
            self._out.append(fx.Send(peer, Gossip(records=records, rumours=rumours)))

    # --------------------------------------------------------------------------------------- tick

    def tick(self, now_s: float) -> None:
        self._sync_when_due(now_s)
        if len(self._news):
            self._tell_neglected(now_s)

    def _tell_neglected(self, now_s: float) -> None:
        links = self._keeper.links
        since_s = now_s - 1.5 * self._limits.probe_interval_s
        neglected = [peer for peer, link in links.items() if link.told_s < since_s]
        if not neglected:
            return
        for peer in sorted(neglected):
            self._tell(peer, now_s)
        self._news.settle(self._keeper.neighbours())

    def _sync_when_due(self, now_s: float) -> None:
        partners = self._sync_with
        if now_s >= self._sync_due_s:
            self._sync_due_s = now_s + self._limits.sync_interval_s * self._rng.uniform(0.75, 1.25)
            if self._keeper.links:
                partners.add(self._rng.choice(sorted(self._keeper.links)))
        for peer in sorted(partners):
            if peer in self._keeper.links:
                self.sync(peer, now_s)
        partners.clear()

    # --------------------------------------------------------------------------------------- sync

    def sync(self, peer: PeerId, now_s: float) -> None:
        """Begin to compare rosters."""
        self._out.append(fx.Send(peer, self._anti_entropy.summary(now_s)))

    def merged(self, source: PeerId, learned: int) -> None:
        """So many records of a message told more than progress."""
        if learned > SYNC_AFTER_RECORDS:
            self._sync_with.update(peer for peer in self._keeper.links if peer != source)

    def answer_summary(self, peer: PeerId, summary: SyncSummary, now_s: float) -> None:
        entries = self._anti_entropy.compare(summary, now_s)
        if entries is not None:
            self._out.append(fx.Send(peer, entries))

    def answer_entries(self, peer: PeerId, entries: SyncEntries, now_s: float) -> None:
        found = self._anti_entropy.difference(entries, now_s)
        for message in self._anti_entropy.messages(found.lacking, found.wanted):
            self._out.append(fx.Send(peer, message))
        if found.is_cut:
            self._sync_with.add(peer)

    def fulfil(self, peer: PeerId, wanted: tuple[bytes, ...]) -> None:
        """Send the records that were asked for."""
        for message in self._anti_entropy.messages(self._anti_entropy.fulfil(wanted), []):
            self._out.append(fx.Send(peer, message))
