"""The payload of a micro-batch between two stages: bytes in a slot to tensors and back.

Version 1, little-endian. Sections begin at multiples of 16 bytes; the gaps are zero.

    offset  size
         0     4  magic "SWTB"
         4     1  version, 1
         5     1  kind: 1 forward, 2 gradient
         6     1  dtype of the coefficients: 0 fp32, 1 bf16, 2 int8
         7     1  bytes per token id: 0 (none: gradients), 1, 2 or 4
         8     4  B, samples
        12     4  T, tokens per sample
        16     4  K, coefficients per token
        20     4  ids per sample: T + 1 forward, 0 in gradients
        24     8  zero
        32        ids       B x (T + 1), the smallest unsigned integers that hold the vocabulary
                  scales    B x T float32, int8 only
                  values    B x T x K

Ids are integers and never pass through a float type: bf16 counts exactly only to 256. There is one
more of them than tokens, because the last stage needs the targets.

Errors of one trip, per entry x of a token row whose largest magnitude is A:

    fp32   none
    bf16   |x| / 256
    int8   A (1/254 + 2^-21); rows with A < 2^-100 come out as zeros

A receiver knows what must come: shapes and types follow from the run, so every byte of the header
is checked against expectation before anything is read. What a peer sends can cause only
RemoteProtocolError: malformed, wrong_shape, wrong_dtype, not_finite.

Legend: B samples, T tokens, K coefficients, N = B T rows.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.run_config import RunConfig

assert sys.byteorder == "little", "payloads are little-endian and are not swapped"

MAGIC = b"SWTB"
VERSION = 1
FORWARD, GRADIENT = 1, 2
ALIGNMENT = 16

_HEADER = struct.Struct("<4sBBBBIIIIQ")
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_DTYPE_CODES = {"fp32": 0, "bf16": 1, "int8": 2}
_ROW_TINY = 2.0**-100
"""Below this a row is sent as zeros: its scale would leave float32's normal range."""

assert _HEADER.size == 32
assert _HEADER.size % ALIGNMENT == 0


def payload_bytes_max(run: RunConfig) -> int:
    """Largest payload of the run: a whole micro-batch going forward."""
    return PayloadCodec.of(run).forward_bytes(run.micro_batch_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadCodec:
    """What one run's payloads look like, and both directions of them."""

    samples_max: int
    tokens: int
    """T."""
    columns: int
    """K: the rank, or the width where boundaries are dense."""
    vocab_size: int
    wire: str
    """fp32, bf16 or int8."""

    @classmethod
    def of(cls, run: RunConfig) -> PayloadCodec:
        return cls(
            samples_max=run.micro_batch_samples,
            tokens=run.sequence_tokens,
            columns=run.boundary.rank or run.model.width,
            vocab_size=run.model.vocab_size,
            wire=run.boundary.wire,
        )

    def forward_bytes(self, samples: int) -> int:
        return self._layout(samples, self.tokens + 1).size

    def gradient_bytes(self, samples: int) -> int:
        return self._layout(samples, 0).size

    # ------------------------------------------------------------------------------------ packing

    def pack_forward(self, view: memoryview, ids_BT1: Tensor, c_BTK: Tensor) -> int:
        """Write ids and coefficients to the front of `view`; returns the bytes written.

        Raises JobFailed(not_finite) when the coefficients are not finite, or do not fit the wire's
        range. Nothing but `view` is changed, whatever happens.
        """
        samples = c_BTK.shape[0]
        layout = self._layout(samples, self.tokens + 1)
        self._begin(view, FORWARD, samples, layout)
        ids = np.frombuffer(
            view, self._id_type, count=samples * (self.tokens + 1), offset=layout.ids
        )
        ids[:] = ids_BT1.detach().cpu().numpy().reshape(-1)
        self._pack_values(view, layout, c_BTK)
        return layout.size

    def pack_gradient(self, view: memoryview, g_BTK: Tensor) -> int:
        """Write a gradient with respect to received coefficients. As `pack_forward`."""
        samples = g_BTK.shape[0]
        layout = self._layout(samples, 0)
        self._begin(view, GRADIENT, samples, layout)
        self._pack_values(view, layout, g_BTK)
        return layout.size

    def _begin(self, view: memoryview, kind: int, samples: int, layout: _Layout) -> None:
        assert len(view) >= layout.size, f"a slot of {len(view)} bytes for {layout.size}"
        view[: layout.values] = bytes(
            layout.values
        )  # a slot holds older bytes, gaps would show them
        view[: _HEADER.size] = self._header(kind, samples)

    def _pack_values(self, view: memoryview, layout: _Layout, x_BTK: Tensor) -> None:
        assert x_BTK.shape[1:] == (self.tokens, self.columns), x_BTK.shape
        x_NK = x_BTK.detach().reshape(-1, self.columns).float()
        dtype = _DTYPES[self.wire]
        values_NK = _tensor(view, layout.values, x_NK.shape, dtype)
        if dtype is not torch.int8:
            _require_range(x_NK, torch.finfo(dtype).max)
            values_NK.copy_(x_NK)
            return
        largest_N = x_NK.abs().amax(dim=1)
        _require_range(largest_N, torch.finfo(torch.float32).max)
        largest_N = torch.where(largest_N < _ROW_TINY, torch.inf, largest_N)
        values_NK.copy_(x_NK.mul((127.0 / largest_N)[:, None]).round_())
        scales_N = torch.where(largest_N.isinf(), 0.0, largest_N / 127.0)
        _tensor(view, layout.scales, scales_N.shape, torch.float32).copy_(scales_N)

    # ---------------------------------------------------------------------------------- unpacking

    def unpack_forward(
        self, view: memoryview, *, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """(ids_BT1 int64, c_BTK float32) as copies on `device`; the slot is free afterwards.

        Raises RemoteProtocolError, whatever the bytes.
        """
        view, samples, layout = self._checked(view, FORWARD, self.tokens + 1)
        ids = np.frombuffer(
            view, self._id_type, count=samples * (self.tokens + 1), offset=layout.ids
        )
        if int(ids.max()) >= self.vocab_size:
            raise RemoteProtocolError("malformed", f"token id {int(ids.max())} of the vocabulary")
        ids_BT1 = torch.from_numpy(ids.astype(np.int64)).view(samples, self.tokens + 1)
        return ids_BT1.to(device), self._unpack_values(view, samples, layout, device)

    def unpack_gradient(
        self, view: memoryview, *, samples: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        """g_BTK float32 of a micro-batch that had `samples`. As `unpack_forward`."""
        view, given, layout = self._checked(view, GRADIENT, 0)
        if given != samples:
            raise RemoteProtocolError("wrong_shape", f"{given} samples where {samples} were sent")
        return self._unpack_values(view, samples, layout, device)

    def _checked(
        self, view: memoryview, kind: int, ids_per_sample: int
    ) -> tuple[memoryview, int, _Layout]:
        if len(view) < _HEADER.size:
            raise RemoteProtocolError("malformed", f"{len(view)} bytes are no payload")
        fields = _HEADER.unpack_from(view)
        if fields[:3] != (MAGIC, VERSION, kind) or fields[9] != 0:
            raise RemoteProtocolError("malformed", "not such a payload")
        if fields[3:5] != (_DTYPE_CODES[self.wire], self._id_type.itemsize * bool(ids_per_sample)):
            raise RemoteProtocolError("wrong_dtype", f"types {fields[3:5]}, not those of the run")
        samples = fields[5]
        if not 1 <= samples <= self.samples_max or fields[6:9] != (
            self.tokens,
            self.columns,
            ids_per_sample,
        ):
            raise RemoteProtocolError("wrong_shape", f"{fields[5:9]}, not that of the run")
        layout = self._layout(samples, ids_per_sample)
        if len(view) != layout.size:
            raise RemoteProtocolError("malformed", f"{len(view)} bytes where {layout.size} belong")
        return (memoryview(bytearray(view)) if view.readonly else view), samples, layout

    def _unpack_values(
        self, view: memoryview, samples: int, layout: _Layout, device: torch.device | str
    ) -> Tensor:
        rows = samples * self.tokens
        raw_NK = _tensor(view, layout.values, (rows, self.columns), _DTYPES[self.wire])
        x_NK = raw_NK.to(device, copy=True).float()
        if self.wire == "int8":
            scales_N = _tensor(view, layout.scales, (rows,), torch.float32).to(device, copy=True)
            scale_max = torch.finfo(torch.float32).max / 128.0
            if not _is_within(scales_N, scale_max) or bool(scales_N.min() < 0):
                raise RemoteProtocolError("not_finite", "scales are not finite and positive")
            x_NK.mul_(scales_N[:, None])
        elif not _is_within(x_NK, torch.finfo(torch.float32).max):
            raise RemoteProtocolError("not_finite", "received values are not finite")
        return x_NK.view(samples, self.tokens, self.columns)

    # ------------------------------------------------------------------------------------- layout

    @property
    def _id_type(self) -> np.dtype[Any]:
        """The smallest that holds the vocabulary."""
        if self.vocab_size <= 1 << 8:
            return np.dtype("<u1")
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")

    def _header(self, kind: int, samples: int) -> bytes:
        ids_per_sample = self.tokens + 1 if kind == FORWARD else 0
        return _HEADER.pack(
            MAGIC,
            VERSION,
            kind,
            _DTYPE_CODES[self.wire],
            self._id_type.itemsize if kind == FORWARD else 0,
            samples,
            self.tokens,
            self.columns,
            ids_per_sample,
            0,
        )

    def _layout(self, samples: int, ids_per_sample: int) -> _Layout:
        rows = samples * self.tokens
        ids = _HEADER.size
        scales = _aligned(ids + samples * ids_per_sample * self._id_type.itemsize)
        values = _aligned(scales + (rows * 4 if self.wire == "int8" else 0))
        size = values + rows * self.columns * _DTYPES[self.wire].itemsize
        return _Layout(ids, scales, values, size)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the sections begin, and the size of all."""

    ids: int
    scales: int
    values: int
    size: int


def _require_range(x: Tensor, largest: float) -> None:
    if not _is_within(x, largest):
        raise JobFailed("not_finite", "computed values are not finite")


def _is_within(x: Tensor, largest: float) -> bool:
    """Every entry in -largest..largest, hence none NaN. On a CPU `isfinite` and the maximum norm
    take ten times as long."""
    low, high = torch.aminmax(x)
    return bool(low >= -largest) and bool(high <= largest)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _tensor(
    view: memoryview, offset: int, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype
) -> Tensor:
    """A tensor over a part of the slot itself; must not outlive the call that made it."""
    count = int(np.prod(shape))
    return torch.frombuffer(view, dtype=dtype, count=count, offset=offset).view(shape)
