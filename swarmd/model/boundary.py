"""What crosses from one stage to the next, and how a stage sees the residual stream from it.

Three kinds behind one interface (algorithms.md 1.1, 1.11; arXiv 2506.01260):

    dense      the stream X itself, d a token
    subspace   coefficients C, k a token:   X = T_fixed[ids] + C U^T
    anchored   with a private table of the receiver:  X = T_fixed[ids] + A[ids] + C U^T

A constrained stage carries C from end to end and rebuilds X only to read it. So there is no encode
at the sender, nothing to subtract and hence nothing to forget; the boundary is lossless by
construction, whatever the rounding of U; and autograd's gradient of a received C is G U, which is
what goes back. Published code carries X and encodes it (algorithms.md 1.3).

T_fixed and U are the same on every stage and never trained: of the true gradient of T_fixed only
the part inside the subspace would come back over the wire.

Shapes: B samples, T tokens, D width d, K rank k, V vocabulary, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from swarmd.model.counter_random import derive_key, gaussian, gaussian_rows
from swarmd.run_config import BoundaryConfig, ModelConfig

BASIS_VERSION = 0
"""Names U. Always 0 while the basis is fixed; a message with another one is refused."""

TABLE_BYTES_MAX = 256 << 20
"""T_fixed is kept whole up to this size (a vocabulary of 128,256 up to d = 512); larger ones are
made row by row. A guess between memory and integer arithmetic, never tuned."""


class Boundary(Protocol):
    """How a stage takes up what it receives, and what it sends."""

    width: int
    """Elements a token on the wire."""
    ut_KD: Tensor | None
    """U^T, or None where the stream itself crosses."""

    def base(self, params: Mapping[str, Tensor], ids_BT: Tensor) -> Tensor | None:
        """What the stage knows of the stream from the token ids alone, (B, T, d)."""
        ...

    def read(self, state_BTK: Tensor, base_BTD: Tensor | None) -> Tensor:
        """The residual stream (B, T, d) that coefficients stand for."""
        ...

    def start(self, params: Mapping[str, Tensor], ids_BT: Tensor) -> Tensor:
        """The first stage's state, from its embedding."""
        ...


class DenseBoundary(Boundary):
    """The whole stream crosses. For comparison, and for a model cut into one stage."""

    ut_KD = None

    def __init__(self, model: ModelConfig) -> None:
        self.width = model.width

    def base(self, params: Mapping[str, Tensor], ids_BT: Tensor) -> None:
        return None

    def read(self, state_BTK: Tensor, base_BTD: Tensor | None) -> Tensor:
        return state_BTK

    def start(self, params: Mapping[str, Tensor], ids_BT: Tensor) -> Tensor:
        return F.embedding(ids_BT, params["embedding.weight"])


class SubspaceBoundary(Boundary):
    """Coefficients in a fixed basis over a fixed table, and over a private one if anchored."""

    def __init__(self, table: FixedTable, u_DK: Tensor) -> None:
        self.width = u_DK.shape[1]
        self.table = table
        self.u_DK = u_DK
        self.ut_KD = u_DK.T.contiguous()

    def base(self, params: Mapping[str, Tensor], ids_BT: Tensor) -> Tensor:
        fixed_BTD = self.table.rows(ids_BT)
        require_frozen(fixed_BTD, self.u_DK)
        if "anchor.full" in params:
            return fixed_BTD + F.embedding(ids_BT, params["anchor.full"])
        if "anchor.b" in params:
            return fixed_BTD + F.embedding(ids_BT, params["anchor.b"]) @ params["anchor.r"]
        return fixed_BTD

    def read(self, state_BTK: Tensor, base_BTD: Tensor | None) -> Tensor:
        assert base_BTD is not None
        return base_BTD + state_BTK @ self.ut_KD

    def start(self, params: Mapping[str, Tensor], ids_BT: Tensor) -> Tensor:
        return F.embedding(ids_BT, params["embedding.e"])


def require_frozen(*tensors: Tensor) -> None:
    """T_fixed and U take no gradient: what came back over the wire would be a wrong one."""
    assert not any(tensor.requires_grad for tensor in tensors), "T_fixed and U must stay frozen"


def build_boundary(
    model: ModelConfig,
    boundary: BoundaryConfig,
    seed: int,
    *,
    device: str | torch.device,
    dtype: torch.dtype,
) -> Boundary:
    """The boundary of a run. The same on every stage."""
    if boundary.kind == "dense":
        return DenseBoundary(model)
    table = FixedTable(model, boundary.table_std, seed, device=device, dtype=dtype)
    u_DK = make_basis(seed, model.width, boundary.rank)
    return SubspaceBoundary(table, u_DK.to(device=device, dtype=dtype))


class FixedTable:
    """T_fixed: one random row of d a token, from the run's seed. Kept whole when small."""

    def __init__(
        self,
        model: ModelConfig,
        std: float,
        seed: int,
        *,
        device: str | torch.device,
        dtype: torch.dtype,
        bytes_max: int = TABLE_BYTES_MAX,
    ) -> None:
        self.vocab_size, self.width, self.std, self.dtype = (
            model.vocab_size,
            model.width,
            std,
            dtype,
        )
        self._key = derive_key(seed, "T_fixed")
        self._whole_VD: Tensor | None = None
        if model.vocab_size * model.width * dtype.itemsize <= bytes_max:
            shape = (model.vocab_size, model.width)
            self._whole_VD = gaussian(self._key, shape, std, device=device).to(dtype)

    def rows(self, ids_BT: Tensor) -> Tensor:
        """(B, T, d). Ids are integers, always: 16-bit floats hold them exactly only to 256 or
        2,048, so an id that once was one is another token."""
        if self._whole_VD is not None:
            return F.embedding(ids_BT, self._whole_VD)
        seen_N, place_BT = torch.unique(ids_BT, return_inverse=True)
        rows_ND = gaussian_rows(self._key, seen_N, self.width, self.std).to(self.dtype)
        return F.embedding(place_BT, rows_ND)


def make_basis(seed: int, width: int, rank: int) -> Tensor:
    """U (d, k) in float32 on the CPU: orthonormal columns of a seeded Gaussian matrix, their signs
    fixed. The Gaussian has equal bits everywhere; QR differs in the last ones between maths
    libraries, which is rounding noise, so a basis is named by seed and version, not by its bytes.
    """
    gauss_DK = gaussian(derive_key(seed, "U"), (width, rank), 1.0, n=12).to(torch.float64)
    q_DK, r_KK = torch.linalg.qr(gauss_DK)
    signed_DK: Tensor = q_DK * torch.sign(torch.diagonal(r_KK))
    return signed_DK.to(torch.float32)
