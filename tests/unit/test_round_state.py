"""What replicas have in common: equal files in a round, and sketches that tell states apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from compute_helpers import RandomCorpus, make_worker
from outer_helpers import flat_weights, one_stage_run, train

from swarmd.compute.round_state import round_state
from swarmd.compute.stage_worker import StageWorker
from swarmd.errors import JobFailed
from swarmd.protocols.jobs import StageCall
from swarmd.protocols.outer_rules import (
    OuterRules,
    Range,
    apply_call,
    commit_call,
    cut,
    snapshot_call,
)
from swarmd.protocols.state_donor import round_state_call, sketch_in

RUN = one_stage_run()


def replica(number: int) -> StageWorker:
    """In the inner phase of round 0, with data of its own."""
    worker = make_worker(RUN)
    worker.corpus = RandomCorpus(RUN, seed=number)
    worker.run(snapshot_call(0))
    train(worker, number, 0)
    return worker


def written(worker: StageWorker, path: Path, round_number: int = 0) -> dict[str, Any]:
    return worker.run(round_state_call(str(path), round_number)).result.data


def step_outer(worker: StageWorker, where: Range) -> None:
    step = apply_call(
        OuterRules(), where, None, usual_norm=0.0, members=1, resets=False, sent=False
    )
    worker.run(step)


def test_replicas_in_the_middle_of_a_round_write_equal_files(tmp_path: Path) -> None:
    one, other = replica(1), replica(2)
    assert not torch.equal(flat_weights(one), flat_weights(other))
    told = [written(worker, tmp_path / f"{n}") for n, worker in enumerate((one, other))]
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    assert told[0] == told[1]
    assert (told[0]["round"], told[0]["next_step"]) == (0, 0)


def test_a_newcomer_starts_with_what_the_round_began_with(tmp_path: Path) -> None:
    worker = replica(1)
    start_N = flat_weights(make_worker(RUN))
    written(worker, tmp_path / "state")
    newcomer = make_worker(RUN)
    newcomer.run(StageCall("load_state", {"path": str(tmp_path / "state")}))
    assert torch.equal(flat_weights(newcomer), start_N)
    assert newcomer.inner_state.updates == 0, "moments are a replica's own"


def test_between_two_rounds_there_is_none(tmp_path: Path) -> None:
    worker = replica(1)
    assert worker.outer is not None
    pieces = cut(0, worker.outer.layout.elements // 2)
    for where in pieces:
        step_outer(worker, where)
    with pytest.raises(JobFailed) as failed:
        written(worker, tmp_path / "state")
    assert failed.value.code == "not_ready"
    for where in cut(worker.outer.layout.elements // 2, worker.outer.layout.elements):
        step_outer(worker, where)
    worker.run(commit_call(0))
    assert written(worker, tmp_path / "state")["round"] == 1, "it is further than it was asked"


def test_where_no_round_is_on_it_is_what_the_weights_are_now(tmp_path: Path) -> None:
    worker = replica(1)
    told = written(worker, tmp_path / "state", round_number=4)
    assert told["round"] == 4
    newcomer = make_worker(RUN)
    newcomer.run(StageCall("load_state", {"path": str(tmp_path / "state")}))
    assert torch.equal(flat_weights(newcomer), flat_weights(worker))


def test_sketches_are_about_as_far_apart_as_states(tmp_path: Path) -> None:
    worker = replica(1)
    first_N = flat_weights(worker)
    first = sketch_in(written(worker, tmp_path / "a", 9))
    near = {name: w + 0.01 * w.abs().mean() * torch.randn_like(w) for name, w in _weights(worker)}
    far = {name: -w for name, w in _weights(worker)}
    ratios = []
    for weights in (near, far):
        worker.params = {name: w.requires_grad_() for name, w in weights.items()}
        sketch = sketch_in(written(worker, tmp_path / "b", 9))
        apart = math.dist(first, sketch) / math.hypot(*first)
        real = float((flat_weights(worker) - first_N).norm() / first_N.norm())
        ratios.append(apart / real)
    assert all(0.3 < ratio < 3.0 for ratio in ratios), ratios


def _weights(worker: StageWorker) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [(name, value.detach().clone()) for name, value in worker.params.items()]


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    worker = replica(1)
    with pytest.raises(JobFailed):
        round_state(worker, {"path": str(tmp_path / "no" / "folder"), "round": 0}, (), None)
    assert not list(tmp_path.iterdir())
