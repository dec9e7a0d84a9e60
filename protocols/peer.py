"""One peer: the machines of floor 0 composed into a single one, run for real and in the simulator.

    greeting     who may talk to us          membership   who is there
    work         the stage we hold           leases       which micro-batches are whose
    ending       how we stop                 explain      the one reason that is shown

This file routes events to their owners and tells each machine what it needs of the others: the
roster's view becomes heads, candidates and coverage, the links become who can be asked. It decides
nothing that one of them could decide alone.

Told upwards (Emit): the names of `swarmd.event`, and `peer_ended {code}`: this peer is done.
"""

from __future__ import annotations

import random
from collections import Counter

from swarmd.protocols import effects as fx
from swarmd.protocols.coverage import Coverage, SwarmView, coverage_of
from swarmd.protocols.ending import GOODBYE_S, Ending
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.explain import choose_reason
from swarmd.protocols.greeting import Greeting
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import EMPTY
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages import control, gossip, is_of, ledger, mixing
from swarmd.protocols.messages import pipeline as pipeline_messages
from swarmd.protocols.messages import state as state_messages
from swarmd.protocols.operator_words import obey
from swarmd.protocols.paths import Paths
from swarmd.protocols.pauses import Pauses
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.reasons import Reason, SecondsByReason
from swarmd.protocols.roster import Liveness, RosterView
from swarmd.protocols.situation import situation_of
from swarmd.protocols.stage_work import StageWork
from swarmd.protocols.standstill import Standstill
from swarmd.protocols.traffic import Traffic

REVIEW = "peer/review"
REVIEW_S = 0.5
"""How often what nobody announces is looked at: progress to tell, deadlines that passed."""
HELD_OUT_S = 20.0
"""After the last micro-batch, the last round's held-out loss is waited for at most so long."""


class PeerMachine:
    """See the header. The parts' `statistics` are read by the daemon for status."""

    def __init__(
        self,
        setup: PeerSetup,
        membership: Membership,
        leases: LeaseBook,
        rng: random.Random,
        now_s: float,
    ) -> None:
        self.setup = setup
        self.shape = setup.shape
        self.peer = membership.peer
        self.membership = membership
        self.leases = leases
        self.work = StageWork(setup, membership.peer, leases, rng)
        incarnation = membership.record.incarnation
        self.greeting = Greeting(
            setup.shape, setup.run_body, incarnation, setup.agent, setup.tokeniser
        )
        self.traffic = Traffic(setup.shape)
        self.ending = Ending()
        self.reasons = SecondsByReason(Reason(code="starting", text="joining"), now_s)
        self.coverage: Coverage = coverage_of(membership.view(now_s), setup.shape.stages)
        self.rejected: Counter[tuple[PeerId, str]] = Counter()
        self.paths = Paths()
        self.failed: Reason | None = None
        self.pauses = Pauses()
        self.standstill = Standstill(self.peer, setup.stall_after_s, now_s)
        self.was_with_others = False
        self.missing_since_s: float | None = None
        self.alone_since_s: float | None = None
        self.was_bid_farewell = False
        """Whoever was there said goodbye: nothing is wrong with our network."""
        self._seen: tuple[int, frozenset[PeerId]] = (-1, frozenset())
        self._revision = -1
        self._all_done_s: float | None = None
        self._located: dict[PeerId, tuple[str, ...]] = {}

    # ------------------------------------------------------------------------------------- events

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        try:
            effects = self._dispatch(event, now_s)
        except RemoteProtocolError as error:
            assert isinstance(event, fx.Arrived), "only a peer can break the rules for a peer"
            effects = self._reject(event.peer, error.code)
        effects += self._react(now_s)
        if not _is_hearsay(event):
            effects += self._explain(now_s)
        for effect in effects:
            if isinstance(effect, fx.Send):
                self.traffic.sent(effect.peer, effect.message, effect.payload is not None)
        return effects

    def _dispatch(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Arrived():
                return self._arrived(event, now_s)
            case fx.Malformed(peer, code):
                return self._reject(peer, code)
            case fx.Started():
                return self._started(now_s)
            case fx.LinkUp(peer):
                return self.greeting.linked(peer, self.membership.signed, now_s)
            case fx.LinkDown(peer):
                self.greeting.lost(peer)
                effects = self.membership.handle(event, now_s)
                return effects + self.work.handle(event, now_s)
            case fx.DialFailed(peer, causes):
                self.paths.failed(peer, causes, now_s)
                return self.membership.handle(event, now_s) + self.work.handle(event, now_s)
            case fx.TimerFired(name):
                return self._timer(name, event, now_s)
            case fx.LoopLag():
                return self.membership.handle(event, now_s) + self.work.handle(event, now_s)
            case fx.Command():
                return obey(self, event, now_s)
        return self.work.handle(event, now_s)

    def _started(self, now_s: float) -> list[fx.Effect]:
        effects = self.membership.handle(fx.Started(), now_s)
        effects += self.leases.handle(fx.Started(), now_s)
        for peer, addresses in sorted(self.setup.entries.items()):
            effects += self.membership.introduce(peer, addresses)
        return [*effects, fx.SetTimer(REVIEW, REVIEW_S)]

    def _timer(self, name: str, event: fx.Event, now_s: float) -> list[fx.Effect]:
        owner = name.split("/", 1)[0]
        if owner == "membership":
            return self.membership.handle(event, now_s)
        if owner == "leases":
            return self.leases.handle(event, now_s)
        if name == REVIEW:
            return [fx.SetTimer(REVIEW, REVIEW_S), *self._review(now_s)]
        return self.work.handle(event, now_s)

    def _reject(self, peer: PeerId, code: str) -> list[fx.Effect]:
        self.rejected[peer, code] += 1
        return [fx.Emit("message_rejected", {"peer": peer, "code": code})]

    # ----------------------------------------------------------------------------------- messages

    def _arrived(self, event: fx.Arrived, now_s: float) -> list[fx.Effect]:
        peer, message = event.peer, event.message
        match message:
            case control.Hello():
                return self._heard_hello(peer, message, now_s)
            case control.Refusal():
                return self.greeting.heard_refusal(peer, message)
            case control.RunRequest():
                return self.greeting.heard_run_request(peer, message)
            case control.TokeniserRequest():
                return self.greeting.heard_tokeniser_request(peer, message)
            case control.RunDescription() | control.TokeniserPart() | control.Goodbye():
                return []
        if peer not in self.greeting.greeted:
            self.rejected[peer, "not_admitted"] += 1
            return [] if event.payload is None else [fx.Release(event.payload)]
        if is_of(message, gossip):
            return self.membership.handle(event, now_s)
        heard = self.membership.heard(peer, now_s)
        if isinstance(message, control.DrainAsked):
            if peer not in self.setup.operators:
                raise RemoteProtocolError("not_the_owner", f"{peer} is no operator of this run")
            if message.incarnation != self.membership.record.incarnation:
                return heard
            return heard + obey(self, fx.Command("drain"), now_s)
        if is_of(message, ledger):
            return heard + self.leases.handle(event, now_s)
        if any(is_of(message, kind) for kind in (pipeline_messages, state_messages, mixing)):
            self.traffic.arrived(peer, message, event.payload is not None)
            return heard + self.work.arrived(event, now_s)
        return heard if event.payload is None else [*heard, fx.Release(event.payload)]

    def _heard_hello(self, peer: PeerId, hello: control.Hello, now_s: float) -> list[fx.Effect]:
        accepted, effects = self.greeting.heard_hello(peer, hello)
        if not accepted:
            return effects
        self.paths.found(peer)
        if not hello.is_reply:
            effects += self.greeting.hello(peer, self.membership.signed, is_reply=True)
        effects += self.membership.handle(fx.LinkUp(peer), now_s)
        if hello.record is not None:
            effects += self.membership.learn(hello.record, peer, now_s)
        return effects + self.work.handle(fx.LinkUp(peer), now_s)

    # ------------------------------------------------------------------------------------ reaction

    def _react(self, now_s: float) -> list[fx.Effect]:
        """What follows from the new state of things, after every event."""
        effects: list[fx.Effect] = []
        seen = (self.membership.roster.shape, frozenset(self.greeting.greeted))
        if seen != self._seen:  # progress alone waits for the review
            self._seen = seen
            effects += self._swarm_changed(self.membership.view(now_s), seen[1], now_s)
        effects += self.work.open_rounds(now_s)
        if self.pauses.current is not None:
            effects += self.work.rest()
        elif self.may_train and not self.ending.takes_no_work and not self._is_wedged:
            effects += self.work.lead(now_s)
        effects += self._end(now_s)
        fields = self.work.take_fields()
        if fields:
            effects += self.membership.update_own(now_s, **fields)
        return effects + self.leases.take_effects()

    def _swarm_changed(
        self, view: RosterView, linked: frozenset[PeerId], now_s: float
    ) -> list[fx.Effect]:
        """The roster or our links are not what they were."""
        self._look_who_covers(view)
        others = [peer.peer for peer in view.present() if peer.peer != self.peer]
        self.was_with_others = self.was_with_others or bool(others)
        if others:
            self.alone_since_s = None
        elif self.alone_since_s is None:
            self.alone_since_s = now_s
            gone = [peer.liveness for peer in view.peers if peer.peer != self.peer]
            self.was_bid_farewell = all(liveness is Liveness.LEFT for liveness in gone)
        if not self.coverage.missing:
            self.missing_since_s = None
        elif self.missing_since_s is None:
            self.missing_since_s = now_s
        told = tuple(peer for peer in others if peer in linked)
        self.leases.set_heads(self.coverage.heads, now_s)
        self.leases.set_recipients(told, present=len(others))
        self.membership.want_links(self.work.states.wants_links(self.coverage))
        effects = self._review_work(view, linked, now_s)
        return effects + self._locate(view)

    def _review_work(
        self, view: RosterView, linked: frozenset[PeerId], now_s: float
    ) -> list[fx.Effect]:
        swarm = SwarmView(view, self.coverage, linked, self.has_begun)
        return self.work.review(swarm, now_s)

    def _look_who_covers(self, view: RosterView) -> None:
        if view.revision != self._revision:
            self._revision = view.revision
            self.coverage = coverage_of(view, self.shape.stages)

    def _locate(self, view: RosterView) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for peer in view.present():
            bulk_addresses = peer.record.bulk_addresses
            if peer.peer != self.peer and self._located.get(peer.peer) != bulk_addresses:
                self._located[peer.peer] = bulk_addresses
                effects.append(fx.Locate(peer.peer, bulk_addresses))
        return effects

    def _review(self, now_s: float) -> list[fx.Effect]:
        """Every so often: tell the others how far we are, and look again at our stage."""
        view, linked = self.membership.view(now_s), frozenset(self.greeting.greeted)
        self._look_who_covers(view)
        effects = self.greeting.review(now_s)
        effects += self._review_work(view, linked, now_s)
        self.membership.want_links(self.work.states.wants_links(self.coverage))
        if self.pauses.is_over(now_s):
            effects += self.set_draining(self.takes_no_work, now_s)
        effects += self._mind_progress(view, now_s)
        return effects + self.membership.update_own(now_s, **self.work.progress(now_s))

    def _mind_progress(self, view: RosterView, now_s: float) -> list[fx.Effect]:
        """Who alone stands still keeps no work from the others."""
        was_alone = self.standstill.is_ours_alone
        settled, counted = self.leases.ledger.settled, self.membership.record.micro_batches
        ended = len(self.leases.ledger.ended(settled)) if settled < self.shape.rounds else 0
        self.standstill.look(
            view,
            (settled, ended, self.coverage.furthest_step, counted, self.work.round),
            may_move=self.has_begun and not self.leases.is_complete and not self.takes_no_work,
            is_covered=not self.coverage.missing,
            rounds_done=settled,
            round_s=self.work.round_median_s,
            now_s=now_s,
        )
        if self.standstill.is_ours_alone and not was_alone:
            self.leases.give_back_all(now_s)
        return self.leases.take_effects()

    def rejected_of(self, peer: PeerId) -> dict[str, int]:
        """What was refused of this peer, by code: its messages, its work, its news of others."""
        found = Counter(self.membership.judgement.rejected.get(peer, {}))
        for (who, code), count in [*self.rejected.items(), *self.work.rejected.items()]:
            if who == peer:
                found[code] += count
        return {code: found[code] for code in sorted(found)}

    @property
    def _is_wedged(self) -> bool:
        """Our worker has work, and nothing of it ends while others get on. As a head we would only
        keep micro-batches from them; whatever ends shows that it works again."""
        return self.standstill.is_ours_alone and self.work.is_computing

    @property
    def may_train(self) -> bool:
        """Every stage is manned, and as many peers are there as the run wants to begin."""
        if self.coverage.missing:
            return False
        return self.has_begun or self.coverage.active_count >= self.shape.peers_min

    @property
    def has_begun(self) -> bool:
        """Whether anybody has trained: by the ledger, what peers say of themselves, or our disk."""
        entries = self.leases.ledger
        return (
            entries.settled > 0
            or entries.done(0) != EMPTY
            or self.coverage.furthest_step > 0
            or self.work.round > 0
            or self.setup.has_history
            or self.coverage.is_saved
        )

    # ------------------------------------------------------------------------------- the operator

    @property
    def takes_no_work(self) -> bool:
        return self.pauses.current is not None or self.ending.takes_no_work

    def set_draining(self, on: bool, now_s: float) -> list[fx.Effect]:
        effects = self.work.set_draining(on, now_s)
        view, linked = self.membership.view(now_s), frozenset(self.greeting.greeted)
        effects += self._review_work(view, linked, now_s)
        phase = "draining" if on else "active" if self.work.is_held else "joining"
        return [*effects, *self.membership.update_own(now_s, phase=phase)]

    # -------------------------------------------------------------------------------------- the end

    def _end(self, now_s: float) -> list[fx.Effect]:
        """Notice the run's end, and go on with a stop that is under way."""
        effects: list[fx.Effect] = []
        if self.ending.finishes is not None and self._has_finished(self.ending.finishes):
            self.ending.finishes = None
            effects += obey(self, fx.Command("leave"), now_s)
        if self._is_complete(now_s) and self.ending.complete(now_s):
            effects += self.membership.update_own(now_s, insist=True, round=self.shape.rounds)
        begun = self.ending.advance(
            now_s,
            is_empty=self.work.is_empty and not self._is_handing_over(now_s),
            others_know=self.ending.phase == "complete" and self._others_know_the_end(now_s),
            stays=self.setup.stays,
        )
        if begun == "leaving":
            handed = {"handed_to": self.work.states.handed_to}
            effects += [fx.Emit("drain_ended", handed), *self.say_goodbye(now_s)]
        elif begun == "gone":
            effects.append(fx.Emit("peer_ended", {"code": self.ending.code}))
        return effects

    def _is_handing_over(self, now_s: float) -> bool:
        is_going = self.ending.leaves or self.ending.phase == "complete"
        states, round_number = self.work.states, self.work.round
        return is_going and states.is_handing_over(self.coverage, round_number, now_s)

    def _has_finished(self, round_number: int) -> bool:
        """Its outer step is in the weights; who holds no stage has nothing to finish."""
        return self.work.round > round_number or not self.work.is_held

    def say_goodbye(self, now_s: float) -> list[fx.Effect]:
        return [*self.membership.leave(now_s), fx.SetTimer(REVIEW, GOODBYE_S)]

    def _is_complete(self, now_s: float) -> bool:
        """Every micro-batch has ended, and the last held-out loss is known or overdue."""
        if not self.leases.is_complete:
            return False
        if self._all_done_s is None:
            self._all_done_s = now_s
        is_scored = self.leases.held_out_is_scored(self.shape.rounds - 1)
        return is_scored or now_s - self._all_done_s >= HELD_OUT_S

    def _others_know_the_end(self, now_s: float) -> bool:
        present = self.membership.view(now_s).present()
        return all(view.record.round >= self.shape.rounds for view in present)

    def _explain(self, now_s: float) -> list[fx.Effect]:
        reason = choose_reason(situation_of(self, now_s))
        if not self.reasons.change(reason, now_s):
            return []
        return [fx.Emit("state_changed", {"state": reason.state, "code": reason.code})]


def _is_hearsay(event: fx.Event) -> bool:
    """What others merely tell is explained at the next review or event of our own: choosing the
    reason takes as long as handling the news, and news is most of what arrives."""
    return isinstance(event, fx.Arrived) and (
        is_of(event.message, ledger) or is_of(event.message, gossip)
    )
