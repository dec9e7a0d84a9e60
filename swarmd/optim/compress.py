"""Flat vectors as bytes: what crosses between replicas in Mix1 and Mix2, with bounded error.

The layout, and which types there are, stands in protocols/mix_parts.py. Errors of one trip, for a
coordinate x in a block of 256 whose largest magnitude is A:

    fp32    none
    bf16    |x| / 256
    int16   A (1/65534 + 2^-24)
    int8    A (1/254 + 2^-21)

A block with A < 2^-100 is sent as zeros: its scale would leave float32's normal range. Which block
a coordinate shares is fixed, so equal vectors give equal bytes and a replica can predict how what
it sent was rounded: Mix1 is applied as decoded(mean) - decoded(own), which leaves the own, exact
part of the parameters alone and is exactly zero between replicas that are equal.

What a peer sends can cause only RemoteProtocolError: malformed, wrong_dtype, wrong_shape,
not_finite. Sparse parts are in sparse.py.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.optim.outer import is_finite
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.mix_parts import ALIGNMENT, BLOCK, HEADER_BYTES, dense_bytes

MAGIC = b"SWMX"
VERSION = 1
CODES = {"fp32": 0, "bf16": 1, "int8": 2, "int16": 3, "topk": 4, "sparse": 5}
PLAIN = ("fp32", "bf16")
"""Wires whose values are floats, each on its own."""
BLOCK_TINY = 2.0**-100

_HEADER = struct.Struct("<4sBBHIi")
_TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int16": torch.int16,
    "int8": torch.int8,
}
_LEVELS = {"int16": 32_767.0, "int8": 127.0}

assert _HEADER.size == HEADER_BYTES


def pack_dense(view: memoryview, x_N: Tensor, wire: str) -> int:
    """Write x_N (float32, on the CPU) to the front of `view`; returns the bytes written.

    Raises JobFailed(not_finite), with `view` undefined, if x_N is not finite in the wire's range.
    """
    values_N, size = begin_dense(view, wire, x_N.numel())
    if wire in PLAIN:
        values_N.copy_(x_N)
        require_finite(values_N)
        return size
    require_finite(x_N)
    scales_B = section(view, HEADER_BYTES, _blocks(x_N.numel()), torch.float32)
    values_N.copy_(_quantised(x_N, _LEVELS[wire], scales_B))
    return size


def begin_dense(view: memoryview, wire: str, elements: int) -> tuple[Tensor, int]:
    """All of a part but its values and scales. Returns where the values go, and the part's size."""
    size = dense_bytes(wire, elements)
    begin(view, wire, elements, size)
    at_values = _values_offset(wire, elements)
    values_N = section(view, at_values, elements, _TYPES[wire])
    if wire in _LEVELS:
        clear(view, HEADER_BYTES + 4 * _blocks(elements), at_values)
    clear(view, at_values + values_N.nbytes, size)
    return values_N, size


def require_finite(x_N: Tensor) -> None:
    """Raises JobFailed(not_finite)."""
    if not is_finite(x_N):
        raise JobFailed("not_finite", "what was to be sent is not finite")


def unpack_dense(view: memoryview, wire: str, elements: int, *, copy: bool = True) -> Tensor:
    """x_N float32. Raises RemoteProtocolError, whatever the bytes.

    copy: False if it may lie in the slot itself, and will neither be changed nor kept.
    """
    raw_N = values_as_sent(view, wire, elements)
    if wire in PLAIN:
        if not is_finite(raw_N):
            raise RemoteProtocolError("not_finite", "received coordinates are not finite")
        return raw_N.to(torch.float32, copy=copy)
    scales_B = section(view, HEADER_BYTES, _blocks(elements), torch.float32)
    scale_max = torch.finfo(torch.float32).max / (_LEVELS[wire] + 1)
    if not is_finite(scales_B) or bool((scales_B < 0).any() | (scales_B > scale_max).any()):
        raise RemoteProtocolError("not_finite", "scales are not finite and positive")
    return raw_N.float().mul_(_spread(scales_B, elements))


def values_as_sent(view: memoryview, wire: str, elements: int) -> Tensor:
    """The values of a part where they lie, in the type in which they came, and not looked at: of a
    PLAIN wire they may not be finite. Raises RemoteProtocolError for another kind of part."""
    check_header(view, wire, elements)
    if len(view) != dense_bytes(wire, elements):
        raise RemoteProtocolError("wrong_shape", f"{len(view)} bytes for {elements} coordinates")
    return section(view, _values_offset(wire, elements), elements, _TYPES[wire])


def rounded(x_N: Tensor, wire: str) -> Tensor:
    """What a receiver makes of x_N. Equal to packing and unpacking it, to the bit."""
    if wire == "fp32":
        return x_N
    if wire == "bf16":
        return x_N.bfloat16().float()
    scales_B = torch.empty(_blocks(x_N.numel()), dtype=torch.float32)
    quantised_N = _quantised(x_N, _LEVELS[wire], scales_B)
    return quantised_N.mul_(_spread(scales_B, x_N.numel()))


# ------------------------------------------------------------------------------------------ pieces


def begin(view: memoryview, wire: str, elements: int, size: int) -> None:
    """The header of a part of so many bytes."""
    assert len(view) >= size, f"a slot of {len(view)} bytes for {size}"
    _HEADER.pack_into(view, 0, MAGIC, VERSION, CODES[wire], 0, elements, 0)


def clear(view: memoryview, start: int, end: int) -> None:
    """Zeros, where a gap would show older bytes."""
    view[start:end] = bytes(end - start)


def check_header(view: memoryview, wire: str, elements: int) -> None:
    """Raises RemoteProtocolError unless this is a part of that type and that many coordinates."""
    if len(view) < HEADER_BYTES:
        raise RemoteProtocolError("malformed", f"{len(view)} bytes are no part")
    magic, version, code, zero, given, last = _HEADER.unpack_from(view)
    if (magic, version, zero, last) != (MAGIC, VERSION, 0, 0):
        raise RemoteProtocolError("malformed", "not such a part")
    if code != CODES[wire]:
        raise RemoteProtocolError("wrong_dtype", f"type {code}, not {wire}")
    if given != elements:
        raise RemoteProtocolError("wrong_shape", f"{given} coordinates where {elements} belong")


def section(view: memoryview, offset: int, count: int, dtype: torch.dtype) -> Tensor:
    """A tensor over a part of the slot itself; must not outlive the call that made it."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    source = bytearray(view) if view.readonly else view
    return torch.frombuffer(source, dtype=dtype, count=count, offset=offset)


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def _values_offset(wire: str, elements: int) -> int:
    return HEADER_BYTES + (aligned(4 * _blocks(elements)) if wire in _LEVELS else 0)


def _quantised(x_N: Tensor, levels: float, scales_B: Tensor) -> Tensor:
    """Whole numbers in -levels .. levels, as float32; fills scales_B."""
    whole = x_N.numel() // BLOCK * BLOCK
    parts = [x_N[:whole].view(-1, BLOCK)] if whole else []
    if whole < x_N.numel():
        parts.append(x_N[whole:].view(1, -1))
    out, block = [], 0
    for part_BX in parts:
        largest_B = part_BX.abs().amax(dim=1)
        is_tiny_B = largest_B < BLOCK_TINY
        scales_B[block : block + len(part_BX)] = torch.where(is_tiny_B, 0.0, largest_B / levels)
        factors_B = torch.where(is_tiny_B, 0.0, levels / largest_B)
        out.append((part_BX * factors_B[:, None]).round_().clamp_(-levels, levels).view(-1))
        block += len(part_BX)
    return out[0] if len(out) == 1 else torch.cat(out) if out else x_N.clone()


def _spread(scales_B: Tensor, elements: int) -> Tensor:
    """Each block's scale, once for each of its coordinates."""
    return scales_B.repeat_interleave(BLOCK)[:elements]
