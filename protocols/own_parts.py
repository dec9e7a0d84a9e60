"""A member's own side of an exchange: each part sent to its reducer, and its mean taken back.

Every part comes to exactly one end: mixed (the mean was sound and the worker used it) or kept (our
own values stay). A part is away from the moment it is being packed; a few are away to each reducer
at a time, so that a slow one costs the others nothing. What was with a reducer that is gone goes to
the next in line, whom all who saw it go choose alike.

Jobs that change the worker's state are never forgotten half-way: `is_idle` waits for them, and a
part whose mean is being taken cannot be kept meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from swarmd.protocols import effects as fx
from swarmd.protocols.exchange_plan import ExchangePlan, ExchangeRecord
from swarmd.protocols.jobs import BufferRef, JobFailure, JobResult, StageCall
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.mixing import Mean, Part, Rejection, Taken
from swarmd.protocols.mix_group import Member, MixGroup
from swarmd.protocols.mix_jobs import JobDesk
from swarmd.protocols.mixing import MIX1, MIX2
from swarmd.protocols.outer_rules import apply_call, part_call, take_call

Send = Callable[[Member, Message, BufferRef | None], None]


class OwnParts:
    """on_taken(part): the worker has looked at a mean. on_change(now_s): a job has ended."""

    def __init__(
        self,
        plan: ExchangePlan,
        group: MixGroup,
        desk: JobDesk,
        effects: list[fx.Effect],
        send: Send,
        *,
        on_taken: Callable[[int], None],
        on_change: Callable[[float], None],
    ) -> None:
        self._plan = plan
        self._group = group
        self._desk = desk
        self._effects = effects
        self._send = send
        self._on_taken = on_taken
        self._on_change = on_change
        self.record = ExchangeRecord()
        self._undecided = set(range(plan.layout.count))
        self._taking: set[int] = set()
        self._takes = object()
        self._reducer_of = [self._choose_reducer(part) for part in range(plan.layout.count)]
        self._queues: dict[int, deque[int]] = {m.number: deque() for m in group.members}
        self._away: dict[int, set[int]] = {m.number: set() for m in group.members}
        """Reducer to the parts that are being packed for it, or with it."""
        self._narrow: set[int] = set()
        """Reducers that had no room: they get one part at a time, all members the same one, so that
        it can be completed."""
        self._again: list[int] = []
        """Parts that found no room; sent again at the next tick."""
        for part, number in enumerate(self._reducer_of):
            self._queues[number].append(part)

    def _choose_reducer(self, part: int) -> int:
        """The part's own reducer, or the next in line where that one is known to be silent."""
        first = self._plan.layout.primary(part, self._plan.ref.round)
        count = len(self._group)
        line = [(first + step) % count for step in range(count)]
        return next(number for number in line if not self._group.members[number].out)

    def to_reduce(self) -> list[int]:
        """Those that we reduce ourselves; never away."""
        parts = list(self._queues[self._group.own])
        self._queues[self._group.own].clear()
        return parts

    @property
    def is_decided(self) -> bool:
        return not self._undecided

    @property
    def is_idle(self) -> bool:
        """No job that changes the worker's state is under way."""
        return not self._taking

    @property
    def has_again(self) -> bool:
        return bool(self._again)

    def is_ours(self, part: int) -> bool:
        return self._reducer_of[part] == self._group.own

    def may_take_over(self, part: int) -> bool:
        """Whether we may reduce a part that we thought another one reduces: ours has not left."""
        return part in self._queues[self._reducer_of[part]]

    def has_left(self, part: int) -> bool:
        """Whether ours is with another reducer, who is there as far as we see."""
        if part not in self._undecided or part in self._taking or self.is_ours(part):
            return False
        is_gone = bool(self._group.members[self._reducer_of[part]].out)
        return not is_gone and not self.may_take_over(part)

    def take_over(self, part: int) -> None:
        self._queues[self._reducer_of[part]].remove(part)
        self._reducer_of[part] = self._group.own

    # ---------------------------------------------------------------------------------------- send

    def fill(self, member: Member) -> None:
        """Pack and send what may go to this reducer now: a few parts, and in any case the earliest,
        for which others may be waiting before they send more."""
        queue, away = self._queues[member.number], self._away[member.number]
        weight = self._plan.weight
        window = 1 if member.number in self._narrow else self._plan.window
        while queue and (not weight or len(away) < window or queue[0] < min(away)):
            part = queue.popleft()
            away.add(part)
            if weight:
                wire = self._plan.layout.wire
                job = part_call(self._plan.mix, wire, self._plan.range_of(part))
                self._desk.ask(self, job, self._when_packed(member, part))

    def _when_packed(
        self, member: Member, part: int
    ) -> Callable[[JobResult | JobFailure, float], None]:
        def on_end(outcome: JobResult | JobFailure, now_s: float) -> None:
            if isinstance(outcome, JobFailure) or outcome.output is None:
                self.keep(part)
            else:
                if part in self._away[member.number]:
                    size, size_bytes = self._plan.layout.size(part), outcome.output.size_bytes
                    self.record.bytes.sent(member.peer, size, size_bytes)
                    self._send(member, Part(ref=self._plan.ref, part=part), outcome.output)
                self._effects.append(fx.Release(outcome.output))
            self._on_change(now_s)

        return on_end

    def send_later(self, member: Member, part: int) -> None:
        """It did not leave, or was not let in."""
        if part in self._away[member.number]:
            self._away[member.number].discard(part)
            self._again.append(part)

    def no_room(self, member: Member, part: int) -> None:
        """Its reducer had no slot for it."""
        self._narrow.add(member.number)
        self.send_later(member, part)

    def send_again(self) -> None:
        """The earliest first."""
        again, self._again = self._again, []
        for part in sorted(again, reverse=True):
            self._queues[self._reducer_of[part]].appendleft(part)

    # ---------------------------------------------------------------------------------------- take

    def is_expected(self, part: int, member: Member) -> bool:
        """Whether this member's mean of a part is the one we take."""
        if part not in self._undecided or part in self._taking:
            return False
        reducer = self._reducer_of[part]
        if reducer == member.number:
            return True
        is_absent = not self._group.members[reducer].is_there
        return reducer != self._group.own and is_absent and self.may_take_over(part)

    def take(self, message: Mean, mean: BufferRef, releases: tuple[BufferRef, ...]) -> None:
        """The worker looks at the mean and, if it is sound, uses it.

        releases: the slot, if it is ours to let go of.
        """
        part = message.part
        self._forget(part)
        self._taking.add(part)

        def on_end(outcome: JobResult | JobFailure, now_s: float) -> None:
            self._taken(message, outcome)
            self._on_change(now_s)

        self._desk.ask(self._takes, self._take_job(part, mean), on_end, releases)

    def _take_job(self, part: int, mean: BufferRef) -> StageCall:
        plan = self._plan
        where, members = plan.range_of(part), len(plan.members)
        usual_norm = usual_norm_of(part, plan, self._group)
        if plan.mix == MIX1:
            return take_call(plan.layout.wire, where, mean, usual_norm=usual_norm, members=members)
        return apply_call(
            plan.rules,
            where,
            mean,
            usual_norm=usual_norm,
            members=members,
            resets=plan.resets,
            sent=plan.weight > 0,
        )

    def _taken(self, message: Mean, outcome: JobResult | JobFailure) -> None:
        part = message.part
        self._taking.discard(part)
        self._on_taken(part)
        if isinstance(outcome, JobFailure):  # ours, whoever sent the mean
            self.keep(part)
            return
        reducer = self._reducer_of[part]
        if outcome.data["code"]:
            self.record.rejected[reducer, outcome.data["code"]] += 1
            self.keep(part)
            return
        book = self.record.rejected if reducer == self._group.own else self.record.told
        for rejection in message.rejected:
            if rejection.member < len(self._group):
                book[rejection.member, rejection.code] += 1
        self._decide(part, message.included)

    # ---------------------------------------------------------------------------------------- keep

    def keep(self, part: int) -> None:
        """No mean will come, or none that can be used."""
        if part not in self._undecided or part in self._taking:
            return
        self._forget(part)
        self.record.kept.append(part)
        self._decide(part, 1 << self._group.own)

    def keep_of(self, member: Member, part: int) -> None:
        """This reducer will not give us a mean of a part that is with it."""
        if part in self._away[member.number]:
            self.keep(part)

    def pass_on_all_of(self, member: Member) -> list[int]:
        """A reducer is gone: its parts are with the next in line. Returns those that are with us
        now. Who has its mean of a part says so, and is not waited for there."""
        ours = []
        parts = [p for p, number in enumerate(self._reducer_of) if number == member.number]
        self._away[member.number].clear()
        self._queues[member.number].clear()
        self._again = [part for part in self._again if part not in set(parts)]
        for part in parts:
            reducer = self._choose_reducer(part)
            if part not in self._undecided or part in self._taking:
                if reducer != self._group.own:
                    taken = Taken(ref=self._plan.ref, part=part)
                    self._send(self._group.members[reducer], taken, None)
                continue
            self._reducer_of[part] = reducer
            if reducer == self._group.own:
                ours.append(part)
            else:
                self._queues[reducer].append(part)
        return ours

    def keep_all_of(self, member: Member) -> None:
        """Nor of any other part."""
        for part in [*sorted(self._away[member.number]), *self._queues[member.number]]:
            self.keep(part)
        self._again = [part for part in self._again if part in self._undecided]

    def close(self) -> None:
        """What is not mixed is kept."""
        self._desk.forget(self)
        for part in sorted(self._undecided):
            self.keep(part)

    def abort(self) -> None:
        """The worker is gone."""
        self._desk.forget(self)
        self._desk.forget(self._takes)
        self._undecided.clear()
        self._taking.clear()

    def _decide(self, part: int, included: int) -> None:
        self._undecided.discard(part)
        self.record.parts_of[included] += 1

    def _forget(self, part: int) -> None:
        """It is neither waiting nor away any more."""
        reducer = self._reducer_of[part]
        self._away[reducer].discard(part)
        if part in self._queues[reducer]:
            self._queues[reducer].remove(part)
        if part in self._again:
            self._again.remove(part)


def usual_norm_of(part: int, plan: ExchangePlan, group: MixGroup) -> float:
    """What a part of an honest member's vector measures, all coordinates being alike."""
    whole = plan.usual_norm
    if plan.mix == MIX2:
        whole = group.usual_norm(plan.weight, plan.norm, plan.usual_norm)
    return whole * plan.share_of(part)


def rejections(codes: dict[int, str]) -> tuple[Rejection, ...]:
    """Member to code, of those that have one."""
    return tuple(Rejection(member=number, code=code) for number, code in codes.items() if code)
