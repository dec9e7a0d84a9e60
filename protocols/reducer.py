"""A member's duty in an exchange: the parts that it reduces for all.

A part is opened, gathers what the members send, is closed when nobody is waited for any more, and
then reduced by the compute worker over exactly what came: the mean divides by the weight received
(algorithms.md 4.5). Its mean goes to every member that is there, also to those with weight 0 and to
those who were too late to be in it, and is kept until they have taken it.

Bounded: `window` parts are open at a time, and no more are reduced while as many means have not
been taken by members who take them in time. A member that has let a mean lie for `patience_s` is
slow: nobody waits for it, and it gets no further means until it has taken one. Slots: the inputs of
open parts and the means are the reducer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from swarmd.protocols import effects as fx
from swarmd.protocols.exchange_plan import ExchangePlan
from swarmd.protocols.jobs import BufferRef, JobFailure, JobResult
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.mixing import Mean, NoRoom, NotTaken
from swarmd.protocols.mix_group import LATE, SILENT, Member, MixGroup
from swarmd.protocols.mix_jobs import JobDesk
from swarmd.protocols.outer_rules import part_call, reduce_call
from swarmd.protocols.own_parts import rejections, usual_norm_of

CLIPPED = "clipped"
SLOW = "slow"
"""Said to a member that takes its means too slowly: keep your own values of this part."""


@dataclass(slots=True, eq=False)
class _OpenPart:
    opened_s: float
    inputs: dict[int, BufferRef] = field(default_factory=dict)
    """Member to its values."""
    is_own_pending: bool = False
    """Our own values are being packed."""
    is_reducing: bool = False


@dataclass(slots=True, eq=False)
class ReducedPart:
    """A mean, and who has not taken it yet (ourselves among them)."""

    mean: BufferRef
    message: Mean
    made_s: float
    waiting: set[int]
    again: set[int] = field(default_factory=set)
    """Of them, those who had no room for it."""


class ReducerOwner(Protocol):
    """The exchange: the member's side of the same parts."""

    def send(self, member: Member, message: Message, payload: BufferRef | None = None) -> None: ...
    def reduced(self, reduced: ReducedPart) -> None: ...
    def not_reduced(self, part: int) -> None: ...
    def refused(self, number: int, code: str) -> None: ...
    def changed(self, now_s: float) -> None: ...


class Reducer:
    def __init__(
        self,
        plan: ExchangePlan,
        group: MixGroup,
        desk: JobDesk,
        effects: list[fx.Effect],
        owner: ReducerOwner,
        parts: Iterable[int],
    ) -> None:
        self._plan = plan
        self._group = group
        self._desk = desk
        self._effects = effects
        self._owner = owner
        self.window = plan.window
        """How many parts to open by ourselves; fewer, once there was no slot for what came."""
        self._queue = deque(parts)
        self._open: dict[int, _OpenPart] = {}
        self.means: dict[int, ReducedPart] = {}
        self._closed: set[int] = set()
        self._content: dict[int, set[int]] = {}
        """Part to those who say that they have a mean of it: from a reducer that is gone."""
        self._slow: set[int] = set()

    # -------------------------------------------------------------------------------------- gather

    def open_next(self, now_s: float) -> None:
        """Begin with the own parts in their order, a few at a time."""
        while self._queue and len(self._open) < self.window:
            self.open(self._queue.popleft(), now_s)

    def take_on(self, parts: Iterable[int]) -> None:
        """Of a reducer that is gone."""
        self._queue.extend(part for part in parts if part not in self._open)

    def open(self, part: int, now_s: float) -> None:
        """Begin with a part; what we bring to it comes from the worker."""
        if part in self._open or part in self._closed:
            return
        if part in self._queue:
            self._queue.remove(part)
        opened = self._open[part] = _OpenPart(now_s, is_own_pending=self._plan.weight > 0)
        if opened.is_own_pending:
            job = part_call(self._plan.mix, self._plan.layout.wire, self._plan.range_of(part))
            self._desk.ask(self, job, self._when_packed(part, opened))

    def _when_packed(
        self, part: int, opened: _OpenPart
    ) -> Callable[[JobResult | JobFailure, float], None]:
        def on_end(outcome: JobResult | JobFailure, now_s: float) -> None:
            """Without our own values the part is the others'."""
            output = outcome.output if isinstance(outcome, JobResult) else None
            if self._open.get(part) is opened:
                opened.is_own_pending = False
                if output is not None:
                    opened.inputs[self._group.own] = output
            elif output is not None:
                self._effects.append(fx.Release(output))
            self._owner.changed(now_s)

        return on_end

    def arrived(self, part: int, member: Member, payload: BufferRef, now_s: float) -> None:
        """Values of a part that is, or may be, ours to reduce. Takes over the slot."""
        if part in self._closed:
            self._effects.append(fx.Release(payload))
            reduced = self.means.get(part)
            if reduced is not None and member.number in reduced.waiting:
                self._send(reduced, member)
            else:
                self._owner.send(member, NotTaken(ref=self._plan.ref, code=LATE, part=part))
            return
        self.open(part, now_s)
        opened = self._open[part]
        if opened.is_reducing or member.number in opened.inputs:
            self._effects.append(fx.Release(payload))
            return
        member.last_part_s = now_s
        opened.inputs[member.number] = payload

    def make_room(self, part: int) -> None:
        """Values of `part` found no slot. The last of the open parts after it gives way, and one at
        a time is open from now on: else all could wait for each other's slots until the end."""
        self.window = 1
        later = [p for p, opened in self._open.items() if p > part and not opened.is_reducing]
        if not later:
            return
        victim = max(later)
        opened = self._open.pop(victim)
        for number in sorted(opened.inputs.keys() - {self._group.own}):
            refusal = NoRoom(ref=self._plan.ref, part=victim)
            self._owner.send(self._group.members[number], refusal)
        self._release_inputs(opened)
        self._queue.appendleft(victim)

    # -------------------------------------------------------------------------------------- reduce

    def close_what_is_complete(self, now_s: float) -> None:
        for part in sorted(self._open):
            opened = self._open[part]
            if not opened.is_reducing and self._is_complete(part, opened, now_s):
                self._close(part, opened)

    def _is_complete(self, part: int, opened: _OpenPart, now_s: float) -> bool:
        return not opened.is_own_pending and all(
            member.number in opened.inputs
            or member.number in self._content.get(part, ())
            or not self._group.is_part_awaited(member, opened.opened_s, now_s)
            for member in self._group.others()
        )

    def _close(self, part: int, opened: _OpenPart) -> None:
        receivers = self._group.present()
        is_alone = not (opened.inputs.keys() - {self._group.own}) and not receivers
        if not opened.inputs or is_alone:
            self._give_up(part, SILENT)
            return
        if self._means_under_way >= self._plan.window:
            return
        self._reduce(part, opened)

    @property
    def _means_under_way(self) -> int:
        """Those being made, or waited for by somebody who is not slow."""
        waited = sum(bool(reduced.waiting - self._slow) for reduced in self.means.values())
        return waited + sum(opened.is_reducing for opened in self._open.values())

    def _reduce(self, part: int, opened: _OpenPart) -> None:
        opened.is_reducing = True
        numbers = sorted(opened.inputs)
        plan, own = self._plan, self._group.own
        job = reduce_call(
            plan.mix,
            plan.layout.wire,
            plan.range_of(part),
            [opened.inputs[number] for number in numbers],
            [self._weight(number) for number in numbers],
            own=numbers.index(own) if own in numbers else None,
            usual_norm=usual_norm_of(part, plan, self._group),
            is_clipped=plan.rules.is_clipped,
            members=len(plan.members),
        )
        inputs = tuple(opened.inputs.values())
        opened.inputs = {}

        def on_end(outcome: JobResult | JobFailure, now_s: float) -> None:
            self._reduced(part, numbers, outcome, now_s)

        self._desk.ask(self, job, on_end, inputs)

    def _weight(self, number: int) -> int:
        if number == self._group.own:
            return self._plan.weight
        return self._group.members[number].weight

    def _reduced(
        self, part: int, numbers: list[int], outcome: JobResult | JobFailure, now_s: float
    ) -> None:
        if isinstance(outcome, JobFailure) or outcome.output is None:
            if isinstance(outcome, JobResult):  # nothing sound of any weight
                for number, code in zip(numbers, outcome.data["codes"], strict=True):
                    self._owner.refused(number, code)
            self._give_up(part, outcome.code if isinstance(outcome, JobFailure) else SILENT)
            self._owner.changed(now_s)
            return
        del self._open[part]
        self._closed.add(part)
        codes = dict(zip(numbers, outcome.data["codes"], strict=True))
        included = sum(1 << number for number in numbers if codes[number] in ("", CLIPPED))
        message = Mean(ref=self._plan.ref, part=part, included=included, rejected=rejections(codes))
        receivers = [m for m in self._group.present() if m.number not in self._slow]
        waiting = {self._group.own, *(member.number for member in receivers)}
        reduced = self.means[part] = ReducedPart(outcome.output, message, now_s, waiting)
        for member in self._group.present():
            if member.number in waiting:
                self._send(reduced, member)
            else:
                self._owner.send(member, NotTaken(ref=self._plan.ref, code=SLOW, part=part))
        self._owner.reduced(reduced)
        self._owner.changed(now_s)

    def _give_up(self, part: int, code: str) -> None:
        """There is no mean of this part: everybody keeps what they have."""
        self._release_inputs(self._open.pop(part))
        self._closed.add(part)
        for member in self._group.present():
            self._owner.send(member, NotTaken(ref=self._plan.ref, code=code, part=part))
        self._owner.not_reduced(part)

    # ----------------------------------------------------------------------------------- hand out

    def _send(self, reduced: ReducedPart, member: Member) -> None:
        reduced.again.discard(member.number)
        self._owner.send(member, reduced.message, reduced.mean)

    def taken(self, part: int, number: int) -> None:
        """A member has the mean, or will never want it."""
        self._slow.discard(number)
        reduced = self.means.get(part)
        if reduced is None:
            if part not in self._closed and part < self._plan.layout.count:
                self._content.setdefault(part, set()).add(number)
            return
        reduced.waiting.discard(number)
        if not reduced.waiting:
            self._effects.append(fx.Release(reduced.mean))
            del self.means[part]

    def no_room(self, part: int, number: int) -> None:
        reduced = self.means.get(part)
        if reduced is not None and number in reduced.waiting:
            reduced.again.add(number)

    @property
    def has_again(self) -> bool:
        return any(reduced.again for reduced in self.means.values())

    def look_at_slow(self, now_s: float) -> None:
        """Who has let a mean lie for too long?"""
        for part in sorted(self.means):
            reduced = self.means[part]
            if now_s - reduced.made_s > self._group.patience_s:
                self._slow |= reduced.waiting - {self._group.own}

    def lagged(self, lag_s: float, now_s: float) -> None:
        """We stood still for so long, and nobody could take or send anything."""
        for opened in self._open.values():
            opened.opened_s = min(now_s, opened.opened_s + lag_s)
        for reduced in self.means.values():
            reduced.made_s = min(now_s, reduced.made_s + lag_s)

    def send_again(self) -> None:
        for part in sorted(self.means):
            reduced = self.means[part]
            for number in sorted(reduced.again):
                self._send(reduced, self._group.members[number])

    def out(self, number: int) -> None:
        """A member will take nothing more."""
        for part in sorted(self.means):
            self.taken(part, number)

    # ----------------------------------------------------------------------------------------- end

    def stop(self) -> None:
        """Reduce nothing more. Means that were made stay for those who have not taken them."""
        self._desk.forget(self)
        self._queue.clear()
        for part in sorted(self._open):
            self._release_inputs(self._open.pop(part))
            self._closed.add(part)

    def drop_means(self) -> None:
        """Nobody will take what is left."""
        for part in sorted(self.means):
            self._effects.append(fx.Release(self.means.pop(part).mean))

    def _release_inputs(self, opened: _OpenPart) -> None:
        self._effects += [fx.Release(ref) for _, ref in sorted(opened.inputs.items())]
        opened.inputs = {}
