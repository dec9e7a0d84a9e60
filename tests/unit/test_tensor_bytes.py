"""Payloads: exact ids, the stated error bounds, every odd shape, and nothing from bad bytes."""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
import pytest
import torch
from compute_helpers import small_run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmd.compute.tensor_bytes import PayloadCodec, payload_bytes_max
from swarmd.errors import JobFailed
from swarmd.protocols.errors import RemoteProtocolError

torch.set_num_threads(1)

WIRES = ["fp32", "bf16", "int8"]


def codec_of(
    wire: str, *, tokens: int = 5, columns: int = 3, vocab_size: int = 300, samples_max: int = 4
) -> PayloadCodec:
    return PayloadCodec(
        samples_max=samples_max, tokens=tokens, columns=columns, vocab_size=vocab_size, wire=wire
    )


def random_payload(codec: PayloadCodec, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, codec.vocab_size, (samples, codec.tokens + 1), generator=generator)
    return ids, torch.randn(samples, codec.tokens, codec.columns, generator=generator)


def packed(codec: PayloadCodec, ids_BT1: Tensor, c_BTK: Tensor) -> memoryview:
    view = memoryview(bytearray(b"\xaa" * (codec.forward_bytes(codec.samples_max) + 64)))
    size = codec.pack_forward(view, ids_BT1, c_BTK)
    assert size == codec.forward_bytes(len(c_BTK))
    assert bytes(view[size:]) == b"\xaa" * (len(view) - size)
    return view[:size]


def bound(codec: PayloadCodec, x_BTK: Tensor) -> Tensor:
    """The error that the module's header promises, entry by entry."""
    if codec.wire == "fp32":
        return torch.zeros_like(x_BTK)
    if codec.wire == "bf16":
        return x_BTK.abs() / 256
    largest = x_BTK.abs().amax(-1, keepdim=True)
    return largest * (1 / 254 + 2**-21) + (largest < 2**-100) * largest


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("columns", [1, 3, 63, 65, 129])
@pytest.mark.parametrize("tokens", [1, 2, 127])
def test_every_shape_comes_back_within_the_stated_bound(
    wire: str, columns: int, tokens: int
) -> None:
    codec = codec_of(wire, columns=columns, tokens=tokens)
    for samples in (1, 3):
        ids, c = random_payload(codec, samples)
        ids_back, c_back = codec.unpack_forward(packed(codec, ids, c))
        assert torch.equal(ids_back, ids)
        assert ids_back.dtype == torch.int64
        assert c_back.dtype == torch.float32
        assert ((c_back - c).abs() <= bound(codec, c)).all()


@pytest.mark.parametrize("wire", WIRES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_finite_floats_come_back_within_the_stated_bound(
    wire: str, data: st.DataObject
) -> None:
    codec = codec_of(wire, tokens=2, columns=3, samples_max=1)
    floats = st.floats(-(2.0**126), 2.0**126, width=32, allow_subnormal=False)
    c = torch.tensor(data.draw(st.lists(floats, min_size=6, max_size=6))).view(1, 2, 3)
    _, c_back = codec.unpack_forward(packed(codec, torch.zeros(1, 3, dtype=torch.int64), c))
    assert ((c_back - c).abs() <= bound(codec, c)).all()


@pytest.mark.parametrize("wire", WIRES)
def test_zeros_and_one_hot_rows_are_exact(wire: str) -> None:
    codec = codec_of(wire)
    c = torch.zeros(2, 5, 3)
    c[1, 2, 1] = -2.0
    ids = torch.zeros(2, 6, dtype=torch.int64)
    assert torch.equal(codec.unpack_forward(packed(codec, ids, c))[1], c)


@pytest.mark.parametrize("wire", WIRES)
def test_a_tensor_that_is_not_contiguous_is_packed_as_it_reads(wire: str) -> None:
    codec = codec_of(wire)
    ids, c = random_payload(codec, 2)
    strided = c.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    wide_ids = torch.stack([ids, ids + 1], dim=-1)[..., 0]
    assert bytes(packed(codec, wide_ids, strided)) == bytes(packed(codec, ids, c))


@pytest.mark.parametrize("wire", WIRES)
def test_half_precision_values_can_be_packed(wire: str) -> None:
    codec = codec_of(wire)
    ids, c = random_payload(codec, 1)
    for dtype in (torch.float16, torch.bfloat16):
        half = c.to(dtype)
        back = codec.unpack_forward(packed(codec, ids, half))[1]
        assert ((back - half.float()).abs() <= bound(codec, half.float())).all()


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.parametrize(
    ("vocab_size", "id_bytes"), [(2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (128_256, 4)]
)
def test_ids_are_exact_whatever_the_vocabulary(wire: str, vocab_size: int, id_bytes: int) -> None:
    codec = codec_of(wire, vocab_size=vocab_size, tokens=4_095, columns=1, samples_max=1)
    ids = torch.linspace(0, vocab_size - 1, 4_096, dtype=torch.float64).round().long()[None]
    assert int(ids[0, -1]) == vocab_size - 1
    view = packed(codec, ids, torch.zeros(1, 4_095, 1))
    assert view[7] == id_bytes
    assert torch.equal(codec.unpack_forward(view)[0], ids)


@pytest.mark.parametrize("wire", WIRES)
def test_a_gradient_comes_back_within_the_stated_bound(wire: str) -> None:
    codec = codec_of(wire)
    g = random_payload(codec, 3)[1] * 1e-6
    view = memoryview(bytearray(codec.gradient_bytes(3)))
    assert codec.pack_gradient(view, g) == len(view)
    back = codec.unpack_gradient(view, samples=3)
    assert ((back - g).abs() <= bound(codec, g)).all()


@pytest.mark.parametrize("wire", WIRES)
def test_a_hundred_trips_do_not_drift(wire: str) -> None:
    codec = codec_of(wire)
    ids, c = random_payload(codec, 4)
    now = c
    for _ in range(100):
        now = codec.unpack_forward(packed(codec, ids, now))[1]
    assert ((now - c).abs() <= bound(codec, c) + c.abs() * 2**-20).all()


def test_nothing_of_what_the_slot_held_before_travels() -> None:
    for wire in WIRES:
        codec = codec_of(wire, tokens=2, columns=1, vocab_size=200)
        clean = memoryview(bytearray(codec.forward_bytes(1)))
        used = memoryview(bytearray(b"\xff" * codec.forward_bytes(1)))
        ids, c = random_payload(codec, 1)
        codec.pack_forward(clean, ids, c)
        codec.pack_forward(used, ids, c)
        assert bytes(clean) == bytes(used)


def test_what_is_unpacked_does_not_change_with_the_slot() -> None:
    for wire in WIRES:
        codec = codec_of(wire)
        ids, c = random_payload(codec, 2)
        view = packed(codec, ids, c)
        ids_back, c_back = codec.unpack_forward(view)
        kept = c_back.clone()
        view[:] = bytes(len(view))
        assert torch.equal(ids_back, ids)
        assert torch.equal(c_back, kept)


def test_int8_is_a_quarter_of_float32_but_for_ids_and_scales() -> None:
    run = small_run(2)
    sizes = {
        wire: payload_bytes_max(
            dataclasses.replace(run, boundary=dataclasses.replace(run.boundary, wire=wire))
        )
        for wire in WIRES
    }
    assert sizes == {"fp32": 64 + 24 * 8 * 4, "bf16": 64 + 24 * 8 * 2, "int8": 64 + 24 * (8 + 4)}


# --------------------------------------------------------------------------------------- bad bytes


def code_of(codec: PayloadCodec, body: bytes | bytearray) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.unpack_forward(memoryview(bytearray(body)))
    return caught.value.code


def good_body(codec: PayloadCodec) -> bytearray:
    return bytearray(packed(codec, *random_payload(codec, 2)))


@pytest.mark.parametrize("wire", WIRES)
def test_a_header_that_is_not_the_runs_is_refused_by_code(wire: str) -> None:
    codec = codec_of(wire)
    changes = {
        0: "malformed",  # magic
        4: "malformed",  # version
        5: "malformed",  # kind
        6: "wrong_dtype",
        7: "wrong_dtype",  # bytes per id
        8: "wrong_shape",  # samples: 2 -> 253 is above the maximum
        12: "wrong_shape",
        16: "wrong_shape",
        20: "wrong_shape",
        24: "malformed",  # reserved
    }
    for place, code in changes.items():
        body = good_body(codec)
        body[place] ^= 0xFF
        assert code_of(codec, body) == code, place


@pytest.mark.parametrize("wire", WIRES)
def test_too_few_and_too_many_bytes_are_malformed(wire: str) -> None:
    codec = codec_of(wire)
    body = good_body(codec)
    for size in (0, 1, 31, 32, len(body) - 1):
        assert code_of(codec, body[:size]) == "malformed"
    assert code_of(codec, body + b"\0") == "malformed"
    body[8] = 3  # one sample more than there are bytes for
    assert code_of(codec, body) == "malformed"
    body[8] = 0
    assert code_of(codec, body) == "wrong_shape"


@pytest.mark.parametrize("wire", WIRES)
def test_a_token_outside_the_vocabulary_is_malformed(wire: str) -> None:
    codec = codec_of(wire, vocab_size=300)
    body = good_body(codec)
    body[32:34] = struct.pack("<H", 300)
    assert code_of(codec, body) == "malformed"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_on_both_ways(bad: float) -> None:
    for wire in WIRES:
        codec = codec_of(wire)
        ids, c = random_payload(codec, 2)
        c[1, 3, 2] = bad
        with pytest.raises(JobFailed) as caught:
            packed(codec, ids, c)
        assert caught.value.code == "not_finite"
    for wire, item in (
        ("fp32", np.float32(bad).tobytes()),
        ("bf16", np.float32(bad).tobytes()[2:]),
    ):
        codec = codec_of(wire)
        body = good_body(codec)
        body[-len(item) :] = item
        assert code_of(codec, body) == "not_finite"


@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0, 3e38])
def test_a_scale_that_is_not_finite_and_positive_is_refused(scale: float) -> None:
    codec = codec_of("int8")
    body = good_body(codec)
    body[64:68] = np.float32(scale).tobytes()  # 32 header, 24 ids, 8 of gap
    assert code_of(codec, body) == "not_finite"


def test_a_value_beyond_bfloat16_is_not_sent_as_infinite() -> None:
    codec = codec_of("bf16", tokens=1, columns=1)
    beyond = torch.full((1, 1, 1), torch.finfo(torch.float32).max)
    with pytest.raises(JobFailed, match="not_finite"):
        packed(codec, torch.zeros(1, 2, dtype=torch.int64), beyond)


def test_a_gradient_is_no_forward_and_its_samples_must_agree() -> None:
    codec = codec_of("int8")
    body = good_body(codec)
    with pytest.raises(RemoteProtocolError, match="malformed"):
        codec.unpack_gradient(memoryview(body), samples=2)
    view = memoryview(bytearray(codec.gradient_bytes(2)))
    codec.pack_gradient(view, torch.ones(2, 5, 3))
    assert code_of(codec, bytes(view)) == "malformed"
    with pytest.raises(RemoteProtocolError, match="wrong_shape"):
        codec.unpack_gradient(view, samples=3)


def test_bytes_that_cannot_be_written_to_are_read_too() -> None:
    codec = codec_of("int8")
    body = good_body(codec)
    from_slot = codec.unpack_forward(memoryview(body))
    from_bytes = codec.unpack_forward(memoryview(bytes(body)))
    assert torch.equal(from_slot[1], from_bytes[1])


@pytest.mark.parametrize("wire", WIRES)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 40),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_finite_tensors_or_a_remote_protocol_error(
    wire: str, flips: list[tuple[int, int]], cut: int
) -> None:
    codec = codec_of(wire)
    body = good_body(codec)
    for place, mask in flips:
        body[place % len(body)] ^= mask
    if cut > 20:
        del body[-(cut - 20) :]
    try:
        ids, c = codec.unpack_forward(memoryview(body))
    except RemoteProtocolError:
        return
    assert int(ids.max()) < codec.vocab_size
    assert c.isfinite().all()
