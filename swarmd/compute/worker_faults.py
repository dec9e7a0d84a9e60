"""The faults on purpose that a worker suffers or commits, so that they can be seen survived.

    oom  device_lost  worker_exit  wedge=compute  slow=FACTOR  busy_start=DURATION  repeat_batch

and the lies of worker_lies.py (grammar and all other kinds: swarmd/injection.py). oom, device_lost,
worker_exit and wedge happen once, at the first job for which their time has come; given a share,
they happen at that share of jobs from then on. They strike where the real fault would, through the
same error paths.

A worker that was started again (`life` above 0) is spared what killed the one before it, else one
`worker_exit` would kill every worker after it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarmd.compute.failure_codes import DeviceLost
from swarmd.injection import LIES_OF_THE_WORKER, OF_THE_WORKER, Injection, parse_injection
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, Forward, Job, StageCall, Step
from swarmd.run_config import RunConfig

if TYPE_CHECKING:
    from swarmd.compute.worker_lies import WorkerLies

FATAL = ("device_lost", "worker_exit", "wedge")
STRIKING = ("oom", *FATAL)
WEDGE_HERE = "compute"
"""The phase of `wedge` that is ours."""


class WorkerExit(BaseException):
    """The injected end of the process. No handler for errors may catch it."""


class Wedged(BaseException):
    """The injected hang; whoever runs the jobs hangs then, if that is possible."""


@dataclass(slots=True)
class _Fault:
    spec: Injection
    spent: bool = False

    @property
    def share(self) -> float | None:
        """Of jobs it strikes; None: once."""
        return self.spec.param if isinstance(self.spec.param, float) else None


class WorkerFaults:
    """What this worker will suffer and do. `strike` and `overhear` go before each job, `spoil` and
    `stretch` after it.

    Raises BadValue for a spec that makes no sense.
    """

    def __init__(
        self,
        specs: Sequence[str],
        run: RunConfig,
        *,
        stage: int = 0,
        life: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._clock = clock
        self._random = random.Random(f"faults/{run.seed}/{stage}")
        self._round = -1
        self._step = -1
        self._lies_told: WorkerLies | None = None
        self._repeated: MicroBatchId | None = None
        self.replace(specs)
        for fault in self._faults:
            fault.spent = life > 0 and fault.spec.kind in FATAL and fault.share is None
        self.start_delay_s = 0.0
        """`busy_start`: how long to hold the start up, as a slow machine would."""
        if life == 0:
            self.start_delay_s = sum(
                fault.spec.param for fault in self._faults if fault.spec.kind == "busy_start"
            )

    @property
    def active(self) -> list[str]:
        """What is still to come, as it was written."""
        return [fault.spec.text for fault in self._faults if not fault.spent]

    def replace(self, specs: Sequence[str]) -> None:
        """From now on these, and no others. What belongs to other parts of the peer is ignored."""
        parsed = [parse_injection(spec) for spec in specs]
        self._faults = [_Fault(spec) for spec in parsed if _is_ours(spec)]
        self._since_s = self._clock()

    def strike(self, job: Job) -> None:
        """Raises what is due: MemoryError, DeviceLost, WorkerExit or Wedged."""
        self._note(job)
        for fault in self._faults:
            if fault.spec.kind in STRIKING and self._is_due(fault, job):
                fault.spent = fault.share is None
                raise _ERRORS[fault.spec.kind]("injected")

    def reads(self, micro_batch: MicroBatchId) -> MicroBatchId:
        """Whose samples are computed for it: with `repeat_batch`, of the first for ever."""
        repeats = any(self._has_come(spec) for spec in self._specs({"repeat_batch"}))
        if not repeats or micro_batch.held_out:
            return micro_batch
        self._repeated = self._repeated or micro_batch
        return self._repeated

    def overhear(self, job: Job, inputs: Sequence[memoryview]) -> None:
        """Keep what others sent, if a lie will want it."""
        is_reduced = isinstance(job, StageCall) and job.name == "mix_reduce"
        if is_reduced and self._specs({"copy_update"}):
            assert isinstance(job, StageCall), "a mean is reduced by a stage call"
            self._lies.overhear(job, inputs)

    def spoil(self, job: Job, output: memoryview | None, output_bytes: int) -> int:
        """Tell the lies that are due about what was packed for a mix. Returns the bytes to send."""
        lies = [spec for spec in self._specs(LIES_OF_THE_WORKER) if self._has_come(spec)]
        is_part = isinstance(job, StageCall) and job.name == "mix_part"
        if not (lies and is_part and output is not None and output_bytes):
            return output_bytes
        assert isinstance(job, StageCall), "a part is packed by a stage call"
        return self._lies.spoil(lies, self._round, job, output[:output_bytes])

    def stretch(self, busy_s: float) -> float:
        """`slow`: make a job that took `busy_s` take longer. Returns by how much, s."""
        added_s = 0.0
        for spec in self._specs({"slow"}):
            if self._has_come(spec):
                added_s += max(0.0, busy_s * (spec.param - 1))
        if added_s:
            time.sleep(added_s)
        return added_s

    @property
    def _lies(self) -> WorkerLies:
        if self._lies_told is None:
            # Here, since it needs torch, and a worker offers itself before it loads that.
            from swarmd.compute.worker_lies import WorkerLies

            self._lies_told = WorkerLies()
        return self._lies_told

    def _specs(self, kinds: Collection[str]) -> list[Injection]:
        return [fault.spec for fault in self._faults if fault.spec.kind in kinds]

    def _note(self, job: Job) -> None:
        match job:
            case Forward(micro_batch=micro_batch) | Backward(micro_batch=micro_batch):
                if not micro_batch.held_out:
                    self._round = max(self._round, micro_batch.round)
                    step = self._run.step_of(micro_batch.round, micro_batch.index)
                    self._step = max(self._step, step)
            case Step(step=step):
                self._step = max(self._step, step)

    def _is_due(self, fault: _Fault, job: Job) -> bool:
        if fault.spent or not self._has_come(fault.spec):
            return False
        if fault.spec.kind == "oom" and not isinstance(job, (Forward, Backward)):
            return False  # only these are large
        return fault.share is None or self._random.random() < fault.share

    def _has_come(self, spec: Injection) -> bool:
        match spec.trigger:
            case "now":
                return True
            case "round":
                return self._round >= spec.at
            case "step":
                return self._step >= spec.at
            case "after":
                return self._clock() - self._since_s >= spec.at


_ERRORS: dict[str, type[BaseException]] = {
    "oom": MemoryError,
    "device_lost": DeviceLost,
    "worker_exit": WorkerExit,
    "wedge": Wedged,
}


def _is_ours(spec: Injection) -> bool:
    if spec.kind == "wedge":
        return bool(spec.param == WEDGE_HERE)
    return spec.kind in OF_THE_WORKER
