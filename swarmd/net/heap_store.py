"""Room for payloads in ordinary memory, where the daemon has shared memory: tests, measurements."""

from __future__ import annotations

from swarmd.net.underlay import Buffer
from swarmd.protocols.jobs import BufferRef


class HeapStore:
    """A PayloadStore in ordinary memory, for tests and measurements.

    `held` counts slots that somebody still owns: a test that ends with any has found a leak.
    """

    def __init__(self, bytes_max: int = 1 << 30) -> None:
        self._bytes_max = bytes_max
        self._slots: dict[int, tuple[bytearray, int]] = {}
        self._spare: dict[int, bytearray] = {}
        self._next_slot = 0
        self._used_bytes = 0

    @property
    def held(self) -> int:
        return len(self._slots)

    def put(self, data: Buffer) -> BufferRef:
        """A new slot with these bytes. Raises MemoryError beyond the store's size."""
        ref = self.acquire(len(data))
        if ref is None:
            raise MemoryError(f"{len(data)} bytes")
        self.view(ref)[:] = data
        return ref

    def acquire(self, size_bytes: int) -> BufferRef | None:
        if self._used_bytes + size_bytes > self._bytes_max:
            return None
        self._next_slot += 1
        self._used_bytes += size_bytes
        data = self._spare.pop(size_bytes, None)
        self._slots[self._next_slot] = (bytearray(size_bytes) if data is None else data, 1)
        return BufferRef(self._next_slot, 0, size_bytes)

    def view(self, ref: BufferRef) -> memoryview:
        return memoryview(self._slots[ref.slot][0])

    def retain(self, ref: BufferRef) -> None:
        data, owners = self._slots[ref.slot]
        self._slots[ref.slot] = (data, owners + 1)

    def release(self, ref: BufferRef) -> None:
        data, owners = self._slots.pop(ref.slot)
        if owners > 1:
            self._slots[ref.slot] = (data, owners - 1)
        else:
            self._used_bytes -= len(data)
            # Fresh pages cost more than the copy into them; one of a size is kept.
            self._spare[len(data)] = data
