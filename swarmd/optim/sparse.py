"""Sparse outer gradients with error feedback, the SparseLoCo form (arXiv 2508.15706).

    e = b e + D          what has not been sent yet, and what is new
    c = Q(top k of e)    the largest of each chunk of 4,096, magnitudes rounded to two levels
    e = e - c            what was sent is no longer owed
    theta -= alpha mean of c, without outer momentum: e is that already

Nothing is lost: with b = 1 the sum of all c and the final e are the sum of all D. The two levels of
a chunk are the means of the magnitudes below and above their mean, so a sign and one bit tell a
value. What a reducer sends back is the exact mean of what it took, which has up to k entries a
member.

Legend: N coordinates, C chunks, K kept of each chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.optim.compress import aligned, begin, check_header, clear, section
from swarmd.optim.outer import is_finite
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.mix_parts import (
    CHUNK,
    HEADER_BYTES,
    chunks_and_kept,
    kept_of_chunk,
    sparse_bytes_max,
    topk_bytes,
)

FEEDBACK_DECAY = 0.95
"""b, as deployed in the SparseLoCo network."""


class TopK:
    """The chosen coordinates of one vector: `index_K` over all of it, ascending within each chunk;
    `code_K` 0..3 (bit 0: the upper level, bit 1: negative); `levels_C2` lower and upper."""

    def __init__(self, elements: int, index_K: Tensor, code_K: Tensor, levels_C2: Tensor) -> None:
        self.elements, self.index_K, self.code_K = elements, index_K, code_K
        self.levels_C2 = levels_C2

    def dense(self) -> Tensor:
        """c, float32."""
        chunk_K = self.index_K // CHUNK
        magnitudes_K = self.levels_C2[chunk_K, (self.code_K & 1).long()]
        values_K = torch.where((self.code_K & 2) > 0, -magnitudes_K, magnitudes_K)
        c_N = torch.zeros(self.elements)
        c_N[self.index_K] = values_K
        return c_N


def choose(e_N: Tensor, density: float) -> TopK:
    """The largest of each chunk of e, rounded. Equal vectors choose equally."""
    whole = e_N.numel() // CHUNK * CHUNK
    indexes, codes, levels = [], [], []
    for start, e_CX in ((0, e_N[:whole].view(-1, CHUNK)), (whole, e_N[whole:].view(1, -1))):
        if e_CX.numel() == 0:
            continue
        kept = kept_of_chunk(density, e_CX.shape[1])
        magnitude_CX = e_CX.abs()
        place_CK = magnitude_CX.topk(kept, dim=1).indices.sort(dim=1).values
        chosen_CK = magnitude_CX.gather(1, place_CK)
        is_upper_CK = chosen_CK >= chosen_CK.mean(dim=1, keepdim=True)
        levels.append(torch.stack([_mean(chosen_CK, ~is_upper_CK), _mean(chosen_CK, is_upper_CK)]))
        is_negative_CK = e_CX.gather(1, place_CK) < 0
        codes.append((is_upper_CK.to(torch.uint8) | is_negative_CK.to(torch.uint8) << 1).view(-1))
        offsets_C = start + torch.arange(len(e_CX)) * CHUNK
        indexes.append((place_CK + offsets_C[:, None]).view(-1))
    return TopK(e_N.numel(), torch.cat(indexes), torch.cat(codes), torch.cat(levels, dim=1).T)


def _mean(values_CK: Tensor, wanted_CK: Tensor) -> Tensor:
    """Mean of the wanted ones of each row; 0 where none is."""
    counts_C = wanted_CK.sum(dim=1).clamp_min(1)
    return (values_CK * wanted_CK).sum(dim=1) / counts_C


# ------------------------------------------------------------------------------- a member's part


def pack_topk(view: memoryview, e_N: Tensor, density: float) -> int:
    """Write c of e_N to the front of `view`; returns the bytes written.

    Raises JobFailed(not_finite).
    """
    if not is_finite(e_N):
        raise JobFailed("not_finite", "what was to be sent is not finite")
    elements = e_N.numel()
    size = topk_bytes(elements, density)
    begin(view, "topk", elements, size)
    clear(view, HEADER_BYTES, size)
    chosen = choose(e_N, density)
    chunks, kept = chunks_and_kept(elements, density)
    at_index, at_code = _topk_offsets(chunks, kept)
    section(view, HEADER_BYTES, 2 * chunks, torch.float32).copy_(chosen.levels_C2.reshape(-1))
    section(view, at_index, kept, torch.int16).copy_(_to_int16(chosen.index_K % CHUNK))
    codes_K = torch.zeros(-(-kept // 4) * 4, dtype=torch.uint8)
    codes_K[:kept] = chosen.code_K
    shifts_4 = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    packed = (codes_K.view(-1, 4) << shifts_4).sum(dim=1, dtype=torch.uint8)
    section(view, at_code, len(packed), torch.uint8).copy_(packed)
    return size


def unpack_topk(view: memoryview, elements: int, density: float) -> Tensor:
    """c as a dense vector. Raises RemoteProtocolError, whatever the bytes."""
    check_header(view, "topk", elements)
    if len(view) != topk_bytes(elements, density):
        raise RemoteProtocolError("wrong_shape", f"{len(view)} bytes for {elements} coordinates")
    chunks, kept = chunks_and_kept(elements, density)
    at_index, at_code = _topk_offsets(chunks, kept)
    levels_C2 = section(view, HEADER_BYTES, 2 * chunks, torch.float32).clone().view(-1, 2)
    if not is_finite(levels_C2) or bool((levels_C2 < 0).any()):
        raise RemoteProtocolError("not_finite", "levels are not finite and positive")
    per_chunk = torch.full((chunks,), kept_of_chunk(density, min(CHUNK, elements)))
    if chunks > 1 and elements % CHUNK:
        per_chunk[-1] = kept_of_chunk(density, elements % CHUNK)
    index_K = _from_int16(section(view, at_index, kept, torch.int16))
    index_K = index_K + torch.arange(chunks).repeat_interleave(per_chunk) * CHUNK
    _check_index(index_K, elements)
    packed = section(view, at_code, -(-kept // 4), torch.uint8)
    shifts_4 = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    code_K = ((packed[:, None] >> shifts_4) & 3).view(-1)[:kept]
    return TopK(elements, index_K, code_K, levels_C2).dense()


def _topk_offsets(chunks: int, kept: int) -> tuple[int, int]:
    at_index = HEADER_BYTES + aligned(8 * chunks)
    return at_index, at_index + aligned(2 * kept)


# ------------------------------------------------------------------------------------ their mean


def pack_sparse(view: memoryview, mean_N: Tensor) -> int:
    """Write the entries of mean_N that are not zero; returns the bytes written."""
    if not is_finite(mean_N):
        raise JobFailed("not_finite", "the mean is not finite")
    index_K = mean_N.nonzero().view(-1)
    chunks = -(-mean_N.numel() // CHUNK)
    counts_C = torch.bincount(index_K // CHUNK, minlength=chunks)
    at_index, at_value, size = _sparse_offsets(chunks, len(index_K))
    begin(view, "sparse", mean_N.numel(), size)
    clear(view, HEADER_BYTES, size)
    section(view, HEADER_BYTES, chunks, torch.int32).copy_(counts_C)
    section(view, at_index, len(index_K), torch.int16).copy_(_to_int16(index_K % CHUNK))
    section(view, at_value, len(index_K), torch.float32).copy_(mean_N[index_K])
    return size


def unpack_sparse(view: memoryview, elements: int, density: float, members: int) -> Tensor:
    """The mean as a dense vector. Raises RemoteProtocolError, whatever the bytes."""
    check_header(view, "sparse", elements)
    if len(view) > sparse_bytes_max(elements, density, members):
        raise RemoteProtocolError("too_large", f"a mean of {len(view)} bytes")
    chunks = -(-elements // CHUNK)
    if len(view) < HEADER_BYTES + aligned(4 * chunks):
        raise RemoteProtocolError("malformed", "counts are missing")
    counts_C = section(view, HEADER_BYTES, chunks, torch.int32).long()
    if bool((counts_C < 0).any() | (counts_C > CHUNK).any()):
        raise RemoteProtocolError("malformed", "counts that cannot be")
    kept = int(counts_C.sum())
    at_index, at_value, size = _sparse_offsets(chunks, kept)
    if len(view) != size:
        raise RemoteProtocolError("wrong_shape", f"{len(view)} bytes where {size} belong")
    index_K = _from_int16(section(view, at_index, kept, torch.int16))
    index_K = index_K + torch.arange(chunks).repeat_interleave(counts_C) * CHUNK
    _check_index(index_K, elements)
    values_K = section(view, at_value, kept, torch.float32)
    if not is_finite(values_K):
        raise RemoteProtocolError("not_finite", "received values are not finite")
    mean_N = torch.zeros(elements)
    mean_N[index_K] = values_K
    return mean_N


def _sparse_offsets(chunks: int, kept: int) -> tuple[int, int, int]:
    at_index = HEADER_BYTES + aligned(4 * chunks)
    at_value = at_index + aligned(2 * kept)
    return at_index, at_value, at_value + aligned(4 * kept)


def _check_index(index_K: Tensor, elements: int) -> None:
    """Ascending, each once, inside the vector: no coordinate can be counted twice."""
    is_rising = bool((index_K[1:] > index_K[:-1]).all())
    if not is_rising or (len(index_K) and int(index_K[-1]) >= elements):
        raise RemoteProtocolError("malformed", "indices that cannot be")


def _to_int16(place_K: Tensor) -> Tensor:
    return place_K.to(torch.int16)


def _from_int16(raw_K: Tensor) -> Tensor:
    """Places within a chunk; what no chunk has is malformed."""
    place_K = raw_K.long()
    if len(place_K) and (int(place_K.min()) < 0 or int(place_K.max()) >= CHUNK):
        raise RemoteProtocolError("malformed", "an index outside its chunk")
    return place_K
