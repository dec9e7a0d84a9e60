"""Who works on which micro-batch of a round, without anybody who hands them out.

Every head (a peer of the first stage) takes micro-batches by a rule that all heads share
(lease_choice.py) and tells the others what it holds and has done (ledger_gossip.py); every peer,
head or not, keeps a replica of the ledger that follows (ledger.py). The promises:

  * every index of every round ends, once: done, or given up for good and reported;
  * what a head holds when it dies or falls silent is free again, what it gives back, at once;
  * two heads may still do the same micro-batch, when one is taken for dead that is not, or news is
    slow. It counts once, and that it was done twice is counted, too.

Rounds. Round t+1 opens when in our view all of round t is leased or has ended, or t's deadline has
passed (round_gate.py): no single head ends a round early, and at its end nobody pauses.

Held-out micro-batches belong to the round that ended last. They are split over the heads like the
others, scored once each, never leased, never counted.

How to use it: call the methods, then `take_effects`, which the calls gather; give `handle` the
messages of messages/ledger.py and the timers "leases/...". Ask `next_lease` again after any event.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from swarmd.protocols.announcer import Announcer
from swarmd.protocols.audit import Audit, audit
from swarmd.protocols.effects import Arrived, Effect, Emit, Event, SetTimer, Started, TimerFired
from swarmd.protocols.head_watch import HeadWatch
from swarmd.protocols.held_out import HeldOutTurns
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.lease_limits import LeaseLimits
from swarmd.protocols.lease_taker import LeaseTaker
from swarmd.protocols.ledger import Ledger, Verify
from swarmd.protocols.ledger_entries import Entry, Sign
from swarmd.protocols.ledger_gossip import LedgerGossip, choose_audience
from swarmd.protocols.messages.ledger import (
    LEASES_OPEN_MAX,
    HeldOutScore,
    LedgerDigest,
    LedgerHeld,
    LedgerTotals,
    LedgerUpdate,
    LedgerWanted,
)
from swarmd.protocols.news_pace import COALESCE_S, FLUSH, NewsPace
from swarmd.protocols.own_work import OwnWork, check_result
from swarmd.protocols.round_gate import RoundGate
from swarmd.protocols.run_shape import RunShape

DIGEST, RETRY = "leases/digest", "leases/retry"


class LeaseBook:
    """Leases of one peer and its replica of the ledger, `ledger`, which answers what is done, who
    did it and with what loss."""

    def __init__(
        self,
        own: PeerId,
        incarnation: int,
        shape: RunShape,
        limits: LeaseLimits,
        *,
        sign: Sign,
        verify: Verify,
    ) -> None:
        """sign: our key's signature over a body. verify: (peer, body, signature) -> is it right?"""
        self.own = own
        self._shape = shape
        self._limits = limits
        self.ledger = Ledger(shape, verify)
        self._gossip = LedgerGossip(self.ledger, own, incarnation)
        self._work = OwnWork(own, incarnation, shape)
        self._gate = RoundGate(limits, shape.rounds)
        self._watch = HeadWatch(own, incarnation, self.ledger, limits)
        pace = NewsPace(limits, self.ledger, self._gate)
        self._taker = LeaseTaker(own, self.ledger, self._work, self._watch, pace, limits)
        self._announcer = Announcer(
            self.ledger, self._work, self._gossip, self._gate, self._watch, pace, sign
        )
        self._held_out = HeldOutTurns(own, self.ledger, self._watch)
        self._told_ended = 0
        self._unsaid: list[int] = []
        """Rounds whose receipts are told after the next flush."""
        self._news_s = -math.inf
        """When the rounds that are open here were last heard of."""
        self._digest_s = limits.digest_s
        self._effects: list[Effect] = []
        self.counters: Counter[str] = Counter()
        """This life's leases: how they began (granted, stolen, returned to us after we had given it
        back), how they ended (done, expired, lost, given_back; the last three in `_samples`, too);
        too_late_to_count."""

    # ------------------------------------------------------------------------------------ input

    def set_heads(self, heads: Iterable[PeerId], now_s: float) -> None:
        """The live peers of the first stage, as the roster has them now."""
        self._watch.set_heads(heads, now_s)
        self._look(now_s)

    def set_recipients(self, peers: Iterable[PeerId], *, present: int) -> None:
        """The peers that we have a link to, of how many others there are."""
        linked = [peer for peer in peers if peer != self.own]
        self._digest_s = self._limits.digest_after_s(present)
        audience = choose_audience(self.own, linked, self._watch.heads, present)
        self._effects += self._gossip.set_audience(audience)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Raises RemoteProtocolError, with nothing changed, for a message that breaks the rules."""
        match event:
            case Started():
                self._news_s = now_s
                self._effects.append(SetTimer(DIGEST, self._digest_s))
            case Arrived(peer=peer, message=LedgerUpdate() as update):
                for before, entry in self._gossip.on_update(peer, update):
                    self._see(before, entry, now_s)
                self._effects += self._announcer.plan(now_s)
            case Arrived(peer=peer, message=LedgerDigest() as digest):
                self._announcer.sign()
                self._effects += self._gossip.on_digest(peer, digest)
            case Arrived(peer=peer, message=LedgerHeld() as held):
                self._announcer.sign()
                self._effects += self._gossip.on_held(peer, held)
            case Arrived(peer=peer, message=LedgerWanted() as wanted):
                self._announcer.sign()
                self._effects += self._gossip.on_wanted(peer, wanted)
            case Arrived(peer=peer, message=LedgerTotals() as totals):
                self._effects += self._gossip.on_totals(peer, totals)
            case TimerFired(name=name) if name == FLUSH:
                self._effects += self._announcer.flush(now_s)
                self._tell_seen([self._unsaid.pop() for _ in self._unsaid[:]], now_s)
            case TimerFired(name=name) if name == DIGEST:
                self._announcer.sign()
                self._effects += self._gossip.compare()
                if now_s - self._news_s > self._gossip.offers_after_s(self._limits, self._digest_s):
                    self._effects += self._gossip.consider_offers(1)
                self._effects.append(SetTimer(DIGEST, self._digest_s))
        self._look(now_s)
        return self.take_effects()

    def take_effects(self) -> list[Effect]:
        """What the calls since the last one want done."""
        effects, self._effects = self._effects, []
        return effects

    # ----------------------------------------------------------------------------------- leases

    def next_lease(self, now_s: float) -> tuple[MicroBatchId | None, str]:
        """A micro-batch to work on now, and why this one: granted, returned (by us), stolen.

        Without one: not_a_head, run_complete, round_not_open (all of the open rounds is leased),
        waiting_for_heads (what is left is for others to take, or their leases to end),
        too_many_leases.
        """
        self._look(now_s)
        if self.is_complete:
            return None, "run_complete"
        if self.own not in self._watch.heads:
            return None, "not_a_head"
        if self._work.held_count() >= LEASES_OPEN_MAX:
            return None, "too_many_leases"
        is_last = self._gate.newest == self._shape.rounds - 1
        reason = "waiting_for_heads" if is_last else "round_not_open"
        for number in range(self.ledger.settled, self._gate.newest + 1):
            choice = self._taker.choose(number, self._gate.began_s(number), now_s)
            if choice.index is not None:
                micro_batch = MicroBatchId(number, choice.index)
                self._work.grant(micro_batch)
                self.counters[choice.reason] += 1
                self._changed(number, now_s)
                return micro_batch, choice.reason
            if choice.reason == "waiting_for_heads":
                reason = choice.reason
                retry_in_s = max(COALESCE_S, choice.retry_in_s or self._taker.turn_s(now_s))
                self._effects.append(SetTimer(RETRY, retry_in_s))
        return None, reason

    def done(self, micro_batch: MicroBatchId, loss_sum: float, samples: int, now_s: float) -> None:
        """It ended with a gradient, or, held out, with a score.

        loss_sum: over its samples, sum of the mean loss per token, nats.
        Raises LocalProtocolError: unknown_lease if we do not hold it, malformed for figures that
        cannot be.
        """
        if micro_batch.held_out:
            self._score(micro_batch, loss_sum, samples, now_s)
            return
        check_result(micro_batch, loss_sum, samples, {self._shape.samples_of(micro_batch)})
        self._work.done(micro_batch, loss_sum)
        self.counters["done"] += 1
        self._changed(micro_batch.round, now_s)

    def expired(self, micro_batch: MicroBatchId, reason: str, now_s: float) -> None:
        """It failed or took too long, and is free again.

        Raises LocalProtocolError(unknown_lease).
        """
        self._end_without_gradient(micro_batch, "expired", reason, now_s)

    def lost(self, micro_batch: MicroBatchId, reason: str, now_s: float) -> None:
        """Nobody can do it (it gives no finite loss, say): given up for good, a gap in the audit.

        Raises LocalProtocolError(unknown_lease).
        """
        self._end_without_gradient(micro_batch, "lost", reason, now_s)

    def give_back(self, micro_batch: MicroBatchId, now_s: float) -> None:
        """Not begun, and not to be. Raises LocalProtocolError(unknown_lease)."""
        self._end_without_gradient(micro_batch, "given_back", "", now_s)

    def give_back_all(self, now_s: float) -> list[MicroBatchId]:
        """Every open lease is free again, and the others are told at once. Returns them."""
        held = self._work.held()
        for micro_batch in held:
            self.give_back(micro_batch, now_s)
        rounds = range(max(0, self.ledger.settled - 1), self._gate.newest + 1)
        self._tell_seen(rounds, now_s)
        self._effects += self._announcer.for_everybody(rounds, now_s)
        self._effects += self._announcer.flush(now_s)
        return held

    def held(self) -> list[MicroBatchId]:
        """Our open leases, in order."""
        return self._work.held()

    # --------------------------------------------------------------------------------- receipts

    def saw(
        self, micro_batch: MicroBatchId, peer: PeerId, stage: int, role: int, is_good: bool = True
    ) -> None:
        """A neighbour in the pipeline did its part; told when the round has ended."""
        note = self._work.seen.add if is_good else self._work.seen.take_back
        note(micro_batch, peer, stage, role)

    def _tell_seen(self, rounds: Iterable[int], now_s: float) -> None:
        for number in filter(self._work.tell_seen, rounds):
            self._changed(number, now_s)

    # --------------------------------------------------------------------------------- held out

    def next_held_out(self, now_s: float) -> MicroBatchId | None:
        """A forward-only micro-batch of the round that ended last, or None."""
        self._look(now_s)
        ended_s = self._gate.ended_s(self.ledger.settled - 1)
        return self._held_out.next(ended_s, self._taker.turn_s(now_s), now_s)

    def _score(
        self, micro_batch: MicroBatchId, loss_sum: float, samples: int, now_s: float
    ) -> None:
        possible = range(1, self._shape.micro_batch_samples + 1)
        check_result(micro_batch, loss_sum, samples, possible)
        score = HeldOutScore(index=micro_batch.index, samples=samples, loss_sum=loss_sum)
        self._work.score(micro_batch, score)
        self._changed(micro_batch.round, now_s)

    # ---------------------------------------------------------------------------------- answers

    @property
    def is_complete(self) -> bool:
        """Every index of every round has ended."""
        return self.ledger.settled >= self._shape.rounds

    def round_open(self, now_s: float) -> int:
        """The newest round whose micro-batches may be worked on."""
        self._look(now_s)
        return self._gate.newest

    def seen_since_s(self, round_number: int) -> float | None:
        """When it began; None: not yet, or before we were there to see it."""
        return self._gate.seen_since_s(round_number)

    def is_ended(self, round_number: int) -> bool:
        """Each of its micro-batches is done or lost."""
        return self.ledger.is_ended(round_number)

    def held_out_loss(self, round_number: int) -> float | None:
        """Mean loss per token over the held-out micro-batches scored so far, nats."""
        return self.ledger.held_out_loss(round_number)

    def held_out_is_scored(self, round_number: int) -> bool:
        return self.ledger.held_out_is_scored(round_number)

    def all_leased(self, round_number: int, now_s: float) -> bool:
        """Each of its micro-batches has ended or is under a lease that counts."""
        may_be = self.ledger.may_be_leased(round_number)
        return may_be and not self._taker.free(round_number, now_s)[0]

    def lease_s(self) -> float:
        """How long a lease of ours lasts in the eyes of others, as far as we can tell."""
        return self._watch.lease_s(self.own)

    def audit(self, now_s: float) -> Audit:
        numbers = range(self.ledger.settled, self._gate.newest + 1)
        held = [
            self._work.leased(number) | self._watch.held_by_others(number, now_s)[0]
            for number in numbers
        ]
        return audit(self.ledger, sum(map(len, held)))

    # -------------------------------------------------------------------------------- on disk

    def save(self) -> list[LedgerTotals | LedgerUpdate]:
        """The whole ledger, to be written beside a checkpoint."""
        self._announcer.sign()
        return self._gossip.everything()

    def restore(self, saved: Sequence[LedgerTotals | LedgerUpdate], rounds: int) -> None:
        """Take up what `save` gave, as far as it concerns rounds below `rounds`. Before Started.

        Raises RemoteProtocolError if it is not what a ledger of this run can be, and
        LocalProtocolError(wrong_round) if it sums up rounds that are wanted anew.
        """
        self._gossip.restore(saved, rounds)
        self._told_ended = self.ledger.settled
        for number in self.ledger.rounds_in_detail():
            for entry in self.ledger.entries(number):
                self._watch.meet(entry)

    # ------------------------------------------------------------------------------------- news

    def _end_without_gradient(
        self, micro_batch: MicroBatchId, how: str, reason: str, now_s: float
    ) -> None:
        if micro_batch.held_out:
            self._held_out.failed(micro_batch)
            return
        if how == "lost":
            self._work.lose(micro_batch)
        else:
            self._work.give_back(micro_batch)
        self.counters.update({how: 1, f"{how}_samples": self._shape.samples_of(micro_batch)})
        fields = {"micro_batch": str(micro_batch), "reason": reason}
        name = {"lost": "micro_batch_lost", "expired": "lease_expired"}.get(how, "lease_returned")
        self._effects.append(Emit(name, fields))
        self._changed(micro_batch.round, now_s)

    def _changed(self, number: int, now_s: float) -> None:
        """Our own entry of a round is another one now."""
        if number < self.ledger.base:
            self.counters["too_late_to_count"] += 1
            return
        before, had_ended = self.ledger.get(self._work.key(number)), self.is_ended(number)
        entry = self._work.entry(number)
        self.ledger.put(entry)
        self._see(before, entry, now_s)
        self._effects += self._announcer.changed(number, had_ended, now_s)
        self._look(now_s)

    def _see(self, before: Entry | None, entry: Entry, now_s: float) -> None:
        """An entry became a newer one."""
        self._watch.see(before, entry, now_s)
        if entry.key.round <= self.ledger.settled + 1:
            self._news_s = now_s
        if entry.taken:
            self._gate.began(entry.key.round, now_s)

    def _look(self, now_s: float) -> None:
        """See what has ended and what may open."""
        settled = self.ledger.settled
        self._told_ended = max(self._told_ended, self.ledger.base)
        for number in range(self._told_ended, settled):
            self._gate.ended(number, now_s)
            fields = {
                "round": number,
                "loss": self.ledger.loss(number),
                "micro_batches": len(self.ledger.done(number)),
                "samples_twice": self.ledger.samples_twice(number),
            }
            self._effects.append(Emit("round_ended", fields))
        if settled > self._told_ended:
            ended = range(self._told_ended, settled)
            self._told_ended = settled
            self._effects += self._announcer.for_everybody(ended, now_s)
            if self._gossip.audience.is_large and self._gossip.is_in_debt:
                self._unsaid += ended  # receipts are many: what all wait for goes without them
            else:
                self._tell_seen(ended, now_s)
            self._tidy()
            if self.is_complete:
                self._effects.append(Emit("run_complete", {"rounds": settled}))
        is_all_leased = partial(self.all_leased, now_s=now_s)
        opened = self._gate.look(settled, self._gossip.newest_told, is_all_leased, now_s)
        if opened:
            self._effects.append(Emit("round_opened", {"round": self._gate.newest}))
            shut = [number - 1 for number in opened if number > settled]
            self._effects += self._announcer.for_everybody(shut, now_s)

    def _tidy(self) -> None:
        """Forget what belongs to rounds that are known in sum only now."""
        self._announcer.sign()
        self.ledger.roll_up()
        base = self.ledger.base
        self._work.forget_before(base)
        self._gate.forget_before(base)
        self._announcer.forget_before(base)
        self._watch.forget_before(base)
        self._held_out.forget_before(base)
        self._taker.forget_before(base)
