"""The baseline twin: what a swarm's curve is held against. A plain loop in one process.

The same model with the same constraint at its boundaries, but nothing on a wire: the stages are
called one after the other inside one graph, no codec, no slots, no jobs. The same seed, the same
tokens in the same order, the same micro-batches accumulated into the same steps, the same learning
rate. Everything else is a code path of its own: torch's own optimisers change the weights in place,
`loss.backward()` accumulates, and the clip is written out here, so that a mistake in the worker is
not made twice. Always float32: a swarm that is as good as its twin lost nothing to its wire.

    python -m swarmd.compute.twin --run FILE --cache DIR [--threads N] [--json]

FILE holds the canonical bytes of a RunConfig. A line a step; at the end the loss on the same
held-out sequences that the swarm looks at.

Legend: B samples, T1 tokens and one target more.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from swarmd.compute.training_command import TrainingCommand
from swarmd.model.stage import Parameters, Stage, build_stage
from swarmd.optim.inner import MUON_MOMENTUM, MUON_RMS, orthogonalise
from swarmd.optim.schedule import learning_rate
from swarmd.protocols.ids import MicroBatchId
from swarmd.run_config import RunConfig

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import SampleSource


@dataclass(frozen=True, slots=True)
class TwinStep:
    """One inner step."""

    step: int
    loss: float
    """Mean over the step's tokens, nats, before the step is taken."""
    tokens: int
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s


@dataclass(frozen=True, slots=True)
class TwinResult:
    losses: tuple[float, ...]
    held_out: float
    """Mean loss per token at the end, nats."""
    tokens_per_s: float
    """Over all steps but the first, which pays for warming up."""


def train_twin(
    run: RunConfig, corpus: SampleSource, on_step: Callable[[TwinStep], None] | None = None
) -> TwinResult:
    """Train the whole run on the CPU, in as many threads as torch is set to."""
    stages = [build_stage(run, index) for index in range(run.stages)]
    weights = [stage.init_parameters() for stage in stages]
    optimisers = _optimisers(run, stages, weights)
    steps: list[TwinStep] = []
    for step in range(run.total_steps):
        started_s = time.perf_counter()
        loss_sum, samples = _accumulate(run, stages, weights, corpus, step)
        for stage_weights in weights:
            _mean_and_clip(stage_weights, samples, run.inner.clip / math.sqrt(run.stages))
        lr = learning_rate(step, inner=run.inner, total_steps=run.total_steps)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = lr
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        elapsed_s = time.perf_counter() - started_s
        steps.append(TwinStep(step, loss_sum / samples, samples * run.sequence_tokens, elapsed_s))
        if on_step is not None:
            on_step(steps[-1])
    steady = steps[1:] or steps
    return TwinResult(
        losses=tuple(step.loss for step in steps),
        held_out=held_out_loss(run, stages, weights, corpus),
        tokens_per_s=sum(step.tokens for step in steady) / sum(step.elapsed_s for step in steady),
    )


def held_out_loss(
    run: RunConfig, stages: list[Stage], weights: list[Parameters], corpus: SampleSource
) -> float:
    """Mean loss per token on the run's held-out sequences, nats."""
    loss_sum, samples = 0.0, 0
    with torch.no_grad():
        for index in range(run.shape.held_out_micro_batches):
            ids_BT1 = _ids(corpus, MicroBatchId(0, index, held_out=True))
            loss_sum += _loss_sum(stages, weights, ids_BT1).item()
            samples += len(ids_BT1)
    return loss_sum / samples


def _accumulate(
    run: RunConfig, stages: list[Stage], weights: list[Parameters], corpus: SampleSource, step: int
) -> tuple[float, int]:
    """Leave the gradients summed over the step's samples in `.grad`; (sum of losses, samples)."""
    round_number = step // run.inner_steps
    first = (step % run.inner_steps) * run.micro_batches_per_step
    end = min(first + run.micro_batches_per_step, run.micro_batches_of_round(round_number))
    loss_sum, samples = 0.0, 0
    for index in range(first, end):
        ids_BT1 = _ids(corpus, MicroBatchId(round_number, index))
        loss = _loss_sum(stages, weights, ids_BT1)
        loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += loss.item()
        samples += len(ids_BT1)
    return loss_sum, samples


def _loss_sum(stages: list[Stage], weights: list[Parameters], ids_BT1: Tensor) -> Tensor:
    state = None
    for stage, stage_weights in zip(stages, weights, strict=True):
        state = stage.forward(stage_weights, ids_BT1[:, :-1], state)
    assert state is not None
    return stages[-1].loss_sum(weights[-1], state, ids_BT1[:, 1:])


def _ids(corpus: SampleSource, micro_batch: MicroBatchId) -> Tensor:
    return torch.from_numpy(corpus.samples(micro_batch).astype(np.int64))


def _mean_and_clip(weights: Parameters, samples: int, threshold: float) -> None:
    """One stage's gradient: its mean over samples, of a norm of at most `threshold`."""
    grads = [weight.grad for weight in weights.values() if weight.grad is not None]
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads)) / samples
    for grad in grads:
        grad.mul_(min(1.0, threshold / norm if norm else 1.0) / samples)


# -------------------------------------------------------------------------------------- optimisers


def _optimisers(
    run: RunConfig, stages: list[Stage], weights: list[Parameters]
) -> list[torch.optim.Optimizer]:
    """torch's own, over all stages; Muon's matrices, if any, have one beside it."""
    inner = run.inner
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for stage, stage_weights in zip(stages, weights, strict=True):
        for name, weight in stage_weights.items():
            is_muons = inner.kind == "muon" and stage.orthogonalises(name)
            groups.setdefault((is_muons, stage.decays(name)), []).append(weight)
    plain, muons = (
        [
            {"params": members, "weight_decay": inner.decay * decays}
            for (is_muons, decays), members in sorted(groups.items(), key=lambda item: item[0])
            if is_muons is wanted
        ]
        for wanted in (False, True)
    )
    betas = (inner.beta1, inner.beta2)
    adam: torch.optim.Optimizer
    if inner.kind == "nadamw":
        adam = torch.optim.NAdam(
            plain, lr=inner.lr, betas=betas, eps=inner.eps, decoupled_weight_decay=True
        )
    else:
        adam = torch.optim.AdamW(plain, lr=inner.lr, betas=betas, eps=inner.eps, fused=True)
    return [adam, _Muon(muons, lr=inner.lr)] if muons else [adam]


class _Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; written the usual way, in place."""

    def __init__(self, groups: list[dict[str, Any]], *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                buffer = self.state[weight].setdefault("buffer", torch.zeros_like(weight))
                buffer.mul_(MUON_MOMENTUM).add_(weight.grad, alpha=1 - MUON_MOMENTUM)
                update = (1 - MUON_MOMENTUM) * weight.grad + MUON_MOMENTUM * buffer
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                rate = group["lr"] * MUON_RMS * math.sqrt(max(weight.shape))
                weight.sub_(rate * orthogonalise(update))


# ------------------------------------------------------------------------------------ command line


def main(arguments: list[str]) -> int:
    """Lines to standard output: one a step, and one with the result."""
    command = TrainingCommand("python -m swarmd.compute.twin")
    run_and_corpus = command.open(arguments)
    if isinstance(run_and_corpus, int):
        return run_and_corpus
    run, corpus = run_and_corpus

    def tell_step(step: TwinStep) -> None:
        rate = round(step.tokens_per_s, 1)
        command.tell({"step": step.step, "loss": round(step.loss, 6), "tokens_per_s": rate})

    result = train_twin(run, corpus, tell_step)
    command.tell(
        {
            "loss_heldout": round(result.held_out, 6),
            "loss_first": round(result.losses[0], 6),
            "loss_last": round(result.losses[-1], 6),
            "tokens_per_s": round(result.tokens_per_s, 1),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
