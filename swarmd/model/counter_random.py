"""Random numbers that are equal bit for bit on every device, platform and library version.

A framework's `randn` is a stream whose order and rounding differ between devices and releases, so
peers could not make the same table from the same seed. Here a value is a pure function of
(key, position): integers are mixed, summed and scaled by one float32 constant, and nothing is
rounded but that one product (algorithms.md 1.6).

value = (sum of n uniform 16-bit integers - its mean) * scale. With n = 4 this is near a Gaussian,
cut off at 3.5 standard deviations, which is what starts of weights often do on purpose; n = 12 is
the classic sum, used for U. The mixer is the finaliser of splitmix64 over a counter.
"""

from __future__ import annotations

import hashlib
import math
import struct

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_LANES = 0x0000_FFFF_0000_FFFF

_CHUNK_ELEMENTS_CPU = 1 << 16
_CHUNK_ELEMENTS_DEVICE = 1 << 22
"""At a time: never stage-sized temporaries. 0.5 MiB of integers stay in a CPU's cache (40 M values
a second on one core; 24 M at 8 MiB), a GPU wants long kernels (a guess)."""


def derive_key(seed: int, *labels: str) -> int:
    """A 64-bit key for one purpose of a run's seed. Each label has its length before it, so that
    no two lists of labels read alike."""
    words = [word.encode() for word in (str(seed), *labels)]
    body = b"".join(struct.pack(">I", len(word)) + word for word in words)
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")


def gaussian(
    key: int, shape: tuple[int, ...], std: float, *, device: str | torch.device = "cpu", n: int = 4
) -> Tensor:
    """float32 of `shape`; element i (row-major) depends on (key, i, n) and std alone."""
    flat = torch.empty(math.prod(shape), dtype=torch.float32, device=device)
    step = _chunk_elements(flat)
    for start in range(0, flat.numel(), step):
        stop = min(start + step, flat.numel())
        position = torch.arange(start, stop, dtype=torch.int64, device=device)
        flat[start:stop] = _values(key, position, std, n)
    return flat.view(shape)


def gaussian_rows(key: int, rows_N: Tensor, width: int, std: float, *, n: int = 4) -> Tensor:
    """(N, width): the rows with these numbers of the table `gaussian(key, (..., width), std)`."""
    out = torch.empty(rows_N.numel(), width, dtype=torch.float32, device=rows_N.device)
    columns = torch.arange(width, dtype=torch.int64, device=rows_N.device)
    step = max(1, _chunk_elements(out) // width)
    for start in range(0, rows_N.numel(), step):
        rows = rows_N[start : start + step, None].to(torch.int64)
        out[start : start + step] = _values(key, rows * width + columns, std, n)
    return out


def _chunk_elements(out: Tensor) -> int:
    return _CHUNK_ELEMENTS_CPU if out.device.type == "cpu" else _CHUNK_ELEMENTS_DEVICE


def _values(key: int, position: Tensor, std: float, n: int) -> Tensor:
    """float32 values at int64 positions; n is a multiple of 4, each hash giving four integers."""
    words = n // 4
    total: Tensor | None = None
    for word in range(words):
        counter = position * words + word if words > 1 else position
        mixed = counter.mul(_signed(_GOLDEN)).add_(_signed(key + _GOLDEN))
        mixed.bitwise_xor_(_shifted(mixed, 30)).mul_(_signed(_MIX_1))
        mixed.bitwise_xor_(_shifted(mixed, 27)).mul_(_signed(_MIX_2))
        mixed.bitwise_xor_(_shifted(mixed, 31))
        pairs = (mixed & _LANES).add_((mixed >> 16).bitwise_and_(_LANES))
        lanes = (pairs & 0xFFFF_FFFF).add_(pairs >> 32)
        total = lanes if total is None else total.add_(lanes)
    assert total is not None
    centred = total.sub_(n * 0xFFFF // 2).to(torch.float32)  # below 2^24: exact
    deviation = math.sqrt(n * (2**32 - 1) / 12)
    return centred.mul_(_float32(std / deviation))


def _shifted(words: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's keeps the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
