"""Keeps one replica's outer rounds: snapshot and Mix1 beside the inner steps, Mix2, outer step.

For the composite
  set_replicas(present, now_s)        replicas of our stage, each with the first round it mixes in
  start(round, now_s, joins)          the worker holds the state that this round begins with
  inner_ended(round, samples, now_s)  after pipeline.finish_round: the pipeline is held
  handle(event, now_s)                all that the driver tells; what is not ours gives []
  set_witnessed, progressed, stop, statistics, round, view

Emitted
  rounds/ended     round            the outer step is in the weights: pipeline.hold(False)
  round_committed, round_partial, round_skipped    RoundReport.fields: `last_round` and more
  update_late      peer, round, code    somebody's mix (ours: peer is we) came too late
  update_rejected  peer, round, code    somebody's mix was refused, or clipped
  mixing/rejected  peer, code           a message broke a rule

Each round begins by itself when the one before has ended. Whoever waits here waits for a deadline,
never for a peer: a peer that dies or freezes costs the others at most one, once.

Silent members are not waited for in the next exchanges until they give a sign of life, late ones
until they have come in time, and one that broke a rule is left out for some rounds, by those who
saw it themselves. A newcomer has weight 0 until it has been in a mix: it takes the group's mean and
brings nothing; so does one that has fallen more than a round behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from swarmd.protocols import effects as fx
from swarmd.protocols.exchange import Exchange
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import Message
from swarmd.protocols.messages import mixing as wire
from swarmd.protocols.mix_conduct import MixConduct
from swarmd.protocols.mix_deadline import MixDeadline, grace_s
from swarmd.protocols.mix_group import WITHDRAWN
from swarmd.protocols.mix_jobs import JobDesk
from swarmd.protocols.mix_strays import WRONG_GROUP, why_not_here
from swarmd.protocols.mixing import taking_part
from swarmd.protocols.outer_round import OuterRound, Phase
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.round_report import MixReport, RoundStatistics, RoundTotals
from swarmd.protocols.round_surroundings import RoundLimits, Surroundings
from swarmd.protocols.round_view import RoundView, view_of
from swarmd.protocols.run_shape import RunShape
from swarmd.protocols.witnesses import Witnesses

TICK = "rounds/tick"
TICK_S_MIN = 0.001
WEIGHTLESS_ROUNDS_MAX = 3
"""A newcomer that nobody mixes with counts after so many rounds: if all of a stage are newcomers,
somebody has to."""
LINGERING_MAX = 4
"""Ended exchanges with means that somebody has not taken."""


class RoundKeeper:
    """See the header. `next_job_id` gives numbers that no other machine of this peer uses."""

    def __init__(
        self,
        own: PeerId,
        stage: int,
        shape: RunShape,
        rules: OuterRules,
        *,
        next_job_id: Callable[[], int],
        limits: RoundLimits | None = None,
    ) -> None:
        limits = limits or RoundLimits()
        self._own = own
        self._shape = shape
        self._effects: list[fx.Effect] = []
        self._desk = JobDesk(next_job_id, self._effects)
        self._present: dict[PeerId, int] = {own: 0}
        self._around = Surroundings(
            run_id=shape.run_id,
            rounds=shape.rounds,
            own=own,
            stage=stage,
            is_last=stage == shape.stages - 1,
            rules=rules,
            mix1_deadline=MixDeadline(limits.mix1_s_first),
            mix2_deadline=MixDeadline(limits.mix2_s_first),
            replicas=lambda number: taking_part(self._present, number),
        )
        self.totals = RoundTotals()
        self.conduct = MixConduct(self._around, self._effects)
        self._current: OuterRound | None = None
        self._lingering: list[Exchange] = []
        self._weightless_rounds = 0
        """How many more rounds this replica is a newcomer, at most."""
        self._rounds_s: deque[float] = deque(maxlen=32)
        self._witnesses = Witnesses(shape)
        self._is_held = False
        self._first_round = 0
        self._ended_round = -1
        self._armed_s: float | None = None
        self._lag_told_s = float("-inf")

    # ------------------------------------------------------------------------------ the composite

    @property
    def round(self) -> int | None:
        """Of the round that is on; None before the first and after the last."""
        return None if self._current is None else self._current.number

    @property
    def is_newcomer(self) -> bool:
        """It has weight 0 in the mixes still."""
        return self._weightless_rounds > 0

    @property
    def view(self) -> RoundView:
        return view_of(self._current, self._around)

    def set_replicas(self, present: Mapping[PeerId, int], now_s: float) -> list[fx.Effect]:
        """Active replicas of our stage, ourselves included, each with the first round that it takes
        part in by its own record (0: from the beginning)."""
        self._present = dict(present)
        around = self._around
        around.tardy &= self._present.keys()
        around.unreachable &= self._present.keys()
        around.absent = {p: code for p, code in around.absent.items() if p in self._present}
        around.caught = {p: until for p, until in around.caught.items() if p in self._present}
        return self._settle(now_s)

    def set_witnessed(self, round_number: int, samples: Mapping[PeerId, int]) -> None:
        """How many samples of a round neighbours saw each replica work on. A replica that nobody
        tells of is believed up to what the round has."""
        self._witnesses.heard(round_number, samples)

    def progressed(self, peer: PeerId) -> None:
        """A sign of life from elsewhere: it is waited for again."""
        self._around.absent.pop(peer, None)

    def start(self, round_number: int, now_s: float, *, joins: bool = False) -> list[fx.Effect]:
        """The first round of this replica, or the first since its worker was lost.

        joins: its state is another replica's, so it brings nothing that is its own yet.
        """
        self._abort()
        self._weightless_rounds = WEIGHTLESS_ROUNDS_MAX if joins else 0
        self._first_round = round_number
        self._begin(round_number, now_s)
        return self._settle(now_s)

    def inner_ended(self, round_number: int, samples: int, now_s: float) -> list[fx.Effect]:
        """The inner phase of that round is over here, with so many samples of ours in it, and the
        pipeline is held until rounds/ended. A round later than the present one: we were left
        behind; what lies between is skipped."""
        current = self._current
        if current is None or round_number < current.number:
            self._effects.append(fx.Emit("rounds/ended", {"round": round_number}))
            return self._settle(now_s)
        if current.inner_ended_s is None:
            self._is_held = True
            skips_to = round_number if round_number > current.number else None
            if skips_to is not None:
                self._weightless_rounds = WEIGHTLESS_ROUNDS_MAX
            caps = self._witnesses.weight_caps(current.number, self._present)
            current.inner_ended(samples, caps, now_s, skips_to=skips_to)
        return self._settle(now_s)

    def stop(self, now_s: float) -> list[fx.Effect]:
        """Take no further part: others need not wait. A pipeline that is held is let go."""
        if self._current is not None:
            number = self._current.number
            self._withdraw(now_s)
            if self._is_held:
                self._release(number)
        return self._settle(now_s)

    # ------------------------------------------------------------------------------------- events

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Never raises for what a peer sent: rule breakers are refused, and counted."""
        match event:
            case fx.Arrived(message=message) if isinstance(message, wire.MESSAGES):
                self._arrived(event, message, now_s)
            case fx.SendFailed(message=message) if isinstance(message, wire.MESSAGES):
                exchange = self._exchange_of(message.ref)
                if exchange is not None:
                    exchange.not_sent(event, now_s)
            case fx.ComputeDone(job_id, result):
                if not self._desk.ended(job_id, result, now_s):
                    return []
            case fx.ComputeFailed(job_id, failure):
                if not self._desk.ended(job_id, failure, now_s):
                    return []
            case fx.ComputeLost():
                self._withdraw(now_s)
                self._is_held = False
            case fx.LinkUp(peer):
                self._around.unreachable.discard(peer)
                for exchange in self._exchanges:
                    exchange.link_up(peer, now_s)
            case fx.LinkDown(peer):
                self._around.unreachable.add(peer)
                for exchange in self._exchanges:
                    exchange.link_down(peer, now_s)
            case fx.LoopLag(lag_s):
                self._lagged(lag_s, now_s)
            case fx.TimerFired(name) if name == TICK:
                self._armed_s = None
                for exchange in self._exchanges:
                    if exchange.due_s <= now_s:
                        exchange.tick(now_s)
            case _:
                return []
        return self._settle(now_s)

    def _lagged(self, lag_s: float, now_s: float) -> None:
        """Every timer that came due while we stood still tells of the same stop."""
        since_s = max(now_s - lag_s, self._lag_told_s)
        self._lag_told_s = now_s
        if self._current is not None and since_s < now_s:
            self._current.lagged(now_s - since_s, now_s)

    def _withdraw(self, now_s: float) -> None:
        if self._current is not None:
            for exchange in self._current.exchanges:
                exchange.withdraw(now_s)
        self._abort()

    def _abort(self) -> None:
        """Whatever was asked of a worker will not end, or is not wanted."""
        if self._current is not None:
            self._current.abort()
            self._current = None
        for exchange in self._lingering:
            exchange.abort()
        self._lingering.clear()
        self._desk.lost()

    # ----------------------------------------------------------------------------------- messages

    @property
    def _exchanges(self) -> list[Exchange]:
        current = [] if self._current is None else self._current.exchanges
        return [*self._lingering, *current]

    def _exchange_of(self, ref: wire.MixRef) -> Exchange | None:
        return next((one for one in self._exchanges if one.plan.ref == ref), None)

    def _arrived(self, event: fx.Arrived, message: wire.MixMessage, now_s: float) -> None:
        peer, ref = event.peer, message.ref
        if not isinstance(message, wire.NotTaken):
            self._around.absent.pop(peer, None)
        exchange = self._exchange_of(ref)
        if exchange is not None and exchange.group.get(peer) is not None:
            self._judge(peer, ref.round, exchange.heard(event, now_s))
            return
        if event.payload is not None:
            self._effects.append(fx.Release(event.payload))
        if exchange is not None:
            self._judge(peer, ref.round, "not_the_owner")
        elif isinstance(message, wire.Mean):
            self._send(peer, wire.Taken(ref=ref, part=message.part))
        elif isinstance(message, wire.Offer | wire.Part):
            self._answer_stray(peer, ref)

    def _answer_stray(self, peer: PeerId, ref: wire.MixRef) -> None:
        """An offer or a part for an exchange that is not on here: not yet, no more, or never."""
        code = why_not_here(ref, self._around, self._current, self._ended_round)
        if code is None:
            self._send(peer, wire.Later(ref=ref))
            return
        self._send(peer, wire.NotTaken(ref=ref, code=code))
        if code not in (WITHDRAWN, WRONG_GROUP):
            self._judge(peer, ref.round, code)

    def _send(self, peer: PeerId, message: Message) -> None:
        self._effects.append(fx.Send(peer, message, priority=fx.Priority.MIX))

    def _judge(self, peer: PeerId, round_number: int, code: str) -> None:
        """What a message of that round was answered with."""
        self.conduct.answered(peer, round_number, code, now_in=self._round_now)

    @property
    def _round_now(self) -> int:
        return self._ended_round if self._current is None else self._current.number

    # ------------------------------------------------------------------------------------- rounds

    def _begin(self, number: int, now_s: float) -> None:
        if number >= self._shape.rounds:
            self._current = None
            return
        self._around.grace_s = grace_s(self.round_median_s)
        self._around.disagreement_median = self.totals.disagreement_median
        self._current = OuterRound(
            number,
            self._around,
            self._desk,
            self._effects,
            weightless=self._weightless_rounds > 0,
            is_first=number == self._first_round,
            now_s=now_s,
        )
        self._current.begin(now_s)

    def _advance(self, now_s: float) -> None:
        while self._current is not None:
            current = self._current
            current.advance(now_s)
            if current.phase is not Phase.DONE:
                break
            self._end(current, now_s)
        if self._is_held and self._current is not None:
            self._release_if_started(self._current)

    def _end(self, current: OuterRound, now_s: float) -> None:
        self._desk.forget(current)
        mixes = current.mix_reports(now_s)
        self._learn_from(current, mixes)
        conduct = self.conduct
        report = current.report(mixes, conduct.late_in_round, conduct.rejected_in_round, now_s)
        conduct.begin_round()
        self.totals.add(report)
        self._rounds_s.append(now_s - current.begun_s)
        self._effects.append(fx.Emit(report.event, report.fields()))
        self._lingering += [one for one in current.exchanges if not one.is_empty]
        self._ended_round = current.last_number
        self._begin(self._ended_round + 1, now_s)
        if self._current is None:
            self._release(self._ended_round)

    def _release_if_started(self, current: OuterRound) -> None:
        """Let the pipeline go on with the round that has begun."""
        if current.inner_ended_s is None and current.is_started:
            self._release(self._ended_round)

    def _release(self, ended_round: int) -> None:
        self._is_held = False
        self._effects.append(fx.Emit("rounds/ended", {"round": ended_round}))

    def _learn_from(self, current: OuterRound, mixes: tuple[MixReport, ...]) -> None:
        """Who was silent, who was late, who was refused; and how long all of it took."""
        for exchange, mix in zip(current.exchanges, mixes, strict=True):
            self._around.saw_exchange(mix)
            for member in exchange.group.others():
                self._around.saw_member(member)
            for peer, code, _ in mix.rejected:
                self.conduct.refused(peer, self._round_now, code)
            if mix.was_late:
                self.conduct.late(self._own, current.number)
        self._around.saw_gradient(current.gradient_norm)
        if self._weightless_rounds:
            has_mixed = any(mix.mixed for mix in mixes)
            self._weightless_rounds = 0 if has_mixed else self._weightless_rounds - 1

    @property
    def round_median_s(self) -> float | None:
        return median(self._rounds_s) if self._rounds_s else None

    # --------------------------------------------------------------------------------------- time

    def _settle(self, now_s: float) -> list[fx.Effect]:
        self._advance(now_s)
        self._lingering = [one for one in self._lingering if not one.is_empty]
        while len(self._lingering) > LINGERING_MAX:
            self._lingering.pop(0).abort()
        self._set_timer(now_s)
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _set_timer(self, now_s: float) -> None:
        dues = [exchange.due_s for exchange in self._exchanges if not exchange.is_empty]
        if self._current is not None and self._current.tail_s is not None:
            dues.append(self._current.tail_s)
        due_s = min(dues, default=None)
        if due_s == self._armed_s:
            return
        self._armed_s = due_s
        if due_s is None:
            self._effects.append(fx.ClearTimer(TICK))
        else:
            self._effects.append(fx.SetTimer(TICK, max(TICK_S_MIN, due_s - now_s)))

    def statistics(self, now_s: float) -> RoundStatistics:
        around = self._around
        return RoundStatistics.of(
            self.totals,
            round=-1 if self._current is None else self._current.number,
            phase=self.view.phase,
            is_newcomer=self.is_newcomer,
            late_updates=self.conduct.late_total,
            rejected_updates=self.conduct.rejected_total,
            round_median_s=self.round_median_s,
            round_deadline_s=around.mix2_deadline.seconds,
            update_grace_s=around.grace_s,
            absent=tuple(sorted(around.absent)),
        )
