"""Whole outer rounds of real replicas: machines, real bytes, a model that learns.

The network and its time are virtual (mixing_world.py), weights and payloads are not.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mixing_world import Replica, World
from outer_helpers import (
    flat_weights,
    held_out_loss,
    loss_of_mean,
    one_stage_run,
    real_world,
    train,
    worker_of,
)
from torch import Tensor

from swarmd.optim.disagreement import spread
from swarmd.protocols.messages import Message
from swarmd.protocols.messages import mixing as wire
from swarmd.protocols.mixing import Draw, group_of

FP32: dict[str, Any] = {"mix1_wire": "fp32", "mix2_wire": "fp32"}
FULL: dict[str, Any] = FP32 | {"mix1_group": 0, "mix2_group": 0}


def weights_of(world: World) -> Tensor:
    return torch.stack([flat_weights(worker_of(replica)) for replica in world.replicas])


def finished(world: World) -> World:
    world.start()
    world.run()
    for replica in world.replicas:
        assert len(replica.slots) == 0
    return world


@pytest.mark.parametrize("replicas", [2, 4])
def test_full_averages_are_diloco_to_a_millionth(replicas: int) -> None:
    """Recipe F7, through machines, bytes and the worker."""
    run = one_stage_run(**FULL, alpha=0.7, mu=0.9)
    world = finished(real_world(run, replicas, rounds=3))
    reference = [worker_of(replica) for replica in real_world(run, replicas, rounds=3).replicas]
    parameter = torch.nn.Parameter(flat_weights(reference[0]).clone())
    optimiser = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(3):
        ends = []
        for index, worker in enumerate(reference):
            train(worker, index, number)
            ends.append(flat_weights(worker))
        parameter.grad = (parameter.detach() - torch.stack(ends)).mean(dim=0)
        optimiser.step()
        for worker in reference:
            first = 0
            for name, value in list(worker.params.items()):
                piece = parameter.detach()[first : first + value.numel()].view_as(value)
                worker.params[name] = piece.clone().requires_grad_()
                first += value.numel()
    expected = parameter.detach().expand(replicas, -1)
    torch.testing.assert_close(weights_of(world), expected, rtol=0, atol=1e-6)
    for replica in world.replicas:
        assert replica.told["round_committed"] == 3


def test_groups_for_both_mixings_are_the_update_of_the_paper() -> None:
    run = one_stage_run(**FP32, mix1_group=2, mix2_group=2, alpha=1.0)
    world = finished(real_world(run, 4, rounds=3))
    workers = [worker_of(replica) for replica in real_world(run, 4, rounds=3).replicas]
    ids = [replica.id for replica in world.replicas]
    for number in range(3):
        starts = [flat_weights(worker).clone() for worker in workers]
        for index, worker in enumerate(workers):
            train(worker, index, number)
        d = [x - flat_weights(worker) for x, worker in zip(starts, workers, strict=True)]
        for index, worker in enumerate(workers):
            fresh = mean_of(starts, ids, index, number, 1) - mean_of(d, ids, index, number, 2)
            first = 0
            for name, value in list(worker.params.items()):
                piece = fresh[first : first + value.numel()].view_as(value)
                worker.params[name] = piece.clone().requires_grad_()
                first += value.numel()
    expected = torch.stack([flat_weights(worker) for worker in workers])
    torch.testing.assert_close(weights_of(world), expected, rtol=0, atol=2e-4)
    assert spread(expected) > 1e-6, "replicas differ: there was something to get right"


def mean_of(values: list[Tensor], ids: list[Any], index: int, number: int, mix: int) -> Tensor:
    run_id = "5" * 64
    group = group_of(ids[index], ids, 2, Draw(run_id, 0, number, mix))  # type: ignore[arg-type]
    return torch.stack([values[ids.index(peer)] for peer in group]).mean(dim=0)


def learned(outer: dict[str, Any]) -> float:
    """How much the held-out loss of the averaged weights fell in 8 rounds of 3 steps."""
    run = one_stage_run(**outer)
    before = held_out_loss(worker_of(real_world(run, 1, rounds=1).replicas[0]))
    world = finished(real_world(run, 4, rounds=8))
    for replica in world.replicas:
        assert replica.told["round_committed"] == 8, replica.last()
    gain = before - loss_of_mean(world)
    print(f"{gain:.4f} {outer}")
    return gain


@pytest.fixture(scope="module")
def exactly_averaged() -> float:
    return learned(FULL)


@pytest.fixture(scope="module")
def never_averaged() -> float:
    return learned({"mix1_group": 1, "mix2_group": 1})


@pytest.mark.parametrize(
    "outer",
    [
        {"mix1_wire": "int16", "mix2_wire": "bf16"},
        {"mix1_wire": "int16", "mix2_wire": "int8"},
        {"robust": "centered_clip"},
    ],
    ids=str,
)
def test_rounding_and_clipping_cost_nothing_that_shows(
    outer: dict[str, Any], exactly_averaged: float
) -> None:
    assert exactly_averaged > 0.25
    assert learned(outer) > 0.97 * exactly_averaged


@pytest.mark.parametrize(
    "outer",
    [{"mix2_group": 2}, {"mix2_group": 1}, {"mix2_cover": "shallow"}, {"sparse_topk": 1 / 16}],
    ids=str,
)
def test_factored_mixing_learns_less_than_exact_and_much_more_than_none(
    outer: dict[str, Any], exactly_averaged: float, never_averaged: float
) -> None:
    """A handful of steps at tiny batches is where factoring costs most (algorithms.md 2.12)."""
    assert never_averaged < 0.5 * exactly_averaged
    assert learned(outer) > never_averaged + 0.1 * (exactly_averaged - never_averaged)


def rounded_apart(wire_name: str) -> float:
    """How far replicas that do not learn stay apart when only Mix1 works on them."""
    run = one_stage_run(mix1_wire=wire_name, mix1_group=0, mix2_group=1)
    world = real_world(run, 4, rounds=12)
    generator = torch.Generator().manual_seed(3)
    for replica in world.replicas:
        replica.inner = lambda replica: None
        worker = worker_of(replica)
        for name, value in list(worker.params.items()):
            noise = 1e-3 * torch.randn(value.shape, generator=generator)
            worker.params[name] = (value.detach() + noise).requires_grad_()
    finished(world)
    return spread(weights_of(world)) ** 0.5


def test_sixteen_bits_in_blocks_bring_starts_closer_than_bfloat16() -> None:
    """Replicas 1e-3 apart. bfloat16 has 8 bits of each weight, int16 in blocks 15 of the largest:
    the same bytes, and a floor of disagreement that is lower by more than an order."""
    apart = {name: rounded_apart(name) for name in ("fp32", "int16", "bf16")}
    print(apart)
    assert apart["fp32"] < 1e-5
    assert apart["int16"] < 5e-5
    assert apart["int16"] < apart["bf16"] / 10


# -------------------------------------------------------------------------------------- attackers


def poison(how: str) -> Any:
    def spoil(message: Message, body: bytes) -> bytes:
        if how == "shape":
            return body[:-16]
        kind = torch.bfloat16 if is_mix1(message) else torch.float32
        values = torch.frombuffer(bytearray(body[16:]), dtype=kind)
        if how == "nan":
            values[0] = float("nan")
        else:
            values *= {"x1000": 1_000.0, "sign": -1.0}[how]
        return body[:16] + values.view(torch.uint8).numpy().tobytes()

    return spoil


def is_mix1(message: Message) -> bool:
    return isinstance(message, wire.Part | wire.Mean) and message.ref.mix == 1


ATTACKED: dict[str, Any] = {"robust": "centered_clip"}
ATTACKED_ROUNDS = 8
LIAR = frozenset({2})


@pytest.fixture(scope="module")
def loss_without_the_liar() -> float:
    """Of four honest replicas, where the fifth was never alive."""
    clean = real_world(one_stage_run(**ATTACKED), 5, ATTACKED_ROUNDS)
    for number in LIAR:
        clean.replicas[number].is_alive = False
    clean.tell_roster()
    for replica in clean.alive():
        replica.start()
    clean.run()
    return loss_of_mean(clean, LIAR)


@pytest.mark.parametrize("how", ["nan", "x1000", "shape", "sign"])
def test_one_attacker_of_five_does_not_spoil_the_others(
    how: str, loss_without_the_liar: float
) -> None:
    """Recipe B6. The attacker lies about whatever it sends, means included. Without it there are
    four: what it could have brought is lost, and no more."""
    world = real_world(one_stage_run(**ATTACKED), 5, ATTACKED_ROUNDS)
    liar = world.replicas[min(LIAR)]
    liar.spoil = poison(how)
    finished(world)
    print(how, loss_without_the_liar, loss_of_mean(world, LIAR))
    assert loss_of_mean(world, LIAR) < 1.02 * loss_without_the_liar
    codes = {
        "nan": {"not_finite"},
        "x1000": {"norm_too_large"},
        "shape": {"wrong_shape"},
        "sign": {"clipped", "norm_too_large"},
    }
    for replica in world.replicas:
        if replica is not liar:
            named = [f for name, f in replica.events if name == "update_rejected"]
            assert named, f"{replica.id} named nobody"
            assert {f["peer"] for f in named if f["code"] != "clipped"} <= {liar.id}
            assert {f["code"] for f in named if f["peer"] == liar.id} <= codes[how]
            assert liar.id in {f["peer"] for f in named}


def test_clipping_names_no_honest_replica_as_an_offender() -> None:
    world = finished(real_world(one_stage_run(robust="centered_clip"), 5, rounds=6))
    for replica in world.replicas:
        assert replica.keeper.statistics(world.now_s).rejected_updates == 0
        assert replica.told["round_committed"] == 6


def test_training_survives_a_replica_that_dies_and_one_that_freezes() -> None:
    run = one_stage_run(mix2_group=0)
    clean = finished(real_world(run, 4, rounds=8))
    world = real_world(run, 4, rounds=8)
    world.start()
    world.at(7.0, lambda: world.kill(world.replicas[1]))
    world.at(9.0, world.tell_roster)
    world.at(9.2, lambda: world.replicas[2].freeze(4.0))
    world.run()
    for replica in (world.replicas[0], world.replicas[3]):
        assert len(replica.slots) == 0
        assert len(replica.rounds) == 8
    survivors = frozenset({1, 2})
    assert loss_of_mean(world, survivors) < 1.05 * loss_of_mean(clean, survivors)


def test_harness_replicas_begin_equal() -> None:
    world = real_world(one_stage_run(), 3, rounds=1)
    first: Replica = world.replicas[0]
    for replica in world.replicas:
        assert torch.equal(flat_weights(worker_of(replica)), flat_weights(worker_of(first)))
