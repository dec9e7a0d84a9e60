"""What follows when the compute worker has done a job, has failed at one, or is gone."""

from __future__ import annotations

import math

from swarmd.protocols.effects import Emit
from swarmd.protocols.jobs import Backward, Forward, JobFailure, JobResult, Step
from swarmd.protocols.lane import LaneJob
from swarmd.protocols.messages.pipeline import LOSS_SUM_MAX
from swarmd.protocols.passage import Outbound, Passage
from swarmd.protocols.passage_table import PassageTable
from swarmd.protocols.receipts import CALLED

PAYLOAD_CODES = ("malformed", "wrong_shape", "wrong_dtype", "not_finite")
"""With these the worker blames the bytes that a peer sent. not_finite may be our own doing: one is
evidence, no more."""
LOST_CODES = ("worker_died", "device_lost")
WORK_EMA_WEIGHT = 0.2


class JobResults:
    """Carries passages on from one job to whatever comes next."""

    def __init__(self, table: PassageTable) -> None:
        self.work_s = 0.0
        """What a micro-batch costs the worker, as of late."""
        self._table = table

    # --------------------------------------------------------------------------------------- done

    def done(self, job_id: int, result: JobResult, now_s: float) -> None:
        entry = self._table.lane.ended(job_id)
        if entry is None:
            return
        if entry.counts_into is not None:
            self._table.faults.useful(now_s)
        if isinstance(entry.job, Step):
            self._stepped(entry.job, result)
        elif entry.passage is None:
            self._nobody_waits(entry, result)
        elif isinstance(entry.job, Forward):
            self._forward_done(entry.passage, result, now_s)
        else:
            self._backward_done(entry.passage, result)

    def _stepped(self, job: Step, result: JobResult) -> None:
        is_taken = bool(result.data.get("stepped", True))
        self._table.counters.steps_taken += is_taken
        self._table.counters.steps_failed += not is_taken
        fields = {"step": job.step, "is_taken": is_taken, "data": result.data}
        self._table.effects.append(Emit("pipeline/stepped", fields))

    def _nobody_waits(self, entry: LaneJob, result: JobResult) -> None:
        self._table.release(result.output)
        is_last = self._table.shape.is_last
        if isinstance(entry.job, Forward) and entry.job.train and not is_last:
            self._table.lane.forget(entry.job.micro_batch, entry.job.attempt)

    def _forward_done(self, passage: Passage, result: JobResult, now_s: float) -> None:
        table = self._table
        passage.busy_s += result.busy_s
        if table.shape.is_first and not passage.is_trained and result.samples:
            passage.samples = result.samples
            passage.tokens = result.samples * table.shape.run.sequence_tokens
        if table.shape.is_last:
            self._last_stage_done(passage, result)
        elif result.output is None:
            table.fail(passage, "compute_failed", "a forward without output")
        else:
            passage.has_graph = passage.is_trained
            passage.outbound = Outbound(result.output, table.bounds.retry_s_first)
            table.hop.send(passage, now_s)

    def _last_stage_done(self, passage: Passage, result: JobResult) -> None:
        table = self._table
        needs_output = passage.is_trained and passage.caller is not None
        if result.loss_sum is None or (result.output is None and needs_output):
            table.release(result.output)
            table.fail(passage, "compute_failed", "a last stage without loss or gradient")
            return
        if not math.isfinite(result.loss_sum) or abs(result.loss_sum) > LOSS_SUM_MAX:
            table.release(result.output)
            table.fail(passage, "not_finite", "loss")
            return
        passage.loss_sum = result.loss_sum
        self._worked(passage.busy_s)
        if needs_output:
            table.answer(passage, result.output)
        else:
            table.release(result.output)
            table.answer(passage, None)

    def _backward_done(self, passage: Passage, result: JobResult) -> None:
        table = self._table
        passage.busy_s += result.busy_s
        passage.has_graph = False
        self._worked(passage.busy_s)
        if passage.caller is None:
            table.release(result.output)
            table.answer(passage, None)
        elif result.output is None:
            table.fail(passage, "compute_failed", "a backward without output")
        else:
            table.answer(passage, result.output)

    def _worked(self, busy_s: float) -> None:
        weight = WORK_EMA_WEIGHT if self.work_s else 1.0
        self.work_s += weight * (busy_s - self.work_s)

    # ------------------------------------------------------------------------------------- failed

    def failed(self, job_id: int, failure: JobFailure, now_s: float) -> None:
        table = self._table
        entry = table.lane.ended(job_id)
        if entry is None:
            return
        table.lane.uncount(entry)
        failures = table.counters.compute_failures
        failures[failure.code] = failures.get(failure.code, 0) + 1
        if failure.code in LOST_CODES:
            table.lane.is_ready = False
        if isinstance(entry.job, Step):
            table.counters.steps_failed += 1
            fields = {"step": entry.job.step, "is_taken": False, "data": {"reason": failure.code}}
            table.effects.append(Emit("pipeline/stepped", fields))
        elif entry.passage is None:
            if isinstance(entry.job, Backward) and table.lane.is_ready:
                table.lane.forget(entry.job.micro_batch, entry.job.attempt)
        elif isinstance(entry.job, Forward):
            self._forward_failed(entry.passage, failure, now_s)
        else:
            self._backward_failed(entry.passage, failure, now_s)

    def _forward_failed(self, passage: Passage, failure: JobFailure, now_s: float) -> None:
        table = self._table
        if failure.code in PAYLOAD_CODES and passage.caller is not None:
            table.reject(passage.caller, failure.code, passage.micro_batch)
        else:
            table.faults.fault(failure.code, None, now_s)
        table.fail(passage, failure.code, failure.text)

    def _backward_failed(self, passage: Passage, failure: JobFailure, now_s: float) -> None:
        """If the gradient's bytes were bad, another replica may have better: the graph stays."""
        table = self._table
        outbound = passage.outbound
        if failure.code in PAYLOAD_CODES and outbound is not None and outbound.won_by is not None:
            table.saw(passage, outbound.won_by, CALLED, is_good=False)
            table.reject(outbound.won_by, failure.code, passage.micro_batch)
            code = table.hop.was_bad(passage, failure.code, now_s)
            if code is not None:
                table.fail(passage, code, failure.text)
            return
        table.faults.fault(failure.code, None, now_s)
        table.fail(passage, failure.code, failure.text)

    def lost(self, code: str, text: str, now_s: float) -> None:
        """The worker is gone with every graph: nothing that is under way can be finished here."""
        table = self._table
        table.lane.is_ready = False
        table.faults.fault(code, None, now_s)
        for passage in table.all():
            table.fail(passage, code, text)
        table.lane.lost()
