"""How entries of the ledger travel: told once when they change, compared now and then.

What changed is owed to those whom it concerns; debts are paid together, at most once per flush, and
a debt is an entry's key and not its text, so news that is overtaken is never sent. A recipient is
not told what it has just told us. What is lost on the way, or was said before a recipient came, is
found by comparing (ledger_compare.py): with each new recipient at once, with the others in turn.

In a small swarm all news concerns everybody. In a large one

    what a head holds and does in an open round   concerns the heads: told to those, directly where
                                                  we have links to all of them
    how that stands when all of the round is      concerns everybody: told to a few of those we have
    leased, and when it has ended                 links to (RECIPIENTS_MAX), and passed on by all
    receipts, scores of an ended round            concern everybody, are many, and not urgent: left
                                                  to comparing, which sends an entry to whoever
                                                  lacks it and no further

Where everybody hears every writer directly nobody passes anything on. In a large swarm the writer
sends its entry, and others say that they have it, to their own recipients, which ask whom they hear
of it from first: so an entry comes to each peer about once, and not from every neighbour.

Entries are signed by whom they speak of. Sums of rounds long ended are not, and a false one could
make us skip rounds: who knows nothing of its own rounds adopts them when two recipients, where
there are two, know at least as much. Others do so when nothing has been heard of those rounds for a
while, since then nobody knows better; and only on the word of peers that have worked, if one of
those is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarmd.protocols.effects import Effect, Priority, Send
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.ledger import ROUNDS_AHEAD_MAX, Ledger
from swarmd.protocols.ledger_compare import (
    batches,
    compare_held,
    pack_held,
    pack_news,
    read_news,
    rounds_that_differ,
    wanted_entries,
)
from swarmd.protocols.ledger_entries import Entry, EntryKey
from swarmd.protocols.messages.ledger import (
    EVERYBODY,
    HEADS,
    NOBODY,
    WRITERS_MAX,
    LedgerDigest,
    LedgerHeld,
    LedgerTotals,
    LedgerUpdate,
    LedgerWanted,
    SignedEntry,
)
from swarmd.protocols.receipts import tag_of

EXCHANGE_BYTES_MAX = 512 * 1024
"""Of entries in answer to one message; what is left comes with the next comparison."""
WITNESSES_MIN = 2
RECIPIENTS_MAX = 16
"""A peer of a large swarm has links to all replicas of two stages. To tell each of them everything
would cost each of them everything, so many times; so few reach all the others in three steps. More
peers than this make a swarm large."""
WHOLE_EVERY = 4
"""In a large swarm every so many comparisons look at the open rounds, too, in which nearly always
something is new."""

OFFERS_TURNS = 2 * WHOLE_EVERY
"""In a large swarm so many comparisons bring news of open rounds, if there is any."""
NEVER = -1
"""Older than any version."""

LedgerMessage = LedgerUpdate | LedgerDigest | LedgerTotals | LedgerHeld | LedgerWanted


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom we tell. Of the news of heads `heads` are told, of all else `told`."""

    told: tuple[PeerId, ...] = ()
    heads: tuple[PeerId, ...] = ()
    is_large: bool = False
    hears_all: bool = False
    """`told` are all the peers there are."""
    hears_all_heads: bool = False
    """`heads` are all the heads there are."""

    @property
    def all(self) -> list[PeerId]:
        return sorted({*self.told, *self.heads})


def choose_audience(
    own: PeerId, linked: Sequence[PeerId], heads: Sequence[PeerId], present: int
) -> Audience:
    """linked: the peers that we have links to; present: how many others there are."""
    told = choose_recipients(own, linked)
    hears_all = len(told) >= present
    if present <= RECIPIENTS_MAX:
        return Audience(tuple(told), hears_all=hears_all)
    others = [peer for peer in heads if peer != own] if own in heads else []
    near = sorted(set(linked) & set(others))
    is_direct = own in heads and len(near) == len(others)
    if not is_direct:
        near = choose_recipients(own, near)
    return Audience(tuple(told), tuple(near), True, hears_all, is_direct)


def choose_recipients(own: PeerId, linked: Sequence[PeerId]) -> list[PeerId]:
    """All, or of too many those that come first in an order that is random, fixed, and the same
    seen from both ends: most choose each other, and no part of the swarm is chosen by nobody. Who
    is, still hears all by comparing, which goes both ways."""
    if len(linked) <= RECIPIENTS_MAX:
        return list(linked)
    return sorted(linked, key=lambda peer: (_distance(own, peer), peer))[:RECIPIENTS_MAX]


def _distance(one: PeerId, other: PeerId) -> bytes:
    pair = "/".join(sorted((one, other))).encode()
    return hashlib.blake2b(pair, digest_size=8, person=b"swarmd.told").digest()


class LedgerGossip:
    """Debts and comparisons. Says nothing by itself: the owner calls `flush` and `compare`."""

    def __init__(self, ledger: Ledger, own: PeerId, incarnation: int) -> None:
        self._ledger = ledger
        self._own = own
        self._incarnation = incarnation
        self._owed: dict[PeerId, dict[EntryKey, int]] = {}
        """By recipient: what, and how far it shall go from there."""
        self.audience = Audience()
        self.is_urgent = False
        """Others wait for what we owe: it concerns everybody, or is on its way to others."""
        self._last_compared = own
        """Turns begin behind us, so that not all of a swarm begin with the same peer."""
        self._compared = 0
        self._asked: dict[tuple[int, bytes], int] = {}
        """News that we have asked for since the last flush: (round, who) and the version."""
        self._offers: dict[PeerId, LedgerTotals] = {}
        self._newest_told = 0

    @property
    def recipients(self) -> list[PeerId]:
        return sorted(self.audience.told)

    @property
    def newest_told(self) -> int:
        """The last round that anybody is known to have begun: said to have been, or found to be."""
        return max(self._newest_told, self._ledger.newest)

    @property
    def is_in_debt(self) -> bool:
        return any(self._owed.values())

    def set_audience(self, audience: Audience) -> list[Effect]:
        """Whom we tell from now on."""
        fresh = sorted(set(audience.told) - set(self.audience.told))
        self.audience = audience
        self._owed = {peer: self._owed.get(peer, {}) for peer in audience.all}
        self._offers = {peer: offer for peer, offer in self._offers.items() if peer in self._owed}
        if audience.is_large:
            # Each of them would send a newcomer the same; one does, and its turn comes to the rest.
            fresh = fresh[:1] if self._ledger.newest == 0 else []
        return [self._send(peer, self._ledger.digest()) for peer in fresh]

    def owe(self, key: EntryKey, reach: int = EVERYBODY) -> None:
        """Our own entry changed. In a small swarm all news goes to everybody."""
        audience = self.audience
        self.is_urgent |= reach == EVERYBODY
        if not audience.is_large:
            self._owe(key, audience.told, NOBODY if audience.hears_all else EVERYBODY)
            return
        if reach >= HEADS:
            self._owe(key, audience.heads, NOBODY if audience.hears_all_heads else HEADS)
        if reach == EVERYBODY:
            self._owe(key, audience.told, EVERYBODY)

    def flush(self) -> list[Effect]:
        """Pay all debts. Entries of rounds meanwhile summed up are forgotten."""
        self.is_urgent = False
        self._asked.clear()  # who has not answered by now may be asked for in vain
        effects: list[Effect] = []
        for peer in sorted(self._owed):
            debts, self._owed[peer] = self._owed[peer], {}
            for reach in (NOBODY, HEADS, EVERYBODY):
                keys = sorted(key for key in debts if debts[key] == reach)
                found = [self._ledger.get(key) for key in keys]
                entries = [entry for entry in found if entry and entry.signed]
                if reach == EVERYBODY and self.audience.is_large:
                    passed_on = [entry for entry in entries if entry.key.peer != self._own]
                    effects += self._announcements(peer, passed_on)
                    entries = [entry for entry in entries if entry.key.peer == self._own]
                signed = [entry.signed for entry in entries if entry.signed]
                effects += self._updates(peer, signed, reach)
        return effects

    def compare(self) -> list[Effect]:
        """Send a digest to the recipient whose turn it is."""
        peers = self.recipients
        if not peers:
            return []
        later = [peer for peer in peers if peer > self._last_compared]
        self._last_compared = (later or peers)[0]
        self._compared += 1
        whole = not self.audience.is_large or self._compared % WHOLE_EVERY == 0
        return [self._send(self._last_compared, self._ledger.digest(whole=whole))]

    # ---------------------------------------------------------------------------------- arrivals

    def on_update(self, peer: PeerId, update: LedgerUpdate) -> list[tuple[Entry | None, Entry]]:
        """Join what `peer` sent. Returns what was news, each with what stood before it.

        Raises RemoteProtocolError with nothing changed if one of the entries is not right.
        """
        checked = [self._ledger.check(signed) for signed in update.entries]
        news = []
        for entry in checked:
            if entry is None or self._is_of_this_life(entry):
                continue
            before = self._ledger.get(entry.key)
            if self._ledger.put(entry):
                news.append((before, entry))
                if update.reach != NOBODY and not self.audience.hears_all:
                    self.owe(entry.key, update.reach)
                    self.is_urgent = True
        self._forgive(peer, update)
        return news

    def on_digest(self, peer: PeerId, theirs: LedgerDigest) -> list[Effect]:
        """Say what we hold where we differ; and how far we are, if the other may know in sum only
        what we still lack."""
        ledger = self._ledger
        self._hear_of(max((item.round for item in theirs.rounds), default=0))
        effects: list[Effect] = []
        if theirs.settled < ledger.base:
            effects.append(self._send(peer, ledger.totals()))
        for number in rounds_that_differ(ledger, theirs):
            held = pack_held(ledger, number)
            effects.append(self._send(peer, LedgerHeld(round=number, held=held)))
        first = theirs.rounds[0].round if theirs.rounds else theirs.settled
        if not theirs.answer and ledger.settled < min(first, theirs.settled):
            effects.append(self._send(peer, ledger.digest(answer=True)))
        return effects

    def on_held(self, peer: PeerId, message: LedgerHeld) -> list[Effect]:
        """Send what the other lacks of the round, and ask for what we lack.

        Raises RemoteProtocolError (malformed, wrong_round).
        """
        if message.news:
            return self._on_news(peer, message)
        self._hear_of(message.round)
        they_lack, we_lack = compare_held(self._ledger, message.round, message.held)
        effects = self._updates(peer, they_lack, self._reach_of_repairs)
        if we_lack and message.round >= self._ledger.base:
            wanted = LedgerWanted(round=message.round, wanted=b"".join(we_lack))
            effects.append(self._send(peer, wanted))
        return effects

    def on_wanted(self, peer: PeerId, message: LedgerWanted) -> list[Effect]:
        """Raises RemoteProtocolError (malformed, wrong_round)."""
        signed = wanted_entries(self._ledger, message.round, message.wanted)
        return self._updates(peer, signed, EVERYBODY if message.news else self._reach_of_repairs)

    def _on_news(self, peer: PeerId, message: LedgerHeld) -> list[Effect]:
        """Ask for what we lack, unless we have asked somebody; owe the sender nothing it has."""
        known, lacking = read_news(self._ledger, message.round, message.held)
        for key in known:
            self._owed.get(peer, {}).pop(key, None)
        if message.round < self._ledger.base or len(self._asked) > WRITERS_MAX:
            return []
        asked = {(message.round, who): version for who, version in sorted(lacking.items())}
        fresh = [item for item in asked if asked[item] > self._asked.get(item, NEVER)]
        if not fresh:
            return []
        self._asked.update((item, asked[item]) for item in fresh)
        wanted = b"".join(who for _, who in fresh)
        return [self._send(peer, LedgerWanted(round=message.round, wanted=wanted, news=True))]

    def on_totals(self, peer: PeerId, totals: LedgerTotals) -> list[Effect]:
        """Keep sums of rounds that we know less of; adopt them at once if we know nothing of those
        that we are at. Once adopted, ask for the rest."""
        if peer not in self._owed or totals.rounds <= self._ledger.base:
            return []
        self._offers[peer] = totals
        own = range(max(0, self._ledger.settled - 1), self._ledger.settled + 2)
        if any(map(self._ledger.entries, own)):
            return []
        return self.consider_offers(min(WITNESSES_MIN, len(self._owed)))

    def offers_after_s(self, limits: LeaseLimits, digest_s: float) -> float:
        """Without news of our rounds for so long, one neighbour's word on past ones is enough."""
        return OFFERS_TURNS * digest_s if self.audience.is_large else limits.offers_s

    def consider_offers(self, witnesses: int) -> list[Effect]:
        """Adopt the furthest sums that so many recipients know, and ask one for the rest."""
        if not self._offers:
            return []  # the usual case, and to say who has worked all receipts are added up
        offers = self._trusted_offers()
        if len(offers) < witnesses:
            return []
        by_rounds = sorted(offers, key=lambda peer: (-self._offers[peer].rounds, peer))
        witness = by_rounds[witnesses - 1]
        if not self._ledger.adopt(self._offers[witness]):
            return []
        self._offers.clear()
        return [self._send(witness, self._ledger.digest())]

    def _trusted_offers(self) -> list[PeerId]:
        """Where somebody is there who has worked, a stranger's word does not count."""
        seen, told = self._ledger.witnessed_total(), self._ledger.contributions()
        worked = {peer for peer in self._owed if tag_of(peer) in seen or peer in told}
        return [peer for peer in self._offers if peer in worked or not worked]

    # ----------------------------------------------------------------------------------- on disk

    def everything(self) -> list[LedgerTotals | LedgerUpdate]:
        entries = self._ledger.signed_entries()
        updates = [LedgerUpdate(entries=tuple(batch)) for batch in batches(entries)]
        return [self._ledger.totals(), *updates]

    def restore(self, saved: Sequence[LedgerTotals | LedgerUpdate], rounds: int) -> None:
        """From our own disk: no witnesses needed, signatures all the same."""
        for message in saved:
            if isinstance(message, LedgerTotals):
                if message.rounds > rounds:
                    raise LocalProtocolError("wrong_round", f"{message.rounds} rounds in sum")
                self._ledger.adopt(message)
                continue
            for signed in message.entries:
                entry = self._ledger.check(signed)
                if entry is not None and entry.key.round < rounds:
                    self._ledger.put(entry)

    # ------------------------------------------------------------------------------------ inside

    def _is_of_this_life(self, entry: Entry) -> bool:
        """Ours, or of a life that we have not begun: only we can know what stands in it."""
        return entry.key.peer == self._own and entry.key.incarnation >= self._incarnation

    def _hear_of(self, round_number: int) -> None:
        if round_number < self._ledger.settled + ROUNDS_AHEAD_MAX:
            self._newest_told = max(self._newest_told, round_number)

    def _owe(self, key: EntryKey, peers: Iterable[PeerId], reach: int) -> None:
        for peer in peers:
            debts = self._owed[peer]
            debts[key] = max(reach, debts.get(key, NOBODY))

    def _forgive(self, peer: PeerId, update: LedgerUpdate) -> None:
        """The sender has what it sent: we owe it nothing of which we have no later version."""
        debts = self._owed.get(peer)
        if debts:
            for signed in update.entries:
                key = self._ledger.held_as(signed)
                if key is not None:
                    debts.pop(key, None)

    @property
    def _reach_of_repairs(self) -> int:
        """In a large swarm others find by comparing what we found so."""
        return NOBODY if self.audience.is_large or self.audience.hears_all else EVERYBODY

    def _announcements(self, peer: PeerId, entries: list[Entry]) -> list[Effect]:
        """That we have these."""
        rounds = sorted({entry.key.round for entry in entries})
        effects: list[Effect] = []
        for number in rounds:
            held = pack_news(entry for entry in entries if entry.key.round == number)
            effects.append(self._send(peer, LedgerHeld(round=number, held=held, news=True)))
        return effects

    def _updates(self, peer: PeerId, entries: list[SignedEntry], reach: int) -> list[Effect]:
        """As few messages as their bounds allow."""
        return [
            self._send(peer, LedgerUpdate(entries=tuple(batch), reach=reach))
            for batch in batches(entries, EXCHANGE_BYTES_MAX)
        ]

    @staticmethod
    def _send(peer: PeerId, message: LedgerMessage) -> Send:
        return Send(peer, message, priority=Priority.CONTROL)
