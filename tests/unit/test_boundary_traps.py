"""What silently breaks a low-rank boundary: each trap's guard, and what happens without it.

S4 the table must stay frozen; S8 ids must be integers; the last stage must be free, and no other
(algorithms.md 1.3 to 1.6); S9 nothing that leaves the subspace may follow a writer.
"""

from __future__ import annotations

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
    twin_gradients,
    twin_loss,
)

import swarmd.model.boundary as boundary_module
import swarmd.model.stage as stage_module
import swarmd.partition as partition_module
from swarmd.model.block import BlockSpec
from swarmd.model.boundary import FixedTable
from swarmd.model.counter_random import gaussian
from swarmd.model.stage import Stage, build_stage
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.run_config import InvalidRun, ModelConfig

# ------------------------------------------------------------------------- trap 1: a trained table


def make_table_trainable(stage: Stage) -> Tensor:
    every_id = torch.arange(stage.run.model.vocab_size)[None]
    table_VD = stage.boundary.table.rows(every_id)[0].requires_grad_()
    stage.boundary.table.rows = lambda ids: table_VD[ids]  # type: ignore[method-assign]
    return table_VD


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_table_that_wants_a_gradient_is_refused_on_every_stage(index: int) -> None:
    stage = make_stages(make_run())[index]
    make_table_trainable(stage)
    ids, _ = make_batch(stage.run)
    received = None if index == 0 else torch.zeros(*ids.shape, 6, dtype=torch.float64)
    with pytest.raises(AssertionError, match="frozen"):
        stage.forward(stage.init_parameters(), ids, received)


def test_a_basis_that_wants_a_gradient_is_refused() -> None:
    stage = make_stages(make_run())[0]
    stage.boundary.u_DK.requires_grad_()
    with pytest.raises(AssertionError, match="frozen"):
        stage.forward(stage.init_parameters(), make_batch(stage.run)[0])


def test_neither_table_nor_basis_is_among_the_parameters() -> None:
    for stage in make_stages(make_run(kind="anchored", anchor_rank=5)):
        fixed = {stage.boundary.u_DK.data_ptr(), stage.boundary.ut_KD.data_ptr()}
        for name, value in stage.init_parameters().items():
            assert value.requires_grad
            assert value.is_leaf
            assert value.data_ptr() not in fixed, name


def test_s4_without_the_guard_the_tables_gradient_would_be_wrong_by_more_than_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boundary_module, "require_frozen", lambda *tensors: None)
    model = ModelConfig(vocab_size=97, width=64, layers=4, heads=4, kv_heads=4, ff_width=128)
    stages = make_stages(make_run(model=model, table_std=1.0))
    weights, (ids, targets) = scattered_weights(stages), make_batch(stages[0].run)
    table_VD = stages[0].boundary.table.rows(torch.arange(97)[None])[0].requires_grad_()
    uncut = twin_loss(stages, weights, ids, targets, table_VD=table_VD)
    (true_gradient,) = torch.autograd.grad(uncut, table_VD)

    weights[0]["T_fixed"] = make_table_trainable(stages[0])
    _, over_the_wire = pipeline_gradients(stages, weights, ids, targets)
    difference = (over_the_wire[0]["T_fixed"] - true_gradient).norm() / true_gradient.norm()
    assert difference > 0.5


# ------------------------------------------------------------------- trap 2: ids in a float channel

LARGE_VOCABULARY = ModelConfig(
    vocab_size=128_256, width=8, layers=2, heads=2, kv_heads=1, ff_width=8
)


def half(x: Tensor) -> Tensor:
    """A 16-bit wire for coefficients."""
    return x.to(torch.bfloat16).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_s8_ids_that_are_not_integers_are_refused(dtype: torch.dtype) -> None:
    stage = build_stage(make_run(model=LARGE_VOCABULARY, rank=4, stages=2), 1)
    ids = torch.full((1, 3), 1000).to(dtype)
    with pytest.raises(RemoteProtocolError) as refused:
        stage.check_input(ids, torch.zeros(1, 3, 4))
    assert refused.value.code == "wrong_dtype"
    with pytest.raises(AssertionError, match="integers"):
        stage.forward(stage.init_parameters(), ids, torch.zeros(1, 3, 4))


@pytest.mark.parametrize("bytes_max", [0, 1 << 30])
def test_s8_every_id_of_128_thousand_gets_its_row_beside_16_bit_coefficients(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary_module, "TABLE_BYTES_MAX", bytes_max)
    run = make_run(model=LARGE_VOCABULARY, rank=4, stages=2, tokens=100)
    stages = make_stages(run, torch.float32)
    weights, (ids, targets) = scattered_weights(stages), make_batch(run, batch=1)
    assert ids.max() > 65_535
    seen: list[Tensor] = []
    rows = stages[1].boundary.table.rows

    def watched(ids_BT: Tensor) -> Tensor:
        seen.append(rows(ids_BT))
        return seen[-1]

    monkeypatch.setattr(stages[1].boundary.table, "rows", watched)
    pipeline_gradients(stages, weights, ids, targets, wire=half)
    assert torch.equal(seen[0], stages[0].boundary.table.rows(ids))

    # Without the guard: the ids through a 16-bit float channel, then made integers again.
    pipeline_gradients(
        stages, weights, ids, targets, wire=half, wire_ids=lambda x: half(x.float()).long()
    )
    rows_equal = (seen[1] == stages[0].boundary.table.rows(ids)).all(-1)
    assert rows_equal.float().mean() < 0.1


def test_a_large_vocabulary_is_exact_with_rows_made_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boundary_module, "TABLE_BYTES_MAX", 0)
    run = make_run(model=replace(ODD_MODEL, vocab_size=10_007), stages=2)
    stages = make_stages(run)
    weights, data = scattered_weights(stages), make_batch(run)
    loss, cut = pipeline_gradients(stages, weights, *data)
    twins_loss, twins = twin_gradients(stages, weights, *data)
    assert abs(float(loss / twins_loss) - 1) <= 1e-12
    difference, name = largest_difference(cut, twins)
    assert difference <= 1e-12, name


def test_rows_made_on_demand_are_the_rows_of_the_whole_table() -> None:
    options = {"device": "cpu", "dtype": torch.float32}
    whole = FixedTable(LARGE_VOCABULARY, 0.02, 5, **options)
    sparse = FixedTable(LARGE_VOCABULARY, 0.02, 5, bytes_max=0, **options)
    ids = torch.tensor([[0, 128_255, 77_777], [65_536, 0, 1]])
    assert torch.equal(whole.rows(ids), sparse.rows(ids))


@pytest.mark.parametrize("bad_id", [-1, 97])
def test_an_id_outside_the_vocabulary_is_the_senders_fault(bad_id: int) -> None:
    stage = build_stage(make_run(), 1)
    with pytest.raises(RemoteProtocolError) as refused:
        stage.check_input(torch.tensor([[0, bad_id]]), torch.zeros(1, 2, 6))
    assert refused.value.code == "malformed"


# ---------------------------------------------------------------------- trap 3: the last stage free


def writers(stage: Stage) -> set[str]:
    return {name.rsplit(".", 1)[1] for name in stage.shapes} & {"o", "down", "o_z", "down_z"}


def rank_of_last_stages_writing(stages: list[Stage]) -> int:
    """Dimensions in which the gradient moves what the last stage's MLP writes to the stream."""
    weights, data = scattered_weights(stages), make_batch(stages[0].run)
    _, gradients = pipeline_gradients(stages, weights, *data)
    (name,) = (name for name in gradients[-1] if name.startswith("layers.3.mlp.down"))
    return int(torch.linalg.matrix_rank(gradients[-1][name]))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_only_the_whole_last_stage_writes_freely(stages: int) -> None:
    built = make_stages(make_run(stages=stages))
    for stage in built[:-1]:
        assert writers(stage) == {"o_z", "down_z"}
    assert writers(built[-1]) == {"o", "down"}
    assert rank_of_last_stages_writing(built) == ODD_MODEL.width


def test_with_dense_boundaries_every_stage_writes_freely() -> None:
    for stage in make_stages(make_run(kind="dense")):
        assert writers(stage) == {"o", "down"}


def test_without_the_rule_the_last_stage_would_write_in_k_dimensions_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def always(boundary: object, *, is_last: bool) -> bool:
        return True

    monkeypatch.setattr(partition_module, "is_constrained", always)
    monkeypatch.setattr(stage_module, "is_constrained", always)
    stages = make_stages(make_run(stages=2))
    assert writers(stages[-1]) == {"o_z", "down_z"}
    assert rank_of_last_stages_writing(stages) == stages[0].run.boundary.rank


def test_without_the_rule_a_free_middle_stage_would_not_fit_the_wire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(boundary: object, *, is_last: bool) -> bool:
        return False

    monkeypatch.setattr(partition_module, "is_constrained", never)
    monkeypatch.setattr(stage_module, "is_constrained", never)
    stages = make_stages(make_run(stages=2))
    sent = stages[0].forward(scattered_weights(stages)[0], make_batch(stages[0].run)[0])
    assert sent.shape[-1] != stages[1].input_width
    with pytest.raises(RemoteProtocolError):
        stages[1].check_input(make_batch(stages[0].run)[0], sent.detach())


# -------------------------------------------------------------------------------------------- S9

FORBIDDEN = {
    "a learned gain": BlockSpec(output_gain=True),
    "a bias": BlockSpec(output_bias=True),
    "LayerNorm": BlockSpec(output_layer_norm=True),
    "dropout": BlockSpec(output_dropout=0.1),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_s9_a_layer_that_would_leave_the_subspace_is_refused_by_name(what: str) -> None:
    run = make_run(stages=2)
    with pytest.raises(InvalidRun) as refused:
        build_stage(run, 0, block=FORBIDDEN[what])
    assert refused.value.key == "model.block"
    assert refused.value.text.startswith("layers.0.attention.o_z: ")
    assert what in refused.value.text
    with pytest.raises(InvalidRun, match="not built"):
        build_stage(run, 1, block=FORBIDDEN[what])


def outside_share(changed_ND: Tensor, u_DK: Tensor) -> float:
    """Share of the norm that lies outside the subspace."""
    return float((changed_ND - changed_ND @ u_DK @ u_DK.T).norm() / changed_ND.norm())


@pytest.mark.parametrize("what", FORBIDDEN)
def test_s9_what_is_refused_does_leave_the_subspace(what: str) -> None:
    # algorithms.md 1.4, d=64, k=6: 0.28, 0.34, 0.09, 0.29 of the norm are lost.
    stage = build_stage(make_run(model=replace(ODD_MODEL, width=64)), 0, dtype=torch.float64)
    u_DK = torch.linalg.qr(stage.boundary.u_DK).Q
    branch_ND = gaussian(1, (99, 6), 1.0).double() @ u_DK.T
    assert outside_share(branch_ND, u_DK) < 1e-14
    width = branch_ND.shape[1]
    kept = (gaussian(4, branch_ND.shape, 1.0) > -1.28).double()
    changed = {
        "a learned gain": branch_ND * (1 + 0.29 * gaussian(2, (width,), 1.0).double()),
        "a bias": branch_ND + 0.1 * gaussian(3, (width,), 1.0).double(),
        "LayerNorm": branch_ND - branch_ND.mean(-1, keepdim=True),
        "dropout": branch_ND * kept / 0.9,
    }
    assert outside_share(changed[what], u_DK) > 0.02
    by_token = branch_ND / branch_ND.pow(2).mean(-1, keepdim=True).sqrt()
    assert outside_share(by_token, u_DK) < 1e-14
