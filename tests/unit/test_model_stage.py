"""A stage is a function of its weights: versions, recomputation, inputs, learning."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from twin_llama import (
    ODD_MODEL,
    largest_difference,
    make_batch,
    make_run,
    make_stages,
    pipeline_gradients,
    scattered_weights,
)

from swarmd.model import fused
from swarmd.model.fused import plain_normalised_sum
from swarmd.model.stage import Parameters, Stage
from swarmd.protocols.errors import RemoteProtocolError


def stepped(params: Parameters, by: float = 0.01) -> Parameters:
    """The next version: new leaves, the old ones untouched."""
    return {name: (value.detach() + by).requires_grad_() for name, value in params.items()}


# --------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("recompute", [False, True])
def test_a_backward_after_a_step_is_that_of_its_forwards_version(recompute: bool) -> None:
    stage = make_stages(make_run())[1]
    ids, _ = make_batch(stage.run)
    received = torch.randn(*ids.shape, 6, dtype=torch.float64, requires_grad=True)
    old = scattered_weights(make_stages(stage.run))[1]
    wanted = torch.autograd.grad(
        stage.forward(old, ids, received).square().sum(), [*old.values(), received]
    )
    out = stage.forward(old, ids, received, recompute=recompute)
    new = stepped(old)
    stage.forward(new, ids, received)
    found = torch.autograd.grad(out.square().sum(), [*old.values(), received])
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("recompute", [False, True])
def test_an_old_version_ends_with_its_last_graph(recompute: bool) -> None:
    stage = make_stages(make_run())[1]
    ids, _ = make_batch(stage.run)
    params = scattered_weights(make_stages(stage.run))[1]
    alive = weakref.ref(params["layers.1.mlp.gate"])
    received = torch.randn(*ids.shape, 6, dtype=torch.float64, requires_grad=True)
    out = stage.forward(params, ids, received, recompute=recompute)
    params = stepped(params)
    gc.collect()
    assert alive() is not None
    del out
    gc.collect()
    assert alive() is None


def test_a_forward_changes_no_weight() -> None:
    stages = make_stages(make_run(kind="anchored", anchor_rank=5))
    weights = scattered_weights(stages)
    before = [{name: value.detach().clone() for name, value in p.items()} for p in weights]
    pipeline_gradients(stages, weights, *make_batch(stages[0].run))
    for params, kept in zip(weights, before, strict=True):
        for name, value in params.items():
            assert torch.equal(value, kept[name])
            assert value.grad is None


# ----------------------------------------------------------------------------------------- memory


def kept_bytes(stage: Stage, params: Parameters, ids: Tensor, received: Tensor, **how: bool) -> int:
    """Bytes that the graph keeps, weights and inputs aside."""
    given = {p.untyped_storage().data_ptr() for p in (*params.values(), ids, received)}
    storages: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in given:
            storages[storage.data_ptr()] = storage.nbytes()
            held.append(value)  # else its address could be given to another
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        stage.forward(params, ids, received, **how)
    return sum(storages.values())


def test_recomputation_keeps_one_coefficient_state_a_layer() -> None:
    model = replace(ODD_MODEL, layers=8, width=64, ff_width=96)
    run = replace(make_run(model=model, stages=2), layer_ranges=((0, 0), (1, 6), (7, 7)))
    stage = make_stages(run)[1]
    ids, _ = make_batch(run)
    received = torch.zeros(*ids.shape, 6, dtype=torch.float64, requires_grad=True)
    params = stage.init_parameters()
    tokens = ids.numel()
    base, states = tokens * 64 * 8, 6 * tokens * 6 * 8
    recomputed = kept_bytes(stage, params, ids, received, recompute=True)
    assert recomputed <= base + states
    assert kept_bytes(stage, params, ids, received) > 10 * recomputed


def test_own_backwards_keep_a_quarter_less_than_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(ODD_MODEL, width=128, ff_width=384)
    stage = make_stages(make_run(model=model, rank=32))[1]
    ids, _ = make_batch(stage.run)
    received = torch.zeros(*ids.shape, 32, dtype=torch.float64, requires_grad=True)
    params = stage.init_parameters()
    ours = kept_bytes(stage, params, ids, received)
    monkeypatch.setattr("swarmd.model.stage.normalised_sum", plain_normalised_sum)
    monkeypatch.setattr(
        "swarmd.model.block.gated", lambda gate, up: torch.nn.functional.silu(gate) * up
    )
    assert ours < 0.8 * kept_bytes(stage, params, ids, received)


@pytest.mark.parametrize("kind", ["dense", "subspace", "anchored"])
def test_what_other_devices_run_gives_the_same_gradients(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = make_stages(make_run(kind=kind, anchor_rank=5 if kind == "anchored" else 0))
    weights, data = scattered_weights(stages), make_batch(stages[0].run)
    loss, ours = pipeline_gradients(stages, weights, *data)
    calls = []

    def counted(*arguments: object) -> Tensor:
        calls.append(arguments)
        return plain_normalised_sum(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("swarmd.model.stage.normalised_sum", counted)
    other_loss, theirs = pipeline_gradients(stages, weights, *data)
    assert len(calls) == 9  # two a layer and the last
    assert float(loss) == pytest.approx(float(other_loss), rel=1e-13)
    assert largest_difference(ours, theirs)[0] <= 1e-12
    assert fused.normalised_sum is not counted


# ----------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("ids_shape", "received_shape", "code"),
    [
        ((2, 5), (2, 5, 7), "wrong_shape"),
        ((2, 5), (2, 4, 6), "wrong_shape"),
        ((2, 5), None, "wrong_shape"),
        ((5,), (5, 6), "wrong_shape"),
        ((0, 5), (0, 5, 6), "wrong_shape"),
    ],
)
def test_input_of_a_wrong_shape_is_the_senders_fault(
    ids_shape: tuple[int, ...], received_shape: tuple[int, ...] | None, code: str
) -> None:
    stage = make_stages(make_run())[1]
    received = None if received_shape is None else torch.zeros(received_shape)
    with pytest.raises(RemoteProtocolError) as refused:
        stage.check_input(torch.zeros(ids_shape, dtype=torch.int64), received)
    assert refused.value.code == code


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_input_that_is_not_finite_is_the_senders_fault(value: float) -> None:
    stage = make_stages(make_run())[1]
    received = torch.zeros(2, 5, 6)
    received[1, 2, 3] = value
    with pytest.raises(RemoteProtocolError) as refused:
        stage.check_input(torch.zeros(2, 5, dtype=torch.int64), received)
    assert refused.value.code == "not_finite"


def test_good_input_passes_and_the_first_stage_takes_ids_alone() -> None:
    first, second, *_ = make_stages(make_run())
    ids = torch.zeros(2, 5, dtype=torch.int32)
    second.check_input(ids, torch.zeros(2, 5, 6))
    first.check_input(ids, None)
    with pytest.raises(RemoteProtocolError):
        first.check_input(ids, torch.zeros(2, 5, 6))


@pytest.mark.parametrize(("kind", "width"), [("dense", 24), ("subspace", 6), ("anchored", 6)])
def test_a_stage_says_what_it_takes_and_gives(kind: str, width: int) -> None:
    stages = make_stages(make_run(kind=kind, anchor_rank=-1 if kind == "anchored" else 0))
    assert [stage.input_width for stage in stages] == [0, width, width, width]
    assert [stage.output_width for stage in stages] == [width, width, width, 0]
    assert {stage.basis_version for stage in stages} == {0}
    ids, _ = make_batch(stages[0].run)
    sent = stages[0].forward(stages[0].init_parameters(), ids)
    assert sent.shape == (*ids.shape, width)


# --------------------------------------------------------------------------------------- behaviour


@pytest.mark.parametrize("kind", ["dense", "subspace", "anchored"])
def test_no_token_sees_those_after_it(kind: str) -> None:
    stages = make_stages(make_run(kind=kind, anchor_rank=5 if kind == "anchored" else 0))
    weights = scattered_weights(stages)
    ids, _ = make_batch(stages[0].run)
    changed = ids.clone()
    changed[:, 20] = (ids[:, 20] + 1) % 97

    def hidden(ids: Tensor) -> Tensor:
        state = None
        for stage, params in zip(stages, weights, strict=True):
            state = stage.forward(params, ids, state)
        assert state is not None
        return state

    one, other = hidden(ids), hidden(changed)
    assert torch.equal(one[:, :20], other[:, :20])
    assert not torch.equal(one[:, 20], other[:, 20])
    assert not torch.equal(one[:, 32], other[:, 32])


def test_the_loss_is_the_logits_cross_entropy_a_sample() -> None:
    stage = make_stages(make_run(stages=1))[0]
    (params,) = scattered_weights([stage])
    ids, targets = make_batch(stage.run)
    hidden = stage.forward(params, ids)
    logits = stage.logits(params, hidden)
    assert logits.shape == (3, 33, 97)
    assert torch.allclose(stage.logits(params, hidden[:, -1:]), logits[:, -1:])
    each = torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none").mean(1)
    assert float(stage.loss_sum(params, hidden, targets).detach()) == pytest.approx(
        float(each.sum().detach()), rel=1e-13
    )


@pytest.mark.parametrize(
    ("kind", "anchor_rank"), [("dense", 0), ("subspace", 0), ("anchored", 5), ("anchored", -1)]
)
def test_a_cut_model_learns_a_batch_by_heart_from_its_start(kind: str, anchor_rank: int) -> None:
    run = make_run(kind=kind, anchor_rank=anchor_rank, stages=2, tokens=17)
    stages = make_stages(run, torch.float32)
    weights = [stage.init_parameters() for stage in stages]
    data = make_batch(run, batch=2)
    losses = []
    optimiser = torch.optim.AdamW([v for p in weights for v in p.values()], lr=1e-2)
    for _ in range(60):
        loss, gradients = pipeline_gradients(stages, weights, *data)
        losses.append(float(loss) / 2)
        for params, found in zip(weights, gradients, strict=True):
            for name, value in params.items():
                value.grad = found[name]
        optimiser.step()
    assert losses[-1] < 0.3 * losses[0]
