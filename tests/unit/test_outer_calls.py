"""The outer round's jobs on a stage worker, one at a time. Whole rounds: test_outer_swarm.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compute_helpers import make_worker, small_run
from outer_helpers import flat_weights, one_stage_run, train
from torch import Tensor

from swarmd.compute import in_cache
from swarmd.compute.outer_state import FlatLayout, OuterState
from swarmd.compute.stage_worker import StageWorker
from swarmd.errors import JobFailed
from swarmd.optim.compress import pack_dense, rounded, unpack_dense
from swarmd.partition import stage_shapes
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import BufferRef, Forward, StageCall
from swarmd.protocols.mix_parts import Wire
from swarmd.protocols.mixing import MIX1, MIX2
from swarmd.protocols.outer_rules import (
    OuterRules,
    Range,
    apply_call,
    commit_call,
    gradient_call,
    part_call,
    reduce_call,
    snapshot_call,
    take_call,
)

FP32 = Wire("fp32")
NO_SLOT = BufferRef(0, 0, 0)
SOME = Range(100, 900)


def run_call(worker: StageWorker, call: StageCall, *inputs: bytes) -> tuple[dict[str, Any], bytes]:
    output = memoryview(bytearray(call.output_bytes))
    views = [memoryview(bytearray(body)) for body in inputs]
    answer = worker.run(call, views, output if call.output_bytes else None)
    return answer.result.data, bytes(output[: answer.output_bytes])


def packed(x_N: Tensor, wire: Wire = FP32) -> bytes:
    view = memoryview(bytearray(wire.part_bytes(x_N.numel())))
    pack_dense(view, x_N, wire.dtype)
    return bytes(view)


def unpacked(body: bytes, wire: Wire = FP32, where: Range = SOME) -> Tensor:
    return unpack_dense(memoryview(bytearray(body)), wire.dtype, where.count)


def reduce_parts(
    parts: list[bytes],
    weights: list[float],
    *,
    mix: int = MIX2,
    usual_norm: float = 0.0,
    clipped: bool = False,
    own: int | None = 0,
) -> tuple[dict[str, Any], bytes]:
    worker = make_worker(one_stage_run())
    run_call(worker, snapshot_call(0))
    call = reduce_call(
        mix,
        FP32,
        SOME,
        [NO_SLOT] * len(parts),
        weights,
        own=own,
        usual_norm=usual_norm,
        is_clipped=clipped,
        members=len(parts),
    )
    return run_call(worker, call, *parts)


def vectors(count: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(SOME.count, generator=generator)
    return [shared + 0.2 * torch.randn(SOME.count, generator=generator) for _ in range(count)]


# ------------------------------------------------------------------------------------- the vector


def test_covered_weights_come_first_and_every_coordinate_once() -> None:
    run = small_run(2)
    for stage in range(2):
        shapes = stage_shapes(run, stage)
        everything = FlatLayout(shapes, "all")
        shallow = FlatLayout(shapes, "shallow")
        assert everything.covered == everything.elements == shallow.elements
        covered = [place.name for place in shallow.places if place.first < shallow.covered]
        assert all(
            name.startswith(("embedding.", "head.", "layers.0", "layers.1")) for name in covered
        )
        assert 0 < shallow.covered < shallow.elements or stage == 0
        starts = [place.first for place in shallow.places]
        assert starts == sorted(starts)
    worker = make_worker(run)
    layout = FlatLayout(worker.stage.shapes, "all")
    whole = layout.read(worker.params, Range(0, layout.elements))
    assert torch.equal(whole, flat_weights(worker))
    assert torch.equal(layout.read(worker.params, SOME), whole[100:1000])


def test_mix1_reads_what_was_there_when_the_round_began() -> None:
    """Recipe F6: however late its reader, and whatever the weights have become."""
    undelayed, delayed = (make_worker(one_stage_run()) for _ in range(2))
    for worker in (undelayed, delayed):
        run_call(worker, snapshot_call(0))
    early = run_call(undelayed, part_call(MIX1, FP32, SOME))[1]
    train(delayed, 0, 0)
    with torch.no_grad():
        for weight in delayed.params.values():
            weight.add_(1.0)
    assert run_call(delayed, part_call(MIX1, FP32, SOME))[1] == early
    gradient = unpacked(run_call(delayed, part_call(MIX2, FP32, SOME))[1])
    assert float(gradient.abs().min()) > 0.5, "D follows the weights"


def test_graphs_in_flight_keep_the_weights_that_a_commit_replaces() -> None:
    worker = make_worker(small_run(2))
    run_call(worker, snapshot_call(0))
    slot = memoryview(bytearray(100_000))
    worker.run(Forward(MicroBatchId(0, 0), 0, train=True), (), slot)
    before = dict(worker.params)
    rules = OuterRules(alpha=0.5)
    elements = worker.outer.layout.elements  # type: ignore[union-attr]
    run_call(worker, apply_own(rules, Range(0, elements)))
    run_call(worker, commit_call(0))
    for name, weight in before.items():
        assert weight is not worker.params[name]
        assert torch.equal(weight, worker.params[name]), "D was zero"
        assert weight.data_ptr() != worker.params[name].data_ptr()
    start = worker.outer.start  # type: ignore[union-attr]
    assert start is not None
    held = {weight.data_ptr() for weight in worker.params.values()}
    assert start.data_ptr() not in held


def apply_own(rules: OuterRules, where: Range, **changes: Any) -> StageCall:
    options = {"usual_norm": 0.0, "members": 1, "resets": False, "sent": False} | changes
    return apply_call(rules, where, None, **options)


def test_alone_at_full_step_weights_stay_as_the_inner_steps_left_them() -> None:
    worker = make_worker(one_stage_run())
    run_call(worker, snapshot_call(0))
    train(worker, 0, 0)
    y = flat_weights(worker).clone()
    elements = y.numel()
    run_call(worker, apply_own(OuterRules(), Range(0, 1_000)))
    run_call(worker, apply_own(OuterRules(), Range(1_000, elements - 1_000)))
    run_call(worker, commit_call(0))
    assert torch.equal(flat_weights(worker), y)


def test_a_commit_needs_every_coordinate_stepped_once() -> None:
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    run_call(worker, apply_own(OuterRules(), Range(0, data["elements"] - 1)))
    before = worker.params
    with pytest.raises(JobFailed, match="coordinates were stepped"):
        run_call(worker, commit_call(0))
    assert worker.params is before


def test_a_snapshot_after_a_commit_copies_nothing_and_after_steps_everything() -> None:
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    train(worker, 0, 0)
    run_call(worker, apply_own(OuterRules(alpha=0.7), Range(0, data["elements"])))
    run_call(worker, commit_call(0))
    assert worker.outer is not None
    start = worker.outer.start
    run_call(worker, snapshot_call(1))
    assert worker.outer.start is start
    assert start is not None
    assert torch.equal(start, flat_weights(worker))
    train(worker, 0, 1)
    run_call(worker, snapshot_call(2))
    assert worker.outer.start is not start
    assert torch.equal(worker.outer.start, flat_weights(worker))  # type: ignore[arg-type]


def test_a_loaded_state_begins_without_an_outer_round() -> None:
    worker, other = (make_worker(one_stage_run()) for _ in range(2))
    run_call(worker, snapshot_call(0))
    state = run_call(other, StageCall("state", {}, output_bytes=4 << 20))[1]
    run_call(worker, StageCall("load_state"), state)
    assert worker.outer is None
    with pytest.raises(JobFailed, match="no outer round"):
        run_call(worker, part_call(MIX1, FP32, SOME))


def test_memory_beside_weights_and_optimiser_is_two_and_a_half_vectors() -> None:
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    train(worker, 0, 0)
    whole = Range(0, data["elements"])
    mean = packed(flat_weights(worker) + 0.01)
    take = take_call(FP32, whole, NO_SLOT, usual_norm=0.0, members=2)
    assert run_call(worker, take, mean)[0] == {"code": ""}
    run_call(worker, apply_own(OuterRules(alpha=0.7, mu=0.9), whole))
    assert worker.outer is not None
    held = worker.outer.bytes_held / (4 * data["elements"])
    assert held == 2.5
    data, _ = run_call(worker, commit_call(0))
    assert data["bytes_held"] == 2 * 4 * whole.count, "delta is gone"


def test_gradient_is_measured_piece_by_piece() -> None:
    worker = make_worker(one_stage_run())
    x = flat_weights(worker).clone()
    data, _ = run_call(worker, snapshot_call(0))
    assert data["norm"] == pytest.approx(float(x.norm()), rel=1e-6)
    train(worker, 0, 0)
    d = x - flat_weights(worker)
    pieces = [Range(0, 1_000), Range(1_000, data["elements"] - 1_000)]
    told = [run_call(worker, gradient_call(piece, owes=False))[0] for piece in pieces]
    assert sum(t["squares"] for t in told) == pytest.approx(float(d.norm()) ** 2, rel=1e-5)
    assert all(t["is_finite"] and t["delta_squares"] == 0.0 for t in told)
    with torch.no_grad():
        next(iter(worker.params.values())).view(-1)[0] = float("nan")
    assert not run_call(worker, gradient_call(pieces[0], owes=False))[0]["is_finite"]
    with pytest.raises(JobFailed, match="not_finite"):
        run_call(worker, part_call(MIX2, FP32, Range(0, 10)))


# ----------------------------------------------------------------------------------------- reduce


def test_a_mean_is_that_of_what_came_divided_by_its_weight() -> None:
    xs = vectors(3)
    data, body = reduce_parts([packed(x) for x in xs], [1, 2, 3])
    expected = (xs[0] + 2 * xs[1] + 3 * xs[2]) / 6
    torch.testing.assert_close(unpacked(body), expected, rtol=0, atol=1e-6)
    assert data == {"codes": ["", "", ""], "weight": 6.0}
    data, body = reduce_parts([packed(x) for x in xs], [1, 2, 0])
    torch.testing.assert_close(unpacked(body), (xs[0] + 2 * xs[1]) / 3, rtol=0, atol=1e-6)
    assert reduce_parts([packed(xs[0])], [0]) == ({"codes": [""], "weight": 0.0}, b"")


def spoilt(x: Tensor, how: str) -> bytes:
    """What a peer may send in place of x."""
    body = bytearray(packed(x))
    if how == "not_finite":
        body[16:20] = b"\x00\x00\xc0\x7f"
    elif how == "malformed":
        body[0:4] = b"junk"
    elif how == "wrong_dtype":
        body = bytearray(packed(x, Wire("bf16")))
    elif how == "wrong_shape":
        body = bytearray(packed(x[:-1]))
    elif how == "norm_too_large":
        body = bytearray(packed(1_000 * x))
    return bytes(body)


@pytest.mark.parametrize(
    "code", ["not_finite", "malformed", "wrong_dtype", "wrong_shape", "norm_too_large"]
)
@pytest.mark.parametrize("members", [2, 3, 5])
def test_what_is_not_sound_is_named_and_left_out(code: str, members: int) -> None:
    xs = vectors(members)
    parts = [packed(x) for x in xs]
    parts[1] = spoilt(xs[1], code)
    data, body = reduce_parts(parts, [1.0] * members, usual_norm=float(xs[0].norm()))
    assert data["codes"] == ["", code, *[""] * (members - 2)]
    sound = torch.stack([xs[0], *xs[2:]]).mean(dim=0)
    torch.testing.assert_close(unpacked(body), sound, rtol=0, atol=1e-5)


def test_starts_are_measured_from_the_groups_middle() -> None:
    xs = vectors(4)
    apart = float((xs[0] - xs[1]).norm())
    parts = [packed(x) for x in (*xs, -xs[0])]
    data, _ = reduce_parts(parts, [1.0] * 5, mix=MIX1, usual_norm=apart / 5)
    assert data["codes"] == ["", "", "", "", "norm_too_large"], "its length is that of the others"
    data, _ = reduce_parts(parts[:4], [1.0] * 4, mix=MIX1, usual_norm=apart / 5)
    assert data["codes"] == [""] * 4
    pair = [parts[4], packed(xs[0])]
    data, _ = reduce_parts(pair, [1.0, 1.0], mix=MIX1, usual_norm=apart / 5, own=1)
    assert data["codes"] == ["norm_too_large", ""]


def test_a_flipped_sign_is_clipped_and_named_and_honest_members_are_not() -> None:
    xs = vectors(5)
    flipped = [*xs[:4], -xs[4]]
    usual = float(xs[0].norm())
    parts = [packed(x) for x in flipped]
    data, body = reduce_parts(parts, [1.0] * 5, usual_norm=usual, clipped=True)
    assert data["codes"] == ["", "", "", "", "clipped"]
    honest = torch.stack(xs[:4]).mean(dim=0)
    plain = torch.stack(flipped).mean(dim=0)
    assert float((unpacked(body) - honest).norm()) < 0.5 * float((plain - honest).norm())
    data, _ = reduce_parts([packed(x) for x in xs], [1.0] * 5, usual_norm=usual, clipped=True)
    assert data["codes"] == [""] * 5


def test_a_weight_beyond_the_groups_median_buys_nothing_when_clipping() -> None:
    xs = vectors(5)
    parts = [packed(x) for x in [*xs[:4], -xs[4]]]
    plain, greedy = (
        unpacked(reduce_parts(parts, [1.0, 1, 1, 1, claim], clipped=True)[1]) for claim in (1, 100)
    )
    assert torch.equal(plain, greedy)


# ----------------------------------------------------------------------------------- take and step


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int16", "int8"])
def test_equal_replicas_stay_equal_whatever_the_wire(wire: str) -> None:
    worker = make_worker(one_stage_run())
    run_call(worker, snapshot_call(0))
    body = run_call(worker, part_call(MIX1, Wire(wire), SOME))[1]
    call = take_call(Wire(wire), SOME, NO_SLOT, usual_norm=1.0, members=2)
    assert run_call(worker, call, body)[0] == {"code": ""}
    assert worker.outer is not None
    delta = worker.outer.delta
    assert delta is not None
    assert float(delta.abs().max()) == 0.0


@pytest.mark.parametrize("wire", ["bf16", "int16"])
def test_delta_is_what_the_mean_adds_to_the_own_start(wire: str) -> None:
    worker = make_worker(one_stage_run())
    run_call(worker, snapshot_call(0))
    x = flat_weights(worker)[100:1000]
    mean = x + 0.05 * torch.randn(900, generator=torch.Generator().manual_seed(1))
    call = take_call(Wire(wire), SOME, NO_SLOT, usual_norm=10.0, members=2)
    run_call(worker, call, packed(mean, Wire(wire)))
    delta = worker.outer.delta_of(SOME)  # type: ignore[union-attr]
    assert delta is not None
    exact = rounded(mean, wire) - rounded(x, wire)
    torch.testing.assert_close(delta.float(), exact, rtol=1 / 128, atol=1e-6)
    torch.testing.assert_close(delta.float(), mean - x, rtol=0, atol=0.02)


def test_a_mean_that_is_not_sound_is_not_taken() -> None:
    worker = make_worker(one_stage_run())
    run_call(worker, snapshot_call(0))
    x = flat_weights(worker)[100:1000]
    call = take_call(FP32, SOME, NO_SLOT, usual_norm=0.1, members=2)
    for body, code in (
        (spoilt(x, "not_finite"), "not_finite"),
        (spoilt(x, "wrong_shape"), "wrong_shape"),
        (packed(x + 1.0), "norm_too_large"),
    ):
        assert run_call(worker, call, body)[0] == {"code": code}
    assert worker.outer is not None
    assert worker.outer.delta is None
    train(worker, 0, 0)
    step = apply_call(
        OuterRules(), SOME, NO_SLOT, usual_norm=0.001, members=2, resets=False, sent=True
    )
    assert run_call(worker, step, packed(x + 1.0))[0] == {"code": "norm_too_large"}
    start = worker.outer.start_of(SOME)
    assert torch.equal(start, x), "nothing was stepped"


def test_the_step_is_the_papers_with_momentum() -> None:
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    whole = Range(0, data["elements"])
    rules = OuterRules(alpha=0.7, mu=0.9)
    x = flat_weights(worker).clone()
    momentum = torch.zeros_like(x)
    generator = torch.Generator().manual_seed(2)
    for number in range(3):
        run_call(worker, snapshot_call(number))
        train(worker, 0, number)
        xmix = x + 0.01 * torch.randn(x.shape, generator=generator)
        dmix = 0.02 * torch.randn(x.shape, generator=generator)
        take = take_call(FP32, whole, NO_SLOT, usual_norm=0.0, members=2)
        run_call(worker, take, packed(xmix))
        step = apply_call(rules, whole, NO_SLOT, usual_norm=0.0, members=2, resets=False, sent=True)
        assert run_call(worker, step, packed(dmix))[0] == {"code": ""}
        run_call(worker, commit_call(number))
        momentum = 0.9 * momentum + dmix
        delta = (xmix - x).bfloat16().float()
        x = x + delta - 0.7 * (dmix + 0.9 * momentum)
        torch.testing.assert_close(flat_weights(worker), x, rtol=0, atol=2e-4)


def test_a_step_that_fails_in_its_last_block_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_cache, "BLOCK_ELEMENTS", 500)
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    whole = Range(0, data["elements"])
    train(worker, 0, 0)
    state, rules = worker.outer, OuterRules(alpha=3.0, mu=0.9)
    assert state is not None
    before_N = state.start_of(whole).clone()
    mean_N = torch.full((whole.count,), 0.25)
    mean_N[-1] = 3e38
    step = apply_call(rules, whole, NO_SLOT, usual_norm=0.0, members=2, resets=False, sent=True)
    with pytest.raises(JobFailed, match="not be finite"):
        run_call(worker, step, packed(mean_N))
    assert torch.equal(state.start_of(whole), before_N)
    assert state.momentum is None or not state.momentum.any()
    run_call(worker, apply_own(rules, whole))
    run_call(worker, commit_call(0))


def test_a_reset_starts_from_the_groups_mean_without_momentum() -> None:
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    whole = Range(0, data["elements"])
    rules = OuterRules(alpha=0.7, mu=0.9)
    train(worker, 0, 0)
    run_call(worker, apply_own(rules, whole))
    run_call(worker, commit_call(0))
    run_call(worker, snapshot_call(1))
    train(worker, 0, 1)
    xmix = flat_weights(worker) + 1.0
    take = take_call(FP32, whole, NO_SLOT, usual_norm=0.0, members=2)
    run_call(worker, take, packed(xmix))
    run_call(worker, apply_own(rules, whole, resets=True))
    run_call(worker, commit_call(1))
    torch.testing.assert_close(flat_weights(worker), xmix, rtol=0, atol=1e-2)
    state = worker.outer
    assert isinstance(state, OuterState)
    assert state.momentum is not None
    assert float(state.momentum.abs().max()) == 0.0


def test_sparse_gradients_owe_what_they_did_not_send() -> None:
    worker = make_worker(one_stage_run())
    data, _ = run_call(worker, snapshot_call(0))
    whole = Range(0, data["elements"])
    rules = OuterRules(sparse_topk=1 / 64)
    wire = rules.wire_of(MIX2)
    sent, total = torch.zeros(whole.count), torch.zeros(whole.count)
    for number in range(4):
        x = flat_weights(worker).clone()
        run_call(worker, snapshot_call(number))
        train(worker, 0, number)
        d = x - flat_weights(worker)
        run_call(worker, gradient_call(whole, owes=True))
        body = run_call(worker, part_call(MIX2, wire, whole))[1]
        assert body == run_call(worker, part_call(MIX2, wire, whole))[1], "asked again, the same"
        assert len(body) < whole.count / 16
        run_call(worker, apply_own(rules, whole, sent=True))
        run_call(worker, commit_call(number))
        total = 0.95 * total + d
        sent = 0.95 * sent + (x - flat_weights(worker))
    state = worker.outer
    assert state is not None
    assert state.owed is not None
    torch.testing.assert_close(sent + state.owed, total, rtol=0, atol=1e-5)
    assert 0 < int((x != flat_weights(worker)).sum()) < whole.count / 16
