"""What a peer tells of its own work: signed when it is to be told, to whom it concerns, in time.

Three kinds of news (ledger_gossip.py says who hears which): what is held and done in a round that
others work on, too; how that stands when the round is leased, and when it has ended; what is said
of it later. When each is told: news_pace.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarmd.protocols.effects import Effect
from swarmd.protocols.head_watch import HeadWatch
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_entries import Sign, sign_entry
from swarmd.protocols.ledger_gossip import LedgerGossip
from swarmd.protocols.messages.ledger import EVERYBODY, HEADS, NOBODY
from swarmd.protocols.news_pace import NewsPace
from swarmd.protocols.own_work import OwnWork
from swarmd.protocols.round_gate import RoundGate


class Announcer:
    """Entries that changed are unsigned until `sign` or `flush`: many changes, one signature."""

    def __init__(
        self,
        ledger: Ledger,
        work: OwnWork,
        gossip: LedgerGossip,
        gate: RoundGate,
        watch: HeadWatch,
        pace: NewsPace,
        sign: Sign,
    ) -> None:
        self._ledger = ledger
        self._work = work
        self._gossip = gossip
        self._gate = gate
        self._watch = watch
        self._pace = pace
        self._sign = sign
        self._unsigned: set[int] = set()
        self._shown: dict[int, int] = {}
        """By round: the version that was last owed to everybody."""

    def changed(self, number: int, had_ended: bool, now_s: float) -> list[Effect]:
        """Our entry of a round is another one now. had_ended: the round, before that."""
        self._unsigned.add(number)
        if not had_ended:
            return self._owe(number, HEADS, now_s)
        is_last = number == self._ledger.shape.rounds - 1  # nobody may be there to be asked later
        return self._owe(number, EVERYBODY if is_last else NOBODY, now_s)

    def for_everybody(self, rounds: Iterable[int], now_s: float) -> list[Effect]:
        """Whoever waits for these rounds shall hear how they stand here, if they have not."""
        effects: list[Effect] = []
        for number in rounds:
            entry = self._ledger.get(self._work.key(number))
            if entry is not None and self._shown.get(number) != entry.version:
                self._shown[number] = entry.version
                effects += self._owe(number, EVERYBODY, now_s)
        return effects

    def forget_before(self, round_number: int) -> None:
        for number in [number for number in self._shown if number < round_number]:
            del self._shown[number]

    def plan(self, now_s: float) -> list[Effect]:
        """Debts are paid in time."""
        if not self._gossip.is_in_debt:
            return []
        return list(self._pace.plan(len(self._watch.heads), now_s, self._gossip.is_urgent))

    def flush(self, now_s: float) -> list[Effect]:
        self._pace.flushed(now_s)
        self.sign()
        return self._gossip.flush()

    def sign(self) -> None:
        for number in sorted(self._unsigned):
            if number >= self._ledger.base:
                entry = self._work.entry(number)
                self._ledger.put(sign_entry(entry, self._ledger.shape, self._sign))
        self._unsigned.clear()

    def _owe(self, number: int, reach: int, now_s: float) -> list[Effect]:
        self._gossip.owe(self._work.key(number), reach)
        return self.plan(now_s)
