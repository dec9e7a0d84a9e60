"""One stage's weights and everything that may touch them. Blocking, single-lane, no I/O but slots.

    answer = worker.run(job, inputs, output)     # memoryviews of slots in, bytes and figures out

The compute worker's process (and, in tests, the inline backend) calls `run` for one job after the
other; nobody else touches a weight, so there are no locks. A job either does all of what it says or
raises JobFailed with nothing changed: no gradient counted, no weight moved, no graph lost.

What a stage does with a micro-batch (algorithms.md 1.2, 3.1, 3.3):

    first     reads the samples, sends C                    ... later gets G U, counts its gradient
    middle    receives ids and C, sends ids and C           ... gets G U, sends its own G U back
    last      receives, computes the loss and its own backward at once, answers with G U
    only one  all of it in one job

The loss summed over samples is what is differentiated, so gradients add up over micro-batches of
any size; the step divides by the count. Weights are replaced at a step: graphs in flight keep
theirs.

Memory: with `micro_batch_max` below the micro-batch's size, it is computed in slices, and a stage
that must wait for its gradient keeps the inputs only and computes its forward again then. When
memory runs out, the slice is halved and the job done again.

Legend: B samples, T tokens (T1: one more, the targets), K coefficients per token, D width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from swarmd.compute.accumulator import GradientSums, MicroBatchGradients
from swarmd.compute.divergence import FixedBatch
from swarmd.compute.failure_codes import failure_of
from swarmd.compute.graphs import CountedMicroBatches, GraphKey, HeldGraph, HeldGraphs
from swarmd.compute.memory_limit import device_memory
from swarmd.compute.outer_state import OuterState
from swarmd.compute.stage_calls import STAGE_CALLS, load_checkpoint
from swarmd.compute.tensor_bytes import PayloadCodec
from swarmd.compute_api import WorkerConfig
from swarmd.errors import JobFailed
from swarmd.model.stage import build_stage
from swarmd.optim.inner import InnerOptimiser, clip_factor, gradient_norm
from swarmd.optim.schedule import learning_rate
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, Forget, Forward, Job, JobResult, StageCall, Step


class SampleSource(Protocol):
    """Where the first stage's samples come from; the same ones on every peer."""

    def samples(self, micro_batch: MicroBatchId) -> np.ndarray:
        """Token ids, one row of sequence_tokens + 1 a sample."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What `run` gives. `result.output` is None: which slot it was is the caller's knowledge."""

    result: JobResult
    output_bytes: int = 0
    """Written at the front of the output view; 0: nothing goes on."""


class StageWorker:
    """Runs jobs on one stage. See the module's header.

    The constructor raises what torch raises when a stage does not fit, and what `load_checkpoint`
    raises.
    """

    def __init__(self, config: WorkerConfig, *, corpus: SampleSource | None = None) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.config = config
        self.run_config = config.run
        self.device = torch.device(config.device)
        self.corpus = corpus
        self.codec = PayloadCodec.of(config.run)
        self.stage = build_stage(config.run, config.stage, device=self.device)
        self.params = self.stage.init_parameters()
        self.optimiser = InnerOptimiser.of(config.run.inner, self.stage)
        self.inner_state = self.optimiser.start(self.params)
        self.sums = GradientSums()
        self.graphs = HeldGraphs()
        self.counted = CountedMicroBatches()
        self.outer: OuterState | None = None
        """Of the outer rounds (outer_calls.py); None before the first."""
        self.fixed_batch: FixedBatch | None = None
        """What a last stage compares replicas on."""
        self.next_step = 0
        """The step that the present weights are for: they went through all before it."""
        self.steps_skipped = 0
        """Steps not taken for a gradient that was not finite."""
        self.slice_samples = min(
            config.micro_batch_max or config.run.micro_batch_samples, config.run.micro_batch_samples
        )
        """Sequences computed at a time."""
        self.before_job: Callable[[Job], None] = lambda job: None
        """Called inside `run`, so that what it raises is one of the job's own errors."""
        self.reads: Callable[[MicroBatchId], MicroBatchId] = lambda micro_batch: micro_batch
        """Whose samples are computed for a micro-batch: its own, but for a fault on purpose."""
        if config.state_file is not None:
            load_checkpoint(self, config.state_file)

    def run(
        self, job: Job, inputs: Sequence[memoryview] = (), output: memoryview | None = None
    ) -> Answer:
        """Do one job. `inputs` are exactly the bytes of its BufferRefs, in their order; `output` is
        a slot to write into, at least `info()["payload_bytes_max"]` for micro-batches.

        No view is kept. `result.data` of a micro-batch: counted (whether it entered the gradient
        sums), weight_version, and micro_batch_lowered_to if memory ran out on the way. Of a step:
        stepped, then lr, gradient_norm (of the mean, before the clip) and clip_factor, or reason.

        Raises JobFailed: a peer's bytes (malformed, wrong_shape, wrong_dtype, not_finite),
        not_finite for what was computed, unknown_micro_batch, data_missing, out_of_memory,
        device_lost, compute_failed.
        """
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        slice_before = self.slice_samples
        answer = None
        while answer is None:
            answer = self._try(job, inputs, output)
        result = replace(
            answer.result,
            busy_s=time.perf_counter() - wall_s,
            cpu_s=time.process_time() - cpu_s,
        )
        if self.slice_samples != slice_before:
            result.data["micro_batch_lowered_to"] = self.slice_samples
        result.data.update(device_memory(self.device))
        return Answer(result, answer.output_bytes)

    def _try(
        self, job: Job, inputs: Sequence[memoryview], output: memoryview | None
    ) -> Answer | None:
        """None: memory ran out, the slice is smaller now, try again. By then the error is gone, and
        with it the frames that held the tensors."""
        try:
            self.before_job(job)
            return self._do(job, inputs, output)
        except JobFailed:
            raise
        except Exception as error:
            failure = failure_of(error)
            is_sliced = isinstance(job, (Forward, Backward))
            if failure.code == "out_of_memory" and is_sliced and self._halve_slice():
                return None
            raise JobFailed(failure.code, failure.text) from error

    def _do(self, job: Job, inputs: Sequence[memoryview], output: memoryview | None) -> Answer:
        match job:
            case Forward():
                return self._forward(job, inputs, output)
            case Backward():
                return self._backward(job, inputs, output)
            case Forget(micro_batch, attempt):
                was_held = self.graphs.forget(GraphKey(micro_batch, attempt))
                return Answer(JobResult(data={"was_held": was_held}))
            case Step(step):
                return self._step(step)
            case StageCall(name, args):
                if name not in STAGE_CALLS:
                    raise JobFailed("compute_failed", f"no stage call {name}")
                data, output_bytes = STAGE_CALLS[name](self, args, inputs, output)
                return Answer(JobResult(data=data), output_bytes)

    # ---------------------------------------------------------------------------------- forward

    def _forward(
        self, job: Forward, inputs: Sequence[memoryview], output: memoryview | None
    ) -> Answer:
        assert not (job.train and job.micro_batch.held_out), "held out is never trained on"
        ids_BT1, received_BTK = self._read(job.micro_batch, inputs)
        if not job.train:
            return self._look(ids_BT1, received_BTK, output)
        if self.stage.is_last:
            return self._finish(job.micro_batch, ids_BT1, received_BTK, output)
        graph = HeldGraph(self.params, ids_BT1, received_BTK, None)
        if received_BTK is not None:
            received_BTK.requires_grad_()
        if len(self._cuts(graph.samples)) == 1:
            sent_BTK = graph.sent_BTK = self._layers(self.params, ids_BT1, received_BTK)
        else:
            sent_BTK = self._layers_without_graph(ids_BT1, received_BTK)
        assert output is not None, "a stage that is not the last sends something"
        output_bytes = self.codec.pack_forward(output, ids_BT1, sent_BTK)
        self.graphs.hold(GraphKey(job.micro_batch, job.attempt), graph)
        return self._answer(ids_BT1, output_bytes=output_bytes)

    def _look(
        self, ids_BT1: Tensor, received_BTK: Tensor | None, output: memoryview | None
    ) -> Answer:
        """Forward only: nothing is kept, nothing is learned."""
        if not self.stage.is_last:
            sent_BTK = self._layers_without_graph(ids_BT1, received_BTK)
            assert output is not None, "a stage that is not the last sends something"
            output_bytes = self.codec.pack_forward(output, ids_BT1, sent_BTK)
            return self._answer(ids_BT1, output_bytes=output_bytes)
        if self.fixed_batch is None:
            self.fixed_batch = FixedBatch.of(ids_BT1, received_BTK)
        loss_sum = 0.0
        with torch.no_grad():
            for cut in self._cuts(len(ids_BT1)):
                loss = self._loss(self.params, ids_BT1[cut], _part(received_BTK, cut))
                loss_sum += loss.item()
        return self._answer(ids_BT1, loss_sum=_finite(loss_sum))

    def _finish(
        self,
        micro_batch: MicroBatchId,
        ids_BT1: Tensor,
        received_BTK: Tensor | None,
        output: memoryview | None,
    ) -> Answer:
        """Last stage: loss, and its own backward at once."""
        is_new = micro_batch not in self.counted
        loss_sum = 0.0
        gathered = MicroBatchGradients()
        for cut in self._cuts(len(ids_BT1)):
            leaf_BTK = _leaf(received_BTK, cut)
            loss = self._loss(self.params, ids_BT1[cut], leaf_BTK)
            loss_sum += loss.item()
            gathered.add(loss, None, self.params if is_new else {}, leaf_BTK)
        _finite(loss_sum)
        output_bytes = self._count(micro_batch, gathered, is_new, len(ids_BT1), output)
        return self._answer(ids_BT1, loss_sum=loss_sum, output_bytes=output_bytes, counted=is_new)

    # --------------------------------------------------------------------------------- backward

    def _backward(
        self, job: Backward, inputs: Sequence[memoryview], output: memoryview | None
    ) -> Answer:
        key = GraphKey(job.micro_batch, job.attempt)
        graph = self.graphs.get(key)
        if graph is None:
            raise JobFailed("unknown_micro_batch", f"{job.micro_batch} attempt {job.attempt}")
        gradient_BTK = self.codec.unpack_gradient(
            _only(inputs), samples=graph.samples, device=self.device
        )
        is_new = job.accumulate and job.micro_batch not in self.counted
        wanted = graph.params if is_new else {}
        gathered = MicroBatchGradients()
        # Autograd consumes the graph even when it fails: from here on it would be made again.
        sent_BTK, graph.sent_BTK = graph.sent_BTK, None
        if sent_BTK is not None:
            gathered.add(sent_BTK, gradient_BTK, wanted, graph.received_BTK)
        elif wanted or graph.received_BTK is not None:
            for cut in self._cuts(graph.samples):
                leaf_BTK = _leaf(graph.received_BTK, cut)
                again_BTK = self._layers(graph.params, graph.ids_BT1[cut], leaf_BTK)
                gathered.add(again_BTK, gradient_BTK[cut], wanted, leaf_BTK)
        output_bytes = self._count(job.micro_batch, gathered, is_new, graph.samples, output)
        self.graphs.forget(key)
        return self._answer(graph.ids_BT1, output_bytes=output_bytes, counted=is_new)

    def _count(
        self,
        micro_batch: MicroBatchId,
        gathered: MicroBatchGradients,
        is_new: bool,
        samples: int,
        output: memoryview | None,
    ) -> int:
        """Write the input's gradient, add the weights'. Either may refuse; then nothing counts."""
        output_bytes = 0
        if not self.stage.is_first:
            assert output is not None, "a stage that is not the first sends a gradient back"
            output_bytes = self.codec.pack_gradient(output, gathered.input_gradient())
        if is_new:
            self.sums.add(gathered.weights, samples)
            self.counted.add(micro_batch)
        return output_bytes

    # ------------------------------------------------------------------------------------- step

    def _step(self, step: int) -> Answer:
        """The gradient's mean, clipped at this stage's share, at the step's own learning rate.

        Should it fail for want of memory, the gradients are lost and the weights are as they were.
        """
        sums, samples = self.sums.take()
        self.next_step = step + 1
        if not samples:
            return Answer(JobResult(data={"stepped": False, "reason": "no_samples"}))
        norm = gradient_norm(sums) / samples
        if not math.isfinite(norm):
            self.steps_skipped += 1
            return Answer(JobResult(data={"stepped": False, "reason": "not_finite"}))
        inner = self.run_config.inner
        factor = clip_factor(norm, clip=inner.clip, stages=self.run_config.stages)
        lr = learning_rate(step, inner=inner, total_steps=self.run_config.total_steps)
        means = torch._foreach_mul(list(sums.values()), factor / samples)
        self.params = self.optimiser.step(
            self.params, dict(zip(sums, means, strict=True)), self.inner_state, lr=lr
        )
        data = {"stepped": True, "lr": lr, "gradient_norm": norm, "clip_factor": factor}
        return Answer(JobResult(samples=samples, data=data))

    # ----------------------------------------------------------------------------------- pieces

    def _read(
        self, micro_batch: MicroBatchId, inputs: Sequence[memoryview]
    ) -> tuple[Tensor, Tensor | None]:
        if not self.stage.is_first:
            return self.codec.unpack_forward(_only(inputs), device=self.device)
        if self.corpus is None:
            raise JobFailed("data_missing", "this worker was started without a corpus")
        ids = self.corpus.samples(self.reads(micro_batch))
        assert ids.shape[1:] == (self.run_config.sequence_tokens + 1,), ids.shape
        return torch.from_numpy(ids.astype(np.int64)).to(self.device), None

    def _layers(
        self, params: dict[str, Tensor], ids_BT1: Tensor, received_BTK: Tensor | None
    ) -> Tensor:
        return self.stage.forward(
            params, ids_BT1[:, :-1], received_BTK, recompute=self.config.recompute
        )

    def _layers_without_graph(self, ids_BT1: Tensor, received_BTK: Tensor | None) -> Tensor:
        # Not inference_mode: tables that the stage makes on the way must serve graphs later.
        with torch.no_grad():
            parts = [
                self._layers(self.params, ids_BT1[cut], _part(received_BTK, cut))
                for cut in self._cuts(len(ids_BT1))
            ]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _loss(
        self, params: dict[str, Tensor], ids_BT1: Tensor, received_BTK: Tensor | None
    ) -> Tensor:
        """Sum over samples of the mean loss per token."""
        hidden_BTD = self._layers(params, ids_BT1, received_BTK)
        return self.stage.loss_sum(params, hidden_BTD, ids_BT1[:, 1:])

    def _cuts(self, samples: int) -> list[slice]:
        size = min(self.slice_samples, samples)
        return [slice(start, start + size) for start in range(0, samples, size)]

    def _halve_slice(self) -> bool:
        """Whether there was anything left to halve."""
        if self.slice_samples <= 1:
            return False
        self.slice_samples //= 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return True

    def _answer(
        self,
        ids_BT1: Tensor,
        *,
        loss_sum: float | None = None,
        output_bytes: int = 0,
        counted: bool = False,
    ) -> Answer:
        samples = len(ids_BT1)
        data = {"counted": counted, "weight_version": self.next_step}
        tokens = samples * self.run_config.sequence_tokens
        return Answer(JobResult(None, samples, tokens, loss_sum, data=data), output_bytes)


def _part(x_BTK: Tensor | None, cut: slice) -> Tensor | None:
    return None if x_BTK is None else x_BTK[cut]


def _leaf(x_BTK: Tensor | None, cut: slice) -> Tensor | None:
    return None if x_BTK is None else x_BTK.detach()[cut].requires_grad_()


def _only(inputs: Sequence[memoryview]) -> memoryview:
    if len(inputs) != 1:
        raise JobFailed("malformed", f"{len(inputs)} inputs where one belongs")
    return inputs[0]


def _finite(loss_sum: float) -> float:
    if not math.isfinite(loss_sum):
        raise JobFailed("not_finite", "the loss is not finite")
    return loss_sum
