"""A compute worker that computes nothing: what each job costs, what it gives back, how it dies.

It keeps the promises of swarmd/compute_api.py: one lane, jobs in the order of submission, slots
read when the job was given. Graphs are remembered by what they were made from, so that a gradient
for another graph is an `unknown_micro_batch` here as it is there. The loss falls with the steps.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import (
    Backward,
    BufferRef,
    Forget,
    Forward,
    Job,
    JobFailure,
    JobResult,
    StageCall,
    Step,
)
from swarmd.protocols.run_shape import RunShape
from swarmd.sim.clock import World
from swarmd.sim.fake_outer import FakeJobFailed, FakeOuter, Values
from swarmd.sim.files import PIECES, SimFiles
from swarmd.sim.slots import SimSlots

LOSS_FIRST = 5.5
LOSS_FLOOR = 1.5
LOSS_STEPS = 150.0
"""Of the made-up curve: where it starts, where it ends, and in how many steps it falls e-fold."""
WEIGHTS = 6
"""Of a stage; enough to be mixed and compared."""
STEP_SHARE = 0.05
"""How far one inner step goes towards the stage's optimum; the data's noise is as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds on a peer of speed 1."""

    forward_s: float = 0.04
    backward_s: float = 0.08
    step_s: float = 0.02
    call_s: float = 0.05
    load_s: float = 0.5
    jitter: float = 0.1
    """Share by which single jobs take longer, at most."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What lies in a slot: stands for the bytes."""

    kind: str
    """activation, gradient, or the name of the call that made it."""
    micro_batch: MicroBatchId | None = None
    is_spoilt: bool = False
    """Not finite: some peer's lie."""


@dataclass(slots=True)
class _Queued:
    job_id: int
    job: Job
    inputs: tuple[Any, ...]


class FakeCompute:
    """One peer's worker. `tell` takes the event that a job's end is."""

    def __init__(
        self,
        world: World,
        name: str,
        shape: RunShape,
        slots: SimSlots,
        files: SimFiles,
        costs: CostModel,
        tell: Callable[[fx.Event], None],
    ) -> None:
        self._world = world
        self._rng = world.rng_for(f"compute/{name}")
        self._shape = shape
        self._slots = slots
        self._files = files
        self._costs = costs
        self._tell = tell
        self._queue: deque[_Queued] = deque()
        self._epoch = 0
        self._stage: int | None = None
        self._is_loaded = False
        self._state: str | None = None
        self._graphs: set[tuple[MicroBatchId, int]] = set()
        self.steps = 0
        """Inner steps that the weights have behind them."""
        self.outer = FakeOuter([])
        self.speed = 1.0
        """Higher is faster; may change while it runs."""
        self.payload_bytes = 4_096
        self.busy_s = 0.0

    # ------------------------------------------------------------------------------------- driver

    def load(self, stage: int, state: str | None = None) -> None:
        """Have the stage: a new worker in place of the old one."""
        self._forget_all()
        self._stage, self._state = stage, state
        self.steps, self.outer = 0, FakeOuter([float(stage)] * WEIGHTS)
        if state is not None and not self._restore(state):
            self._stage = None
            lost = fx.ComputeLost(f"no whole state in {state}", "data_missing")
            self._world.after(self._costs.load_s, self._tell, lost)
            return
        self._world.after(self._duration_s(self._costs.load_s), self._loaded, self._epoch)

    def submit(self, job_id: int, job: Job) -> None:
        inputs = tuple(self._slots.content(ref) for ref in _refs_of(job))
        self._queue.append(_Queued(job_id, job, inputs))
        if len(self._queue) == 1 and self._is_loaded:
            self._begin()

    def die(self, code: str = "worker_died") -> None:
        """Every job fails, then the worker is lost, then another one loads the same stage."""
        lost = [item.job_id for item in self._queue]
        stage = self._stage
        self._forget_all()
        for job_id in lost:
            self._tell(fx.ComputeFailed(job_id, JobFailure(code)))
        self._tell(fx.ComputeLost("the worker died", code))
        if stage is not None:
            self.load(stage, self._state)

    def end(self) -> None:
        """With its peer: silently."""
        self._forget_all()

    def _forget_all(self) -> None:
        self._queue.clear()
        self._graphs.clear()
        self._epoch += 1
        self._stage = None
        self._is_loaded = False

    # --------------------------------------------------------------------------------------- lane

    def _loaded(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._is_loaded = True
            if self._queue:
                self._begin()
            self._tell(
                fx.ComputeReady({"state": self._state, "device": "sim", "stage": self._stage})
            )

    def _begin(self) -> None:
        job = self._queue[0].job
        duration_s = self._duration_s(self._cost_s(job))
        self._world.after(duration_s, self._finish, self._epoch, duration_s)

    def _finish(self, epoch: int, duration_s: float) -> None:
        if epoch != self._epoch:
            return
        item = self._queue.popleft()
        self.busy_s += duration_s
        if self._queue:
            self._begin()
        self._tell(self._outcome(item, duration_s))

    def _duration_s(self, cost_s: float) -> float:
        return cost_s * (1.0 + self._costs.jitter * self._rng.random()) / self.speed

    def _cost_s(self, job: Job) -> float:
        if isinstance(job, Forward):
            trains_here = job.train and self._is_last
            return self._costs.forward_s + (self._costs.backward_s if trains_here else 0.0)
        if isinstance(job, Backward):
            return self._costs.backward_s
        if isinstance(job, Step):
            return self._costs.step_s
        return self._costs.call_s if isinstance(job, StageCall) else 0.0

    # ------------------------------------------------------------------------------------ results

    @property
    def _is_last(self) -> bool:
        return self._stage == self._shape.stages - 1

    def _outcome(self, item: _Queued, busy_s: float) -> fx.Event:
        if any(isinstance(tensor, Tensor) and tensor.is_spoilt for tensor in item.inputs):
            return fx.ComputeFailed(item.job_id, JobFailure("not_finite"))
        match item.job:
            case Forward():
                return self._forward(item.job_id, item.job, busy_s)
            case Backward():
                return self._backward(item.job_id, item.job, busy_s)
            case Forget(micro_batch, attempt):
                self._graphs.discard((micro_batch, attempt))
            case Step(step):
                self._step(step)
            case StageCall():
                return self._call(item, item.job, busy_s)
        return fx.ComputeDone(item.job_id, JobResult(busy_s=busy_s))

    def _forward(self, job_id: int, job: Forward, busy_s: float) -> fx.Event:
        if job.train and not self._is_last:
            self._graphs.add((job.micro_batch, job.attempt))
        samples = self._shape.samples_of(job.micro_batch)
        loss = None
        if self._is_last:
            fallen = math.exp(-self.steps / LOSS_STEPS)
            loss = samples * (LOSS_FLOOR + (LOSS_FIRST - LOSS_FLOOR) * fallen)
        has_output = job.train and self._stage != 0 if self._is_last else True
        kind = "gradient" if self._is_last else "activation"
        return self._answer(
            job_id,
            busy_s,
            Tensor(kind, job.micro_batch),
            self.payload_bytes if has_output else 0,
            samples=samples,
            loss_sum=loss,
        )

    def _backward(self, job_id: int, job: Backward, busy_s: float) -> fx.Event:
        if (job.micro_batch, job.attempt) not in self._graphs:
            return fx.ComputeFailed(job_id, JobFailure("unknown_micro_batch"))
        self._graphs.discard((job.micro_batch, job.attempt))
        output_bytes = self.payload_bytes if self._stage else 0
        samples = self._shape.samples_of(job.micro_batch)
        tensor = Tensor("gradient", job.micro_batch)
        return self._answer(job_id, busy_s, tensor, output_bytes, samples=samples)

    def _step(self, step: int) -> None:
        """Towards the optimum, and about as much aside."""
        self.steps = step + 1
        weights = self.outer.weights
        for place, weight in enumerate(weights):
            aside = self._rng.uniform(-STEP_SHARE, STEP_SHARE)
            weights[place] = weight + STEP_SHARE * (10.0 + place - weight) + aside

    def _call(self, item: _Queued, job: StageCall, busy_s: float) -> fx.Event:
        if job.name == "state":
            self._save(str(job.args["path"]), self.steps, self.outer.weights)
            saved = {"next_step": self.steps}
            return fx.ComputeDone(item.job_id, JobResult(busy_s=busy_s, data=saved))
        if job.name == "round_state":
            return self._round_state(item.job_id, job, busy_s)
        try:
            data, values = self.outer.run(job, item.inputs)
        except FakeJobFailed as error:
            return fx.ComputeFailed(item.job_id, JobFailure(error.code))
        output_bytes = job.output_bytes if values is not None else 0
        return self._answer(item.job_id, busy_s, values, output_bytes, data=data)

    def _round_state(self, job_id: int, job: StageCall, busy_s: float) -> fx.Event:
        outer = self.outer
        if outer.is_stepping:
            return fx.ComputeFailed(job_id, JobFailure("not_ready"))
        has_start = outer.round >= job.args["round"]
        round_number = outer.round if has_start else job.args["round"]
        weights = outer.x if has_start else outer.weights
        steps = min(round_number * self._shape.inner_steps, self._shape.total_steps)
        self._save(str(job.args["path"]), steps, weights)
        data = {"round": round_number, "next_step": steps, "sketch": list(weights)}
        return fx.ComputeDone(job_id, JobResult(busy_s=busy_s, data=data))

    def _save(self, path: str, steps: int, weights: Sequence[float]) -> None:
        share = WEIGHTS // PIECES
        shares = [weights[n * share : (n + 1) * share] for n in range(PIECES)]
        self._files.create(path, [json.dumps([self._stage, steps, part]) for part in shares])

    def _restore(self, path: str) -> bool:
        pieces = [json.loads(piece) for piece in self._files.content_of(path) or ()]
        if not pieces or any(piece[:2] != [self._stage, pieces[0][1]] for piece in pieces):
            return False
        weights = [weight for piece in pieces for weight in piece[2]]
        self.steps, self.outer = pieces[0][1], FakeOuter(weights)
        return True

    def _answer(
        self,
        job_id: int,
        busy_s: float,
        tensor: Tensor | Values | None,
        output_bytes: int,
        **fields: Any,
    ) -> fx.Event:
        output: BufferRef | None = None
        if output_bytes:
            output = self._slots.acquire(output_bytes, tensor)
            if output is None:
                return fx.ComputeFailed(job_id, JobFailure("out_of_memory", "no slot is free"))
        tokens = fields.get("samples", 0) * self._shape.sequence_tokens
        result = JobResult(output=output, tokens=tokens, busy_s=busy_s, cpu_s=busy_s, **fields)
        return fx.ComputeDone(job_id, result)


def _refs_of(job: Job) -> tuple[BufferRef, ...]:
    match job:
        case Forward(input=BufferRef() as ref) | Backward(gradient=ref):
            return (ref,)
        case StageCall(inputs=refs):
            return refs
    return ()
