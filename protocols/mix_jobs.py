"""A few jobs at a time for the compute worker, in order, with slots that are let go in time.

Mixing makes hundreds of small jobs while the worker trains. At most `in_flight_max` of them stand
in its queue, so that a micro-batch waits behind a few of them and never behind a whole mix.

A slot that a job reads is its asker's until the job is given; `releases` names those to let go of
then (or when the job is forgotten). What a job gives goes to `on_end`, once, unless it was
forgotten: then its output is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import BufferRef, JobFailure, JobResult, StageCall

OnEnd = Callable[[JobResult | JobFailure, float], None]
"""(what it gave, now_s)."""

IN_FLIGHT_MAX = 16
"""Some milliseconds each. All that a mix gets done while a micro-batch computes is what stood in
the queue when it began, so with few of them a long vector would need more micro-batches than a
round has."""


@dataclass(slots=True, eq=False)
class _Asked:
    owner: object
    job: StageCall
    on_end: OnEnd
    releases: tuple[BufferRef, ...]


@dataclass(slots=True)
class JobPace:
    """How fast our own worker and loop get jobs done, whatever the other members do: from the end
    of one to the end of the next, where the next one was waiting already."""

    seconds: float = 0.0
    jobs: int = 0
    _ended_s: float | None = None

    def ended(self, now_s: float, *, has_more: bool) -> None:
        if self._ended_s is not None:
            self.seconds += now_s - self._ended_s
            self.jobs += 1
        self._ended_s = now_s if has_more else None

    def copy(self) -> JobPace:
        return JobPace(self.seconds, self.jobs)

    def since(self, before: JobPace) -> JobPace:
        return JobPace(self.seconds - before.seconds, self.jobs - before.jobs)


class JobDesk:
    """Effects go to the list shared with its owner."""

    def __init__(
        self,
        next_job_id: Callable[[], int],
        effects: list[fx.Effect],
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self._next_job_id = next_job_id
        self._effects = effects
        self._in_flight_max = in_flight_max
        self._waiting: deque[_Asked] = deque()
        self._given: dict[int, _Asked | None] = {}
        """None: forgotten since."""
        self.pace = JobPace()

    def ask(
        self,
        owner: object,
        job: StageCall,
        on_end: OnEnd,
        releases: tuple[BufferRef, ...] = (),
    ) -> None:
        self._waiting.append(_Asked(owner, job, on_end, releases))
        self._fill()

    def ended(self, job_id: int, outcome: JobResult | JobFailure, now_s: float) -> bool:
        """The worker has answered. False: it was not a job of ours."""
        if job_id not in self._given:
            return False
        asked = self._given.pop(job_id)
        self.pace.ended(now_s, has_more=bool(self._given))
        if asked is not None:
            asked.on_end(outcome, now_s)
        elif isinstance(outcome, JobResult) and outcome.output is not None:
            self._effects.append(fx.Release(outcome.output))
        self._fill()
        return True

    def forget(self, owner: object) -> None:
        """Whatever `owner` asked for is of no use any more."""
        for asked in [asked for asked in self._waiting if asked.owner is owner]:
            self._waiting.remove(asked)
            self._release(asked)
        for job_id, given in self._given.items():
            if given is not None and given.owner is owner:
                self._given[job_id] = None

    def lost(self) -> None:
        """The worker died; each job it had has failed before. What waited has nowhere to go."""
        self._given.clear()
        while self._waiting:
            self._release(self._waiting.popleft())

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._given

    def _fill(self) -> None:
        while self._waiting and len(self._given) < self._in_flight_max:
            asked = self._waiting.popleft()
            job_id = self._next_job_id()
            self._given[job_id] = asked
            self._effects.append(fx.Compute(job_id, asked.job))
            self._release(asked)

    def _release(self, asked: _Asked) -> None:
        self._effects += [fx.Release(ref) for ref in asked.releases]
