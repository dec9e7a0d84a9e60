"""The cut model in one process a stage has the uncut twin's loss and gradients (S1, S-A).

What tests/unit/test_boundary_exactness.py shows for stages in one process, over the real boundary:
spawned workers, shared memory, packed payloads. A gradient inside a stage shows in its norm, one
between two stages is compared whole: the twin's own, projected onto the basis.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import trio
from compute_helpers import make_worker, micro_batches_of, small_run
from torch import Tensor
from twin_llama import (
    ExtraWriter,
    Weights,
    make_stages,
    scattered_weights,
    twin_gradients,
    twin_loss,
)

from swarmd.buffers import SlotPool
from swarmd.compute.tensor_bytes import PayloadCodec
from swarmd.compute_api import WorkerConfig
from swarmd.node.process_backend import ProcessBackend
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, Forward, StageCall, Step
from swarmd.run_config import RunConfig

pytestmark = pytest.mark.process

torch.set_num_threads(1)

DEVICE = torch.device("cpu")
TOLERANCE = 1e-5
"""Of recipe S1 in float32, which is what crosses this wire."""


def run_of(kind: str, stages: int) -> RunConfig:
    run = small_run(stages, kind=kind, wire="fp32")
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=256))


def write_states(run: RunConfig, weights: Weights, folder: Path) -> list[Path]:
    """Each stage's state file, with weights of which none is zero, as at the start many are."""
    paths = []
    for stage, params in enumerate(weights):
        worker = make_worker(run, stage)
        worker.params = params
        paths.append(folder / f"{stage}.safetensors")
        worker.run(StageCall("state", {"path": str(paths[-1])}))
    return paths


class Seen:
    """One micro-batch there and back through processes."""

    def __init__(self) -> None:
        self.ids_BT1 = torch.empty(0)
        self.loss = 0.0
        self.boundary_gradients: list[Tensor] = []
        self.norms: list[float] = []


async def through(
    backends: list[ProcessBackend], run: RunConfig, micro_batch: MicroBatchId, pool: SlotPool
) -> Seen:
    codec, seen = PayloadCodec.of(run), Seen()
    sent = await backends[0].submit(Forward(micro_batch, 0, True))
    for backend in backends[1:]:
        assert sent.output is not None
        seen.ids_BT1, _ = codec.unpack_forward(pool.view(sent.output), device=DEVICE)
        passed = sent.output
        sent = await backend.submit(Forward(micro_batch, 0, True, passed))
        pool.release(passed)
    assert sent.loss_sum is not None
    seen.loss = sent.loss_sum
    for backend in reversed(backends[:-1]):
        assert sent.output is not None
        gradient_BTK = codec.unpack_gradient(
            pool.view(sent.output), samples=len(seen.ids_BT1), device=DEVICE
        )
        seen.boundary_gradients.insert(0, gradient_BTK.clone())
        passed = sent.output
        sent = await backend.submit(Backward(micro_batch, 0, passed))
        pool.release(passed)
    for backend in backends:
        seen.norms.append((await backend.submit(Step(0))).data["gradient_norm"])
    return seen


def off(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize(
    ("kind", "stages"), [("subspace", 2), pytest.param("anchored", 4, marks=pytest.mark.slow)]
)
async def test_s1_across_processes(
    kind: str, stages: int, nursery: trio.Nursery, tmp_path: Path
) -> None:
    run = run_of(kind, stages)
    weights = scattered_weights(make_stages(run, torch.float32))
    states = write_states(run, weights, tmp_path)
    pool = SlotPool([(1 << 16, 8)])
    backends = [
        ProcessBackend(
            WorkerConfig(run=run, stage=stage, threads=1, cache_dir=tmp_path, state_file=path),
            pool,
            nursery=nursery,
        )
        for stage, path in enumerate(states)
    ]
    async with trio.open_nursery() as starting:
        for backend in backends:
            starting.start_soon(backend.start)
    seen = await through(backends, run, micro_batches_of(run, 0)[0], pool)
    for backend in backends:
        await backend.aclose()
    assert pool.held_count == 0

    ids_BT, targets_BT = seen.ids_BT1[:, :-1], seen.ids_BT1[:, 1:]
    doubles = [
        {name: value.detach().double().requires_grad_() for name, value in params.items()}
        for params in weights
    ]
    stages_64 = make_stages(run, torch.float64)
    loss, gradients = twin_gradients(stages_64, doubles, ids_BT, targets_BT)
    assert abs(seen.loss / float(loss) - 1) <= TOLERANCE
    for stage, norm in enumerate(seen.norms):
        twins = torch.stack([g.norm() for g in gradients[stage].values()]).norm() / len(ids_BT)
        assert abs(norm / float(twins) - 1) <= TOLERANCE, f"stage {stage}"
    twins_at_boundaries = boundary_gradients(run, doubles, ids_BT, targets_BT)
    assert len(seen.boundary_gradients) == len(twins_at_boundaries) == stages - 1
    for ours, theirs in zip(seen.boundary_gradients, twins_at_boundaries, strict=True):
        assert off(ours, theirs) <= TOLERANCE


def boundary_gradients(
    run: RunConfig, weights: Weights, ids_BT: Tensor, targets_BT: Tensor
) -> list[Tensor]:
    """(B, T, K) a boundary: how the uncut twin's loss moves with what crosses there.

    By a push into the stream where the boundary is: (push_BTK U^T) is added there, and the loss is
    differentiated by the push.
    """
    stages = make_stages(run, torch.float64)
    shape = (*ids_BT.shape, run.boundary.rank)
    found = []
    for stage in stages[1:]:
        push_BTK = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        push_BTD = push_BTK @ stage.boundary.u_DK.T
        after = stage.first_layer - 1

        loss = twin_loss(stages, weights, ids_BT, targets_BT, extra=_only_after(after, push_BTD))
        found.append(torch.autograd.grad(loss, push_BTK)[0])
    return found


def _only_after(layer: int, x_BTD: Tensor) -> ExtraWriter:
    return lambda at, _: x_BTD if at == layer else None
