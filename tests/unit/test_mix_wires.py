"""Flat vectors on the wire: error bounds, exact predictions, sizes, and bytes that lie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.optim.compress import pack_dense, rounded, unpack_dense
from swarmd.optim.sparse import choose, pack_sparse, pack_topk, unpack_sparse, unpack_topk
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.mix_parts import (
    BLOCK,
    CHUNK,
    DENSE_WIRES,
    PART_BYTES_MAX,
    PartLayout,
    Wire,
    dense_bytes,
    sparse_bytes_max,
    topk_bytes,
)

SIZES = [1, 2, 255, 256, 257, 1_000, 4_096, 5_000]


def random_vector(elements: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x_N = torch.randn(elements, generator=generator)
    return x_N * torch.exp(4 * torch.randn(elements, generator=generator))


def blank(size: int) -> memoryview:
    return memoryview(bytearray(b"\xaa" * size))


def trip(x_N: Tensor, wire: str) -> Tensor:
    view = blank(dense_bytes(wire, x_N.numel()) + 7)
    size = pack_dense(view, x_N, wire)
    return unpack_dense(view[:size], wire, x_N.numel())


def largest_of_block(x_N: Tensor) -> Tensor:
    padded = torch.zeros(-(-x_N.numel() // BLOCK) * BLOCK)
    padded[: x_N.numel()] = x_N.abs()
    return padded.view(-1, BLOCK).amax(dim=1).repeat_interleave(BLOCK)[: x_N.numel()]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("wire", DENSE_WIRES)
def test_error_of_one_trip_stays_within_its_bound(wire: str, elements: int) -> None:
    x_N = random_vector(elements)
    error_N = (trip(x_N, wire) - x_N).abs()
    bound_N = {
        "fp32": torch.zeros(elements),
        "bf16": x_N.abs() / 256,
        "int16": largest_of_block(x_N) * (1 / 65_534 + 2**-24),
        "int8": largest_of_block(x_N) * (1 / 254 + 2**-21),
    }[wire]
    assert bool((error_N <= bound_N).all())


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("wire", DENSE_WIRES)
def test_a_sender_knows_how_it_was_rounded(wire: str, elements: int) -> None:
    x_N = random_vector(elements, seed=1)
    assert torch.equal(trip(x_N, wire), rounded(x_N, wire))


@pytest.mark.parametrize("wire", DENSE_WIRES)
def test_tiny_and_zero_blocks_travel_as_numbers(wire: str) -> None:
    x_N = torch.zeros(600)
    x_N[300:] = 1e-38
    assert bool(torch.isfinite(trip(x_N, wire)).all())
    assert trip(x_N, wire)[:256].tolist() == [0.0] * 256


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("wire", DENSE_WIRES)
def test_what_is_not_finite_is_not_sent(wire: str, bad: float) -> None:
    x_N = torch.ones(300)
    x_N[270] = bad
    with pytest.raises(JobFailed, match="not_finite"):
        pack_dense(blank(dense_bytes(wire, 300)), x_N, wire)


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_received_numbers_must_be_finite(wire: str) -> None:
    view = blank(dense_bytes(wire, 64))
    pack_dense(view, torch.ones(64), wire)
    view[16:20] = b"\xff\xff\xff\xff"
    with pytest.raises(RemoteProtocolError, match="not_finite"):
        unpack_dense(view, wire, 64)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 3e38])
@pytest.mark.parametrize("wire", ["int8", "int16"])
def test_received_scales_must_be_finite_and_positive(wire: str, scale: float) -> None:
    view = blank(dense_bytes(wire, 64))
    pack_dense(view, torch.ones(64), wire)
    view[16:20] = torch.tensor([scale]).view(torch.uint8).numpy().tobytes()
    with pytest.raises(RemoteProtocolError, match="not_finite"):
        unpack_dense(view, wire, 64)


def test_wrong_type_shape_and_length_have_their_codes() -> None:
    view = blank(dense_bytes("bf16", 64))
    pack_dense(view, torch.ones(64), "bf16")
    for wire, elements, taken, code in (
        ("int16", 64, view, "wrong_dtype"),
        ("bf16", 65, view, "wrong_shape"),
        ("bf16", 64, view[:-16], "wrong_shape"),
        ("bf16", 64, view[:10], "malformed"),
        ("bf16", 64, blank(len(view)), "malformed"),
    ):
        with pytest.raises(RemoteProtocolError, match=code):
            unpack_dense(taken, wire, elements)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(DENSE_WIRES),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8),
    st.integers(-20, 20),
)
def test_any_bytes_give_finite_numbers_or_a_refusal(
    wire: str, elements: int, changes: list[tuple[int, int]], resize: int
) -> None:
    body = bytearray(dense_bytes(wire, elements))
    pack_dense(memoryview(body), random_vector(elements), wire)
    for place, byte in changes:
        body[place % len(body)] = byte
    body = body[: len(body) + min(0, resize)] + bytes(max(0, resize))
    try:
        x_N = unpack_dense(memoryview(body), wire, elements)
    except RemoteProtocolError:
        return
    assert bool(torch.isfinite(x_N).all())


# ---------------------------------------------------------------------------------------- sparse

DENSITY = 1 / 64


@pytest.mark.parametrize("elements", [1, 100, CHUNK, CHUNK + 3, 3 * CHUNK + 77])
def test_sparse_parts_arrive_as_they_were_chosen(elements: int) -> None:
    e_N = random_vector(elements, seed=2)
    view = blank(topk_bytes(elements, DENSITY))
    assert pack_topk(view, e_N, DENSITY) == len(view)
    c_N = unpack_topk(view, elements, DENSITY)
    assert torch.equal(c_N, choose(e_N, DENSITY).dense())
    kept = c_N.nonzero().view(-1)
    assert bool((c_N[kept].sign() == e_N[kept].sign()).all())


def test_the_largest_of_each_chunk_travel_and_their_sum_survives_rounding() -> None:
    e_N = random_vector(2 * CHUNK, seed=3)
    c_N = choose(e_N, DENSITY).dense()
    for chunk in (slice(0, CHUNK), slice(CHUNK, 2 * CHUNK)):
        kept = c_N[chunk].nonzero().view(-1)
        assert len(kept) == 64
        threshold = e_N[chunk].abs().topk(64).values.min()
        assert bool((e_N[chunk][kept].abs() >= threshold).all())
        sums = c_N[chunk].abs().sum(), e_N[chunk][kept].abs().sum()
        torch.testing.assert_close(*sums, rtol=1e-5, atol=0)
    assert topk_bytes(1 << 20, DENSITY) * 8 / (1 << 20) < 0.31


def test_with_error_feedback_nothing_is_lost() -> None:
    """Recipe A4, with b = 1."""
    generator = torch.Generator().manual_seed(4)
    e_N, sent_N = torch.zeros(5_000), torch.zeros(5_000, dtype=torch.float64)
    total_N = torch.zeros(5_000, dtype=torch.float64)
    for _ in range(30):
        d_N = torch.randn(5_000, generator=generator) * 1e-3
        e_N = e_N + d_N
        c_N = choose(e_N, DENSITY).dense()
        e_N = e_N - c_N
        sent_N += c_N.double()
        total_N += d_N.double()
    torch.testing.assert_close(sent_N + e_N.double(), total_N, rtol=0, atol=1e-6)
    assert float(sent_N.abs().sum()) > 0


@pytest.mark.parametrize("elements", [100, CHUNK + 3, 3 * CHUNK + 77])
def test_mean_of_sparse_parts_comes_back_exactly(elements: int) -> None:
    parts = [choose(random_vector(elements, seed), DENSITY).dense() for seed in range(3)]
    mean_N = torch.stack(parts).mean(dim=0)
    view = blank(sparse_bytes_max(elements, DENSITY, 3))
    size = pack_sparse(view, mean_N)
    assert size <= len(view)
    assert torch.equal(unpack_sparse(view[:size], elements, DENSITY, 3), mean_N)


@settings(max_examples=200, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    st.integers(-20, 20),
)
def test_any_sparse_bytes_give_finite_numbers_or_a_refusal(
    is_mean: bool, changes: list[tuple[int, int]], resize: int
) -> None:
    elements = 300
    c_N = choose(random_vector(elements), DENSITY).dense()
    body = bytearray(sparse_bytes_max(elements, DENSITY, 2))
    view = memoryview(body)
    size = pack_sparse(view, c_N) if is_mean else pack_topk(view, c_N, DENSITY)
    body = bytearray(body[:size])
    for place, byte in changes:
        body[place % len(body)] = byte
    body = body[: len(body) + min(0, resize)] + bytes(max(0, resize))
    try:
        if is_mean:
            x_N = unpack_sparse(memoryview(body), elements, DENSITY, 2)
        else:
            x_N = unpack_topk(memoryview(body), elements, DENSITY)
    except RemoteProtocolError:
        return
    assert bool(torch.isfinite(x_N).all())


# ---------------------------------------------------------------------------------------- layout


@given(
    st.integers(1, 40_000_000),
    st.integers(1, 16),
    st.sampled_from([*(Wire(name) for name in DENSE_WIRES), Wire("fp32", 1 / 64)]),
)
def test_parts_cover_a_vector_once_and_none_is_too_large(
    elements: int, members: int, wire: Wire
) -> None:
    layout = PartLayout(elements, wire, members)
    end = 0
    for part in (0, layout.count // 2, layout.count - 1):
        assert layout.part_bytes(part) <= PART_BYTES_MAX
        assert layout.mean_bytes_max(part) <= PART_BYTES_MAX
        assert layout.size(part) >= 1
        end = layout.first(part) + layout.size(part)
    assert end == elements
    assert layout.first(layout.count - 1) == (layout.count - 1) * layout.part_elements


@pytest.mark.parametrize("members", [2, 3, 4, 16])
def test_members_reduce_about_equally_much(members: int) -> None:
    layout = PartLayout(1_000_000, Wire("fp32"), members)
    shares = [0] * members
    for part in range(layout.count):
        shares[layout.primary(part, round_number=5)] += layout.size(part)
    assert max(shares) - min(shares) <= layout.part_elements
    of_each = -(-layout.count // members)
    assert max(shares) <= -(-1_000_000 // members) + of_each * BLOCK
