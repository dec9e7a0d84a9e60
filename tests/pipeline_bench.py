"""One Pipeline by itself, told message by message; its effects are looked at, not carried out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

from pipeline_worker import FAST_LIMITS, run_shape

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import BufferRef, JobResult
from swarmd.protocols.messages import pipeline as wire
from swarmd.protocols.pipeline import Pipeline
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape, micro_batch_ref
from swarmd.protocols.pipeline_statistics import PipelineStatistics
from swarmd.protocols.routing import Candidate, Router

HEAD, HEAD2, NEXT, NEXT2 = (PeerId(f"peer-{name}") for name in ("head", "head2", "next", "next2"))
MB = MicroBatchId(0, 0)


class Bench:
    """A machine of the given stage of three, its effects, and its slots."""

    def __init__(self, stage: int, bounds: PipelineLimits = FAST_LIMITS) -> None:
        self.shape = PipelineShape(run_shape(3, rounds=3, held_out=1), stage)
        self.machine = Pipeline(
            self.shape,
            router=Router(random.Random(1)),
            bounds=bounds,
            next_job_id=itertools.count().__next__,
        )
        self.now_s = 0.0
        self.slots: set[BufferRef] = set()
        self.numbers = itertools.count()
        self.jobs: dict[int, Any] = {}
        self.out: list[fx.Effect] = []
        self.tell(fx.ComputeReady({}))
        for peer in (HEAD, HEAD2, NEXT, NEXT2):
            self.tell(fx.LinkUp(peer))
        candidates = (Candidate(NEXT, 1, 100.0),) if stage < 2 else ()
        self.do(self.machine.set_next_stage(candidates, 0.0))

    def slot(self) -> BufferRef:
        ref = BufferRef(next(self.numbers), 0, 1000)
        self.slots.add(ref)
        return ref

    def do(self, effects: list[fx.Effect]) -> list[fx.Effect]:
        for effect in effects:
            match effect:
                case fx.Release(ref):
                    self.slots.remove(ref)
                case fx.Compute(job_id, job):
                    self.jobs[job_id] = job
        self.out = effects
        return effects

    def tell(self, event: fx.Event) -> list[fx.Effect]:
        return self.do(self.machine.handle(event, self.now_s))

    def forward(self, peer: PeerId = HEAD, **changes: Any) -> list[fx.Effect]:
        with_payload = changes.pop("with_payload", True)
        attempt = changes.pop("attempt", 7)
        micro_batch = changes.pop("micro_batch", MB)
        message = wire.Forward(
            ref=micro_batch_ref(micro_batch, attempt),
            first_attempt=changes.pop("first_attempt", attempt),
            to_stage=self.shape.stage,
            basis_version=0,
            samples=2,
            tokens=16,
            deadline_s=5.0,
        )
        message = replace(message, **changes)
        return self.tell(fx.Arrived(peer, message, self.slot() if with_payload else None))

    def finish_job(self, kind: type[Any], **result: Any) -> list[fx.Effect]:
        job_id = next(number for number, job in self.jobs.items() if isinstance(job, kind))
        del self.jobs[job_id]
        return self.tell(fx.ComputeDone(job_id, JobResult(samples=2, tokens=16, **result)))

    def sent(self, kind: type[Any]) -> list[Any]:
        return [
            e.message for e in self.out if isinstance(e, fx.Send) and isinstance(e.message, kind)
        ]

    def gradient(self, attempt: int, peer: PeerId = NEXT, **changes: Any) -> list[fx.Effect]:
        with_payload = changes.pop("with_payload", True)
        message = wire.Gradient(
            ref=micro_batch_ref(changes.pop("micro_batch", MB), attempt),
            basis_version=0,
            samples=2,
            loss_sum=5.0,
            busy_s=0.01,
        )
        message = replace(message, **changes)
        return self.tell(fx.Arrived(peer, message, self.slot() if with_payload else None))

    @property
    def statistics(self) -> PipelineStatistics:
        return self.machine.statistics(self.now_s)

    def check_untouched(self) -> None:
        assert not self.slots
        assert self.machine.is_empty
        assert self.statistics.in_flight == {}
