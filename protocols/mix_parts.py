"""How a flat vector is cut into parts for an exchange, and how many bytes a part takes.

The vector is a stage's parameters (Mix1) or its outer gradient (Mix2), one number a coordinate. A
part is a range of it of at most PART_BYTES_MAX on the wire. Every member reduces the same number of
parts, and all parts but the last are equal, so nobody reduces more than the others.

The bytes themselves are the compute worker's business (swarmd/optim/compress.py); both sides of a
link need their number beforehand, to lend slots and to refuse what cannot be a part. Payload of
`n` coordinates, version 1:

    16 bytes of header, then padded to 16 bytes each:
    fp32    4 n
    bf16    2 n
    int16   4 bytes of scale for each block of 256, 2 n
    int8    4 bytes of scale for each block of 256, n
    topk    for each chunk of 4,096: two scales, k indices of 2 bytes, k codes of 2 bits
    sparse  what a mean of `topk` parts has: for each chunk a count, indices of 2 bytes, values of 4
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from swarmd.protocols import limits

HEADER_BYTES = 16
ALIGNMENT = 16
BLOCK = 256
"""Coordinates that share a scale."""
CHUNK = 4_096
"""Coordinates among which the largest are chosen."""
PART_BYTES_MAX = 2 * limits.MIB
"""A part is packed, sent, reduced, sent back, taken and answered for: a dozen events whatever its
size, at a third of a millisecond each. Frames, not parts, say how soon an activation overtakes."""
PART_ELEMENTS_MAX = 1 << 20
"""However small on the wire: what a reducer unpacks takes 4 bytes a coordinate and member."""
PARTS_MAX = 1 << 20
"""A stage of a trillion parameters."""

DENSE_WIRES = ("fp32", "bf16", "int16", "int8")


def kept_of_chunk(density: float, elements: int) -> int:
    """How many of a chunk's coordinates travel."""
    return max(1, min(elements, round(density * elements)))


def dense_bytes(wire: str, elements: int) -> int:
    """Payload of a dense part."""
    blocks = -(-elements // BLOCK)
    match wire:
        case "fp32":
            return HEADER_BYTES + _aligned(4 * elements)
        case "bf16":
            return HEADER_BYTES + _aligned(2 * elements)
        case "int16":
            return HEADER_BYTES + _aligned(4 * blocks) + _aligned(2 * elements)
        case "int8":
            return HEADER_BYTES + _aligned(4 * blocks) + _aligned(elements)
    raise ValueError(f"no wire {wire}")


def topk_bytes(elements: int, density: float) -> int:
    """Payload of one member's sparse part."""
    chunks, kept = chunks_and_kept(elements, density)
    return HEADER_BYTES + _aligned(8 * chunks) + _aligned(2 * kept) + _aligned(-(-kept // 4))


def sparse_bytes_max(elements: int, density: float, members: int) -> int:
    """Largest payload of the mean of `members` sparse parts."""
    chunks, kept = chunks_and_kept(elements, density)
    most = min(elements, members * kept)
    return HEADER_BYTES + _aligned(4 * chunks) + _aligned(2 * most) + _aligned(4 * most)


def chunks_and_kept(elements: int, density: float) -> tuple[int, int]:
    """How many chunks a part has, and how many of its coordinates travel."""
    whole, rest = divmod(elements, CHUNK)
    kept = whole * kept_of_chunk(density, CHUNK)
    return (whole, kept) if not rest else (whole + 1, kept + kept_of_chunk(density, rest))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Wire:
    """How one mix travels: a dense type, or sparse where a share of the coordinates is sent."""

    dtype: str
    density: float = 0.0
    """Of the coordinates; 0: all."""

    @property
    def name(self) -> str:
        return "topk" if self.density else self.dtype

    def part_bytes(self, elements: int) -> int:
        """Payload of what a member sends, exactly."""
        if self.density:
            return topk_bytes(elements, self.density)
        return dense_bytes(self.dtype, elements)

    def mean_bytes_max(self, elements: int, members: int) -> int:
        """Payload of what the reducer sends back, at most (dense: exactly)."""
        if self.density:
            return sparse_bytes_max(elements, self.density, members)
        return dense_bytes(self.dtype, elements)

    def elements_max(self, members: int) -> int:
        """Coordinates of the largest part whose payloads are not too large."""
        return _elements_max(self, members, PART_ELEMENTS_MAX, PART_BYTES_MAX)


@functools.lru_cache(maxsize=256)
def _elements_max(wire: Wire, members: int, most: int, bytes_max: int) -> int:
    """Asked for at every part that comes or goes, and the same all through a round."""
    elements = most
    while wire.mean_bytes_max(elements, members) > bytes_max:
        elements -= CHUNK
    return elements


@dataclass(frozen=True, slots=True)
class PartLayout:
    """The parts of one vector among `members`. Equal for all of them."""

    elements: int
    wire: Wire
    members: int

    @property
    def part_elements(self) -> int:
        """Of every part but the last: a share of the vector, in as many parts as it takes."""
        share = -(-self.elements // self.members)
        parts = -(-share // self.wire.elements_max(self.members))
        piece = -(-share // parts) if parts else 1
        return -(-piece // BLOCK) * BLOCK if piece > BLOCK else max(1, piece)

    @property
    def count(self) -> int:
        return -(-self.elements // self.part_elements) if self.elements else 0

    def first(self, part: int) -> int:
        return part * self.part_elements

    def size(self, part: int) -> int:
        """Coordinates of a part."""
        return min(self.part_elements, self.elements - self.first(part))

    def part_bytes(self, part: int) -> int:
        return self.wire.part_bytes(self.size(part))

    def mean_bytes_max(self, part: int) -> int:
        return self.wire.mean_bytes_max(self.size(part), self.members)

    def primary(self, part: int, round_number: int) -> int:
        """Which member reduces a part; it rotates, so that nobody reduces the same for ever."""
        return (part + round_number) % self.members
