"""How entries of the ledger travel: told once when they change, compared now and then.

What changed is owed to every recipient; debts are paid together, at most once per flush, and a debt
is an entry's key and not its text, so news that is overtaken is never sent. A recipient is not told
what it has just told us. What is lost on the way, or was said before a recipient came, is found by
comparing: with each new recipient at once, with the others in turn.

In a large swarm a peer tells a few of those it has links to (RECIPIENTS_MAX).
Where everybody hears every writer directly nobody passes anything on; elsewhere entries are passed
on by all who find them new, so they reach everybody in as many steps as the neighbours' graph has.

Entries are signed by whom they speak of. Sums of rounds long ended are not, and a false one could
make us skip rounds: they are adopted when two recipients, where there are two, know at least as
much; or when nothing has been heard of our own rounds for a while, since then nobody knows better.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from swarmd.protocols.effects import Effect, Priority, Send
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_entries import Entry, EntryKey
from swarmd.protocols.messages.ledger import (
    UPDATE_BYTES_MAX,
    UPDATE_ENTRIES_MAX,
    LedgerDigest,
    LedgerTotals,
    LedgerUpdate,
    SignedEntry,
)

EXCHANGE_BYTES_MAX = 512 * 1024
"""Of entries in answer to one digest; what is left comes with the next comparison."""
ENTRY_OVERHEAD_BYTES = 128
WITNESSES_MIN = 2
RECIPIENTS_MAX = 16
"""A peer of a large swarm has links to all replicas of two stages. To tell each of them everything
would cost each of them everything, so many times; so few reach all the others in three steps."""


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
        self._owed: dict[PeerId, set[EntryKey]] = {}
        """By recipient."""
        self._everybody = False
        self._last_compared: PeerId | None = None
        self._offers: dict[PeerId, LedgerTotals] = {}

    @property
    def recipients(self) -> list[PeerId]:
        return sorted(self._owed)

    @property
    def is_in_debt(self) -> bool:
        return any(self._owed.values())

    def set_recipients(self, peers: Iterable[PeerId], everybody: bool) -> list[Effect]:
        """Whom we tell from now on. `everybody`: they are all the peers there are."""
        self._everybody = everybody
        wanted = sorted(set(peers))
        fresh = [peer for peer in wanted if peer not in self._owed]
        self._owed = {peer: self._owed.get(peer, set()) for peer in wanted}
        self._offers = {peer: offer for peer, offer in self._offers.items() if peer in self._owed}
        return [self._send(peer, self._ledger.digest()) for peer in fresh]

    def owe(self, key: EntryKey) -> None:
        """Our own entry changed."""
        for debts in self._owed.values():
            debts.add(key)

    def flush(self) -> list[Effect]:
        """Pay all debts. Entries of rounds meanwhile summed up are forgotten."""
        effects: list[Effect] = []
        for peer in sorted(self._owed):
            entries = [self._ledger.get(key) for key in sorted(self._owed[peer])]
            self._owed[peer].clear()
            signed = [entry.signed for entry in entries if entry and entry.signed]
            effects += self._updates(peer, signed)
        return effects

    def compare(self) -> list[Effect]:
        """Send a digest to the recipient whose turn it is."""
        peers = sorted(self._owed)
        if not peers:
            return []
        last = self._last_compared
        later = [peer for peer in peers if last is not None and peer > last]
        self._last_compared = (later or peers)[0]
        return [self._send(self._last_compared, self._ledger.digest())]

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
                if update.relay and not self._everybody:
                    self.owe(entry.key)
        self._forgive(peer, update)
        return news

    def on_digest(self, peer: PeerId, theirs: LedgerDigest) -> list[Effect]:
        """Send what the other lacks, and our own digest if it may have more."""
        ours = self._ledger.digest(answer=True)
        effects: list[Effect] = []
        if theirs.settled < self._ledger.base:
            effects.append(self._send(peer, self._ledger.totals()))
        effects += self._updates(peer, self._ledger.lacking(theirs))
        is_equal = ours.settled == theirs.settled and ours.rounds == theirs.rounds
        if not theirs.answer and not is_equal:
            effects.append(self._send(peer, ours))
        return effects

    def on_totals(self, peer: PeerId, totals: LedgerTotals) -> list[Effect]:
        """Consider sums of rounds that we know less of; once adopted, ask for the rest."""
        if peer not in self._owed or totals.rounds <= self._ledger.base:
            return []
        self._offers[peer] = totals
        return self.consider_offers(min(WITNESSES_MIN, len(self._owed)))

    def consider_offers(self, witnesses: int) -> list[Effect]:
        """Adopt the furthest sums that so many recipients know, and ask one for the rest."""
        if len(self._offers) < witnesses:
            return []
        by_rounds = sorted(self._offers, key=lambda peer: (-self._offers[peer].rounds, peer))
        witness = by_rounds[witnesses - 1]
        if not self._ledger.adopt(self._offers[witness]):
            return []
        self._offers.clear()
        return [self._send(witness, self._ledger.digest())]

    # ----------------------------------------------------------------------------------- on disk

    def everything(self) -> list[LedgerTotals | LedgerUpdate]:
        signed = self._ledger.lacking(LedgerDigest(settled=0))
        updates = [LedgerUpdate(entries=tuple(batch)) for batch in _batches(signed)]
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

    def _forgive(self, peer: PeerId, update: LedgerUpdate) -> None:
        """The sender has what it sent: we owe it nothing of which we have no later version."""
        debts = self._owed.get(peer)
        if debts:
            debts -= {self._ledger.held_as(signed) for signed in update.entries}

    def _updates(self, peer: PeerId, entries: list[SignedEntry]) -> list[Effect]:
        """As few messages as their bounds allow."""
        return [self._update(peer, batch) for batch in _batches(entries, EXCHANGE_BYTES_MAX)]

    def _update(self, peer: PeerId, entries: list[SignedEntry]) -> Send:
        return self._send(peer, LedgerUpdate(entries=tuple(entries), relay=not self._everybody))

    @staticmethod
    def _send(peer: PeerId, message: LedgerUpdate | LedgerDigest | LedgerTotals) -> Send:
        return Send(peer, message, priority=Priority.CONTROL)


def _batches(
    entries: list[SignedEntry], bytes_max: int | None = None
) -> Iterator[list[SignedEntry]]:
    """Cut to what one message may hold; no more than `bytes_max` in all, but at least one entry."""
    batch: list[SignedEntry] = []
    batch_bytes = total_bytes = 0
    for signed in entries:
        size_bytes = len(signed.body) + ENTRY_OVERHEAD_BYTES
        total_bytes += size_bytes
        if bytes_max is not None and total_bytes > bytes_max and total_bytes > size_bytes:
            break
        is_full = batch_bytes + size_bytes > UPDATE_BYTES_MAX or len(batch) == UPDATE_ENTRIES_MAX
        if batch and is_full:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(signed)
        batch_bytes += size_bytes
    if batch:
        yield batch
