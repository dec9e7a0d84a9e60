"""One mix of one round in one group, at one member. Ends by its deadline and says who was in.

A butterfly: the vector is cut into parts; each member reduces some of them for all (reducer.py),
sends its own values of the others to their reducers and takes back means (own_parts.py). So a
partial result is a correct average of what it names, part by part, and nobody has to agree with
anybody about who is alive. What a reducer leaves undone that dies or falls silent is reduced by the
next in line.

Who is in the group is in the plan; a member that has offered is there. One that is silent, out of
reach, late or of another opinion about the group is out, with the code that the round's report
shows. A sign of life brings the silent back. The bytes never come here: parts are slots, packed,
reduced and taken by jobs.

For the owner (rounds.py): `begin`, then every message of this exchange to `heard`, links to
`link_up`, `link_down`, `not_sent`, and `tick` at `due_s`. `is_decided`: our own parts have all come
to their end, and the exchange closes itself; or it is closed before. What is left then are means
that others have not taken yet, until `is_empty`.
"""

from __future__ import annotations

from swarmd.protocols import effects as fx
from swarmd.protocols.early_parts import EarlyParts
from swarmd.protocols.exchange_clock import ExchangeClock
from swarmd.protocols.exchange_plan import ExchangePlan, ExchangeRecord
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef
from swarmd.protocols.messages import Message
from swarmd.protocols.messages import mixing as wire
from swarmd.protocols.mix_deadline import ExchangeTimes, MixDeadline
from swarmd.protocols.mix_group import (
    LATE,
    REVIVABLE,
    SILENT,
    UNREACHABLE,
    WITHDRAWN,
    Member,
    MixGroup,
)
from swarmd.protocols.mix_jobs import JobDesk
from swarmd.protocols.own_parts import OwnParts
from swarmd.protocols.reducer import ReducedPart, Reducer

NOT_TAKEN_CODES = (
    LATE, WITHDRAWN, "wrong_group", "wrong_shape", "wrong_dtype", "wrong_stage", "wrong_round",
)  # fmt: skip
"""For a whole exchange. What a peer says ends up in our status, so it may not say anything."""


class Exchange:
    """See the header. Effects go to the list shared with its owner."""

    def __init__(
        self,
        plan: ExchangePlan,
        times: ExchangeTimes,
        deadline: MixDeadline,
        desk: JobDesk,
        effects: list[fx.Effect],
    ) -> None:
        self.plan = plan
        self.is_closed = False
        self._effects = effects
        self.group = MixGroup(
            plan.members,
            plan.own,
            excluded=plan.excluded,
            tardy=plan.tardy,
            weight_caps=plan.weight_caps,
            patience_s=times.patience_s,
            now_s=times.start_s,
        )
        self._parts = OwnParts(
            plan,
            self.group,
            desk,
            effects,
            self.send,
            on_taken=self.taken,
            on_change=self.changed,
        )
        own_duty = self._parts.to_reduce()
        self._reducer = Reducer(plan, self.group, desk, effects, self, own_duty)
        self._early = EarlyParts(plan.window, effects)
        self._ahead = EarlyParts(plan.window, effects)
        """Parts brought to us since their reducer is gone, which we have not seen yet."""
        self.clock = ExchangeClock(times, self.group, deadline, desk.pace)

    # ----------------------------------------------------------------------------------- the owner

    @property
    def record(self) -> ExchangeRecord:
        return self._parts.record

    @property
    def is_decided(self) -> bool:
        return self._parts.is_decided

    @property
    def is_empty(self) -> bool:
        """Closed, and nothing is held for anybody."""
        return self.is_closed and self._parts.is_idle and not self._reducer.means

    @property
    def due_s(self) -> float:
        """When `tick` wants to be called next."""
        has_again = self._parts.has_again or self._reducer.has_again
        return self.clock.due_s(is_closed=self.is_closed, has_again=has_again)

    def begin(self, now_s: float) -> None:
        for member in self.group.others():
            self._ask(member, now_s)
        self.changed(now_s)

    def tick(self, now_s: float) -> None:
        """Look at what nobody tells: silence, and deadlines."""
        if self.is_closed:
            if now_s >= self.due_s:
                self._reducer.drop_means()
            return
        self.clock.look_at_pace()
        for member in self.group.others():
            self._look_at(member, now_s)
        if now_s >= self.clock.stop_s:
            self._stop_waiting(now_s)
        self._reducer.look_at_slow(now_s)
        self._reducer.send_again()
        self._parts.send_again()
        if now_s >= self.clock.end_s:
            self.close(now_s)
        self.clock.ticked(now_s)
        self.changed(now_s)

    def close(self, now_s: float) -> None:
        """The end: what is not mixed is kept. A mean that is being taken still will be."""
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_waiting(now_s)
        self._reducer.stop()
        self._drop_early()
        self._parts.close()
        self.changed(now_s)

    def lagged(self, lag_s: float, now_s: float) -> None:
        """Our own loop stood still for so long: that is nobody's fault but ours."""
        self.clock.lagged(lag_s, now_s)
        self._reducer.lagged(lag_s, now_s)

    def withdraw(self, now_s: float) -> None:
        """Leave for good: nobody needs to wait for us."""
        for member in self.group.others():
            self.send(member, wire.NotTaken(ref=self.plan.ref, code=WITHDRAWN))
        self.close(now_s)
        self._reducer.drop_means()

    def abort(self) -> None:
        """The worker is gone: nothing that was asked of it will end."""
        self._reducer.stop()
        self._reducer.drop_means()
        self._drop_early()
        for member in self.group.others():
            self._ahead.drop(member)
        self._parts.abort()
        self.is_closed = True

    @property
    def has_mixed(self) -> bool:
        """Whether anything of another member is in what we have."""
        return any(bits & ~(1 << self.group.own) for bits in self.record.parts_of)

    # ------------------------------------------------------------------------------------- messages

    def heard(self, event: fx.Arrived, now_s: float) -> str:
        """A message of a member. Returns a rejection code (late breaks no rule), or ""."""
        member = self.group.get(event.peer)
        assert member is not None, "the owner looked"
        self.group.heard(member, now_s)
        code = self._take_in(member, event, now_s)
        self.changed(now_s)
        return code

    def _take_in(self, member: Member, event: fx.Arrived, now_s: float) -> str:
        match event.message:
            case wire.Offer() as offer:
                return self._offered(member, offer, now_s)
            case wire.Part():
                return self._part(member, event, now_s)
            case wire.Mean() as mean:
                return self._mean(member, mean, event)
            case wire.Taken(part=part):
                self._reducer.taken(part, member.number)
            case wire.NoRoom(part=part, was_mean=was_mean):
                if was_mean:
                    self._reducer.no_room(part, member.number)
                else:
                    self._parts.no_room(member, part)
            case wire.NotTaken(part=part, code=code):
                self.record.was_late = self.record.was_late or code == LATE
                if part is None:
                    member.is_ahead = code == LATE
                    self._put_out(member, code if code in NOT_TAKEN_CODES else "malformed")
                else:
                    self._parts.keep_of(member, part)
        return ""

    def _offered(self, member: Member, offer: wire.Offer, now_s: float) -> str:
        code = member.out or self.plan.why_not_offer(offer)
        if self.is_closed and not member.is_there:
            code = code or LATE
        if code:
            is_known = bool(member.out)
            self._put_out(member, code)
            self.send(member, wire.NotTaken(ref=self.plan.ref, code=code))
            return LATE if is_known and code == LATE else "" if is_known else code
        self.group.offered(member, offer, now_s)
        if offer.wants_reply:
            self.send(member, self.plan.offer(wants_reply=False))
        codes = [self._part(member, early, now_s) for early in self._early.take(member)]
        return next(filter(None, codes), "")

    def _part(self, member: Member, event: fx.Arrived, now_s: float) -> str:
        assert isinstance(event.message, wire.Part), "the caller looked"
        part = event.message.part
        if member.out:
            self._release(event.payload)
            self.send(member, wire.NotTaken(ref=self.plan.ref, code=member.out, part=part))
            return LATE if member.out == LATE else ""
        is_early = event.payload is not None and not member.is_there and not self.is_closed
        if is_early and self._early.hold(member, event):
            return ""
        if event.payload_refused or not member.is_there:
            member.last_part_s = now_s
            if event.payload_refused:
                self._reducer.make_room(part)
            self._release(event.payload)
            self.send(member, wire.NoRoom(ref=self.plan.ref, part=part))
            return ""
        is_ahead = not self.is_closed and self._parts.has_left(part)
        if is_ahead and event.payload is not None and self._ahead.hold(member, event):
            return ""
        code = self._why_not_part(member, part, event.payload)
        if code or event.payload is None:
            self._release(event.payload)
            self.send(member, wire.NotTaken(ref=self.plan.ref, code=code, part=part))
            return code
        layout = self.plan.layout
        self.record.bytes.received(member.peer, layout.size(part), event.payload.size_bytes)
        if not self._parts.is_ours(part):
            self._parts.take_over(part)
        self._reducer.arrived(part, member, event.payload, now_s)
        return ""

    def _why_not_part(self, member: Member, part: int, payload: BufferRef | None) -> str:
        layout = self.plan.layout
        if payload is None or not member.weight:
            return "malformed"
        if part >= layout.count or payload.size_bytes != layout.part_bytes(part):
            return "wrong_shape"
        if self._parts.is_ours(part):
            return LATE if self.is_closed and part not in self._reducer.means else ""
        if self.is_closed or not self._parts.may_take_over(part):
            return LATE
        return ""

    def _mean(self, member: Member, message: wire.Mean, event: fx.Arrived) -> str:
        part, payload, layout = message.part, event.payload, self.plan.layout
        if event.payload_refused:
            self.send(member, wire.NoRoom(ref=self.plan.ref, part=part, was_mean=True))
            return ""
        self.send(member, wire.Taken(ref=self.plan.ref, part=part))
        if payload is None or part >= layout.count or message.included >> len(self.group):
            self._release(payload)
            return "malformed"
        self.record.bytes.received(member.peer, layout.size(part), payload.size_bytes)
        is_too_large = payload.size_bytes > layout.mean_bytes_max(part)
        if is_too_large or not self._parts.is_expected(part, member):
            self._release(payload)
            if is_too_large:
                self._parts.keep_of(member, part)
            return "wrong_shape" if is_too_large else ""
        self._parts.take(message, payload, (payload,))
        return ""

    def _release(self, payload: BufferRef | None) -> None:
        if payload is not None:
            self._effects.append(fx.Release(payload))

    # --------------------------------------------------------------------------- the parts' owner

    def send(self, member: Member, message: Message, payload: BufferRef | None = None) -> None:
        self._effects.append(fx.Send(member.peer, message, payload, fx.Priority.MIX))
        if isinstance(message, wire.Mean) and payload is not None:
            size = self.plan.layout.size(message.part)
            self.record.bytes.sent(member.peer, size, payload.size_bytes)

    def reduced(self, reduced: ReducedPart) -> None:
        """Our reducer has made a mean: we take it like everybody."""
        self._parts.take(reduced.message, reduced.mean, ())

    def not_reduced(self, part: int) -> None:
        self._parts.keep(part)

    def refused(self, number: int, code: str) -> None:
        """What a member brought to a part that came to nothing."""
        if code:
            self.record.rejected[number, code] += 1

    def taken(self, part: int) -> None:
        """The worker has looked at a mean; our reducer's own need not be kept for us."""
        self._reducer.taken(part, self.group.own)

    def changed(self, now_s: float) -> None:
        """After whatever happened: pack and send what may go, reduce what is complete."""
        self._look_at_ahead(now_s)
        if not self.is_closed:
            self._reducer.open_next(now_s)
            for member in self.group.present():
                self._parts.fill(member)
            self._reducer.close_what_is_complete(now_s)
        if self.is_decided and self.record.decided_s is None:
            self.record.decided_s = now_s
            self.close(now_s)

    # ------------------------------------------------------------------------------------- members

    def link_up(self, peer: PeerId, now_s: float) -> None:
        member = self.group.get(peer)
        if member is not None and not self.is_closed:
            self.group.heard(member, now_s)
            self._ask(member, now_s)

    def link_down(self, peer: PeerId, now_s: float) -> None:
        member = self.group.get(peer)
        if member is not None:
            self._put_out(member, UNREACHABLE)
            self.changed(now_s)

    def not_sent(self, event: fx.SendFailed, now_s: float) -> None:
        """The driver could not: the queue was full, or there is no link."""
        member = self.group.get(event.peer)
        if member is None:
            return
        match event.message:
            case wire.Part(part=part):
                self._parts.send_later(member, part)
            case wire.Mean(part=part):
                self._reducer.no_room(part, member.number)
        if event.cause != "full" and member.is_there:
            self._put_out(member, UNREACHABLE)
        self.changed(now_s)

    def _ask(self, member: Member, now_s: float) -> None:
        member.asked_s = now_s
        self.send(member, self.plan.offer(wants_reply=True))

    def _look_at(self, member: Member, now_s: float) -> None:
        """Ask for a sign of life where one is needed; give up where none came."""
        if member.out:
            return
        if not self.group.is_alive(member, now_s):
            self._put_out(member, SILENT)
        elif now_s - max(member.heard_s, member.asked_s) >= self.group.patience_s / 3:
            self._ask(member, now_s)

    def _put_out(self, member: Member, code: str) -> None:
        """Nothing more is expected of a member, nor held for it."""
        was_out, member.out = member.out, member.out or code
        self._early.drop(member)
        self._ahead.drop(member)
        self._reducer.out(member.number)
        if self.is_closed or self.group.waits_no_more or code not in REVIVABLE:
            self._parts.keep_all_of(member)
        elif not was_out:
            self._reducer.take_on(self._parts.pass_on_all_of(member))

    def _look_at_ahead(self, now_s: float) -> None:
        """Parts whose reducer is gone for us too by now, or has done them."""
        for member in self.group.others():
            for event in self._ahead.take(member):
                self._part(member, event, now_s)

    def _drop_early(self) -> None:
        for member in self.group.others():
            self._early.drop(member)

    def _stop_waiting(self, now_s: float) -> None:
        """What has come is reduced; what comes now is late."""
        if self.clock.stopped_s is not None:
            return
        self.clock.stopped_s = now_s
        for member in self.group.others():
            if not member.is_there and not member.out:
                self._put_out(member, LATE)
        self.group.waits_no_more = True
