"""The slots in which tensors lie, without the tensors: who holds what, and whether all is returned.

The counterpart of swarmd/buffers.py. A content is a small value that stands for the bytes (what it
is, whether it is spoilt), so that machines and checkers can tell what went where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmd.protocols.jobs import BufferRef


class SlotMisuse(AssertionError):
    """A machine used a slot that it does not hold."""


@dataclass(slots=True)
class _Slot:
    generation: int
    holds: int
    size_bytes: int
    content: Any


class SimSlots:
    """One peer's slots."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._slots: dict[int, _Slot] = {}
        self._free: list[int] = []
        self._next = 0
        self._generation = 0
        self.used_bytes = 0
        self.used_bytes_max = 0

    @property
    def held(self) -> int:
        """Slots in use."""
        return len(self._slots)

    def acquire(self, size_bytes: int, content: Any) -> BufferRef | None:
        """A slot held once, or None if there is no room."""
        if self.used_bytes + size_bytes > self._bytes_max:
            return None
        self.used_bytes += size_bytes
        self.used_bytes_max = max(self.used_bytes_max, self.used_bytes)
        number = self._free.pop() if self._free else self._next
        self._next += number == self._next
        self._generation += 1
        self._slots[number] = _Slot(self._generation, 1, size_bytes, content)
        return BufferRef(number, self._generation, size_bytes)

    def content(self, ref: BufferRef) -> Any:
        return self._slot(ref).content

    def retain(self, ref: BufferRef) -> None:
        self._slot(ref).holds += 1

    def release(self, ref: BufferRef) -> None:
        slot = self._slot(ref)
        slot.holds -= 1
        if slot.holds == 0:
            del self._slots[ref.slot]
            self._free.append(ref.slot)
            self.used_bytes -= slot.size_bytes

    def _slot(self, ref: BufferRef) -> _Slot:
        slot = self._slots.get(ref.slot)
        if slot is None or slot.generation != ref.generation:
            raise SlotMisuse(f"slot {ref.slot} of generation {ref.generation} is not held")
        return slot
