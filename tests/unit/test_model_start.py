"""Where the weights start: equal on every peer and in every cut; and how each is treated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from twin_llama import make_batch, make_run, make_stages

from swarmd.model.stage import build_stage
from swarmd.partition import is_constrained


def start(stages: int, **options: object) -> dict[str, Tensor]:
    """Every start weight of a cut model but anchors, by name."""
    built = make_stages(make_run(stages=stages, **options), torch.float32)  # type: ignore[arg-type]
    return {
        name: value
        for stage in built
        for name, value in stage.init_parameters().items()
        if not name.startswith("anchor.")
    }


@pytest.mark.parametrize("kind", ["dense", "subspace"])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_layer_starts_the_same_whatever_the_cut(kind: str, stages: int) -> None:
    whole, cut = start(1, kind=kind), start(stages, kind=kind)
    shared = whole.keys() & cut.keys()
    for name in shared:
        assert torch.equal(whole[name], cut[name]), name
    only_cut = {name.rsplit(".", 1)[1] for name in cut.keys() - shared}
    assert only_cut == (set() if kind == "dense" else {"o_z", "down_z"})


def test_two_peers_start_with_equal_bits() -> None:
    run = make_run(kind="anchored", anchor_rank=5)
    for index in range(run.stages):
        one, other = (build_stage(run, index).init_parameters() for _ in range(2))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_seed_starts_elsewhere() -> None:
    one, other = start(2, seed=1), start(2, seed=2)
    assert not torch.equal(one["layers.0.attention.q"], other["layers.0.attention.q"])


def test_no_two_weights_start_alike() -> None:
    every = (value.detach() for value in start(4).values())
    values = [value for value in every if value.dim() == 2 and value.std() > 0]
    firsts = [float(value.flatten()[0] / value.std()) for value in values]
    assert len(set(firsts)) == len(firsts)


def test_the_stages_of_an_anchored_run_start_with_tables_of_their_own_that_add_nothing() -> None:
    run = make_run(kind="anchored", anchor_rank=5)
    params = [build_stage(run, index).init_parameters() for index in range(run.stages)]
    assert all((p["anchor.b"] == 0).all() for p in params)
    assert not torch.equal(params[0]["anchor.r"], params[1]["anchor.r"])
    moved = params[0]["anchor.r"].std() * math.sqrt(5)
    assert float(moved.detach()) == pytest.approx(1.0, rel=0.2)


def start_loss(**options: object) -> float:
    """Nats a token, at the start weights."""
    stages = make_stages(make_run(**options), torch.float32)  # type: ignore[arg-type]
    ids, targets = make_batch(stages[0].run)
    state, params = None, {}
    for stage in stages:
        params = stage.init_parameters()
        state = stage.forward(params, ids, state)
    assert state is not None
    return float(stages[-1].loss_sum(params, state, targets).detach()) / ids.shape[0]


@pytest.mark.parametrize("kind", ["dense", "subspace"])
def test_the_start_loss_is_that_of_guessing(kind: str) -> None:
    assert start_loss(kind=kind) == pytest.approx(math.log(97), rel=0.03)


def test_every_cut_rank_and_anchor_computes_the_same_at_the_start() -> None:
    losses = {start_loss(stages=stages, rank=rank) for stages in (1, 2, 4) for rank in (2, 6)}
    losses |= {start_loss(kind="anchored", anchor_rank=rank) for rank in (5, -1)}
    assert len(losses) == 1


def test_decay_spares_gains_and_tables() -> None:
    spared, decayed = set(), set()
    for kind, rank in (("dense", 0), ("subspace", 0), ("anchored", 5), ("anchored", -1)):
        for stage in make_stages(make_run(kind=kind, anchor_rank=rank, stages=2)):
            for name in stage.shapes:
                (decayed if stage.decays(name) else spared).add(name)
    gains = {f"layers.{n}.{b}.norm" for n in range(4) for b in ("attention", "mlp")}
    tables = {"embedding.weight", "embedding.e", "anchor.full", "anchor.b"}
    assert spared == gains | tables | {"norm.final"}
    assert {"anchor.r", "head.weight", "layers.0.mlp.down_z", "layers.3.mlp.down"} <= decayed


def test_muon_takes_the_layers_matrices_alone() -> None:
    for stage in make_stages(make_run(kind="anchored", anchor_rank=5, stages=2)):
        taken = {name for name in stage.shapes if stage.orthogonalises(name)}
        matrices = {
            name for name, s in stage.shapes.items() if len(s) == 2 and name.startswith("layers.")
        }
        assert taken == matrices


def test_every_stage_but_the_last_is_constrained_unless_dense() -> None:
    run = make_run()
    assert is_constrained(run.boundary, is_last=False)
    assert not is_constrained(run.boundary, is_last=True)
    assert not is_constrained(make_run(kind="dense").boundary, is_last=False)
