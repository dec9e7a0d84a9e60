"""In which order this peer's compute worker gets its work.

Backward before forward: a backward frees memory here and feeds the peer before. Earlier
micro-batches before later ones. At most `lane_depth` micro-batch jobs at the worker, so that what
arrives meanwhile can still go first; steps and forgets ride along. Each step is put in front of the
job whose gradient it must not contain (step_clock.py).

A gradient enters this peer's sums at most once for each micro-batch, whoever brings it and however
often: the lane remembers what was counted for as long as a round may stay open behind the others. A
micro-batch that came here before the round that ended last is not counted: its gradient belongs to
weights that are gone. One of an old round that begins anew is computed with what holds now, and
counts into the present step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols.effects import Compute, Effect, Release
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, Forget, Forward, Job, Step
from swarmd.protocols.limits import ROUNDS_OPEN_MAX
from swarmd.protocols.passage import Passage, Phase
from swarmd.protocols.pipeline_shape import PipelineShape
from swarmd.protocols.pipeline_statistics import Counters
from swarmd.protocols.step_clock import StepClock


@dataclass(slots=True, eq=False)
class LaneJob:
    """A job at the worker. `passage` None: nobody waits for its result any more."""

    job: Job
    passage: Passage | None = None
    counts_into: int | None = None
    """The step whose gradient it adds to; None: to none."""


class Lane:
    """Queues of passages in front of the worker. Effects go to the list shared with its owner."""

    def __init__(
        self,
        shape: PipelineShape,
        depth: int,
        next_job_id: Callable[[], int],
        effects: list[Effect],
        counters: Counters,
    ) -> None:
        self.is_ready = False
        """Whether there is a worker that has loaded the stage."""
        self.is_held = False
        """Whether the weights are being mixed: no forward begins and no step is taken."""
        self.clock = StepClock()
        self._shape = shape
        self._depth = depth
        self._next_job_id = next_job_id
        self._effects = effects
        self._counters = counters
        self._forwards: list[Passage] = []
        self._backwards: list[Passage] = []
        self._jobs: dict[int, LaneJob] = {}
        self._former_jobs: dict[int, LaneJob] = {}
        """Given before the worker died; some may still come back, from it or from the next one."""
        self._counted: dict[int, set[int]] = {}
        """Round to the indexes of what was counted here."""
        self._ended_round = 0
        """The last one that has ended here."""

    # ------------------------------------------------------------------------------------- queue

    @property
    def forward_queue_length(self) -> int:
        return len(self._forwards)

    @property
    def is_busy(self) -> bool:
        """Whether the worker has something to do."""
        return any(not isinstance(entry.job, Forget) for entry in self._jobs.values())

    def queue_forward(self, passage: Passage) -> None:
        passage.phase = Phase.QUEUED
        self._forwards.append(passage)
        if passage.is_trained:
            self.clock.reached(passage.tag)

    def queue_backward(self, passage: Passage) -> None:
        passage.phase = Phase.RETURNED
        self._backwards.append(passage)

    def leave(self, passage: Passage) -> None:
        """The passage ends, however: nothing of it stays here or at the worker."""
        for queue in (self._forwards, self._backwards):
            if passage in queue:
                queue.remove(passage)
        is_at_worker = False
        for entry in self._jobs.values():
            if entry.passage is passage:
                entry.passage = None
                is_at_worker = True
        if passage.is_trained:
            self.clock.left(passage.tag)
        if passage.has_graph and self.is_ready and not is_at_worker:
            self.forget(passage.micro_batch, passage.serial)
        passage.has_graph = False

    def forget(self, micro_batch: MicroBatchId, serial: int) -> None:
        self._submit(LaneJob(Forget(micro_batch, serial)))

    # -------------------------------------------------------------------------------------- lane

    def fill(self) -> None:
        """Give the worker what it may have now."""
        if not self.is_ready:
            return
        if not self.is_held:
            self._step(self.clock.due())
        while self._running < self._depth:
            passage = self._next_backward()
            if passage is not None:
                self._begin_backward(passage)
                continue
            passage = None if self.is_held else self._next_forward()
            if passage is None:
                return
            self._begin_forward(passage)

    @property
    def _running(self) -> int:
        return sum(isinstance(entry.job, Forward | Backward) for entry in self._jobs.values())

    def _next_backward(self) -> Passage | None:
        """The earliest; while held, only what needs no step before it."""
        able = [
            passage
            for passage in self._backwards
            if not self.is_held
            or not self.clock.must_step_before(passage.tag)
            or not self._may_count(passage)
        ]
        return min(able, key=lambda passage: (passage.tag, passage.serial), default=None)

    def _next_forward(self) -> Passage | None:
        """The earliest; held-out ones after what their round still trains on."""
        return min(
            self._forwards,
            key=lambda passage: (
                passage.micro_batch.round,
                passage.micro_batch.held_out,
                passage.tag,
                passage.serial,
            ),
            default=None,
        )

    def _begin_forward(self, passage: Passage) -> None:
        self._forwards.remove(passage)
        passage.phase = Phase.FORWARD
        is_fused = self._shape.is_last and passage.is_trained
        counts_into = self._count(passage) if is_fused else None
        last_step = self.clock.last_step
        passage.weight_version = 0 if last_step is None else last_step + 1
        job = Forward(
            passage.micro_batch,
            passage.serial,
            train=passage.is_trained,
            input=passage.input,
            accumulate=counts_into is not None or not is_fused,
        )
        self._submit(LaneJob(job, passage, counts_into))
        if passage.input is not None:
            self._effects.append(Release(passage.input))
            passage.input = None

    def _begin_backward(self, passage: Passage) -> None:
        self._backwards.remove(passage)
        passage.phase = Phase.BACKWARD
        assert passage.gradient is not None
        counts_into = self._count(passage)
        job = Backward(
            passage.micro_batch,
            passage.serial,
            passage.gradient,
            accumulate=counts_into is not None,
        )
        self._submit(LaneJob(job, passage, counts_into))
        self._effects.append(Release(passage.gradient))
        passage.gradient = None

    def _count(self, passage: Passage) -> int | None:
        """The step it counts into, taking the one before if it is time; None: into none."""
        if not self._may_count(passage):
            self._counters.not_counted += 1
            return None
        self._step(self.clock.before(passage.tag))
        micro_batch = passage.micro_batch
        self._counted.setdefault(micro_batch.round, set()).add(micro_batch.index)
        self._counters.counted += 1
        return self.clock.accumulated(passage.tag)

    def is_counted(self, micro_batch: MicroBatchId) -> bool:
        """Whether this peer's gradient holds it, or will when its job has ended."""
        return not micro_batch.held_out and micro_batch.index in self._counted.get(
            micro_batch.round, ()
        )

    def _may_count(self, passage: Passage) -> bool:
        is_fresh = passage.born_round >= self._ended_round
        return is_fresh and not self.is_counted(passage.micro_batch)

    def _step(self, step: int | None) -> None:
        if step is not None:
            self._submit(LaneJob(Step(step)))

    def _submit(self, entry: LaneJob) -> None:
        job_id = self._next_job_id()
        self._jobs[job_id] = entry
        self._effects.append(Compute(job_id, entry.job))

    # ------------------------------------------------------------------------------------ results

    def ended(self, job_id: int) -> LaneJob | None:
        """The job has ended; None if it was not ours."""
        return self._jobs.pop(job_id, None) or self._former_jobs.pop(job_id, None)

    def uncount(self, entry: LaneJob) -> None:
        """Its gradient did not enter the sums after all."""
        if entry.counts_into is None:
            return
        assert isinstance(entry.job, Forward | Backward)
        micro_batch = entry.job.micro_batch
        if micro_batch.round in self._counted:
            self._counted[micro_batch.round].discard(micro_batch.index)
        self._counters.counted -= 1
        self.clock.revoked(entry.counts_into)

    def end_round(self, round_number: int) -> None:
        """Its last step, if anything is pending. What came before it counts no more."""
        step = self.clock.finish(self._shape.first_step_of(round_number + 1))
        if self.is_ready:
            self._step(step)
        self._ended_round = round_number
        oldest = round_number - ROUNDS_OPEN_MAX
        self._counted = {r: done for r, done in self._counted.items() if r > oldest}

    def lost(self) -> None:
        """The worker died, and with it the graphs and the sums."""
        self.is_ready = False
        self._counters.gradients_lost += self.clock.pending
        self.clock.lost()
        for entry in self._jobs.values():
            entry.counts_into = None
        self._former_jobs |= self._jobs
        self._jobs.clear()
