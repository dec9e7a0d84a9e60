"""Slots of memory that the daemon and its compute worker both see, and that cannot leak.

Tensors are large, so they never travel through a pipe: the network reads them into a slot, the
worker computes from that slot into another, the network sends from there. One pool is one file
without a name (memfd_create, or an unlinked temporary file), inherited by the worker as a
descriptor and mapped by both. Without a name nothing can stay behind: when the last of the two
processes is gone, however it went, the kernel takes the memory back.

Rules
  * A slot is held by whoever acquired it; `retain` adds a holder (a send in flight, a job), and
    `release` takes one away. The last release frees it.
  * A `BufferRef` carries the slot's generation, raised at every free: a ref that outlived its slot
    is an assertion, never somebody else's bytes. All errors here are our own bugs.
  * Size classes do not borrow from each other: a flood of chunks cannot starve activations.
  * Pages come into being when first touched, and go back to the system when too many free bytes
    have been touched (`idle_bytes_max`); slots used again and again keep theirs.

One thread only (the trio thread), so there are no locks. The worker sees `MappedSlots`: views by
number and size, no ownership.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarmd.protocols.jobs import BufferRef

SlotClasses = Sequence[tuple[int, int]]
"""(slot_bytes, count) of each size class."""

IDLE_BYTES_MAX = 64 << 20
"""Touched bytes that free slots may keep: enough that a busy pipeline never faults its pages again,
small beside what torch holds. A fault costs about 0.25 ms a MiB."""


@dataclass(frozen=True, slots=True)
class SlotClassStatistics:
    slot_bytes: int
    count: int
    free: int
    free_min: int
    """The fewest that were ever free: 0 means somebody had to wait or was refused."""


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """Frozen and cheap, for status."""

    classes: tuple[SlotClassStatistics, ...]
    held: int
    idle_bytes: int
    acquired_total: int
    refused_total: int


def create_shared_file(name: str, size_bytes: int) -> int:
    """A descriptor of a sparse file that has no name. It is inherited only where it is passed."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix=f"{name}-")
        os.unlink(path)
    os.ftruncate(fd, size_bytes)
    return fd


class SlotLayout:
    """Where each slot lies. Slots are numbered through all classes, smallest class first."""

    def __init__(self, classes: SlotClasses) -> None:
        assert classes, "a pool has at least one size class"
        self.classes = tuple(sorted((_page_multiple(size), count) for size, count in classes))
        sizes = [size for size, _ in self.classes]
        assert len(set(sizes)) == len(sizes), "two size classes are the same after rounding"
        self.class_of: list[int] = []
        self.offset_bytes: list[int] = []
        offset = 0
        for number, (slot_bytes, count) in enumerate(self.classes):
            assert slot_bytes > 0, "a slot has a size"
            assert count > 0, "a class has slots"
            for _ in range(count):
                self.class_of.append(number)
                self.offset_bytes.append(offset)
                offset += slot_bytes
        self.total_bytes = offset

    def slot_bytes(self, slot: int) -> int:
        return self.classes[self.class_of[slot]][0]

    def class_for(self, size_bytes: int) -> int | None:
        """The smallest class that fits."""
        assert size_bytes >= 0, "a size is not negative"
        for number, (slot_bytes, _) in enumerate(self.classes):
            if size_bytes <= slot_bytes:
                return number
        return None


class MappedSlots:
    """The worker's side: the same bytes, by slot number. It owns nothing."""

    def __init__(self, fd: int, classes: SlotClasses) -> None:
        self._layout = SlotLayout(classes)
        self._map = mmap.mmap(fd, self._layout.total_bytes)

    def view(self, slot: int, size_bytes: int) -> memoryview:
        """Writable, `size_bytes` long, from the slot's start."""
        assert 0 <= slot < len(self._layout.class_of), f"no slot {slot}"
        assert 0 <= size_bytes <= self._layout.slot_bytes(slot), f"slot {slot} is smaller"
        start = self._layout.offset_bytes[slot]
        return memoryview(self._map)[start : start + size_bytes]

    def slot_bytes(self, slot: int) -> int:
        return self._layout.slot_bytes(slot)


class SlotPool:
    """The daemon's side. It is a `PayloadStore` of the transport.

    classes: (slot_bytes, count), sizes rounded up to whole pages.
    output_reserve: slots of each class that only `acquire_output` may take. Arrivals can then never
    fill the pool so far that the worker has nowhere to write, and so never finishes what arrived.
    """

    def __init__(
        self,
        classes: SlotClasses,
        *,
        output_reserve: int = 0,
        idle_bytes_max: int = IDLE_BYTES_MAX,
    ) -> None:
        self._layout = SlotLayout(classes)
        self.fd = create_shared_file("swarmd-slots", self._layout.total_bytes)
        self._map = mmap.mmap(self.fd, self._layout.total_bytes)
        self._output_reserve = output_reserve
        self._idle_bytes_max = idle_bytes_max
        slot_count = len(self._layout.class_of)
        self._holders = [0] * slot_count
        self._generation = [0] * slot_count
        self._touched_bytes = [0] * slot_count
        self._idle_bytes = 0
        self._free: list[list[int]] = [[] for _ in self._layout.classes]
        for slot in reversed(range(slot_count)):
            self._free[self._layout.class_of[slot]].append(slot)
        self._free_min = [len(free) for free in self._free]
        self._acquired_total = 0
        self._refused_total = 0
        self._freed_listeners: list[Callable[[], None]] = []
        self._closed = False

    # ------------------------------------------------------------------------------ PayloadStore

    def acquire(self, size_bytes: int) -> BufferRef | None:
        """A slot of the smallest class that fits, held once. None: none is free, or none fits."""
        return self._acquire(size_bytes, self._output_reserve)

    def acquire_output(self, size_bytes: int) -> BufferRef | None:
        """The same for what the own worker will write: may take the reserve too."""
        return self._acquire(size_bytes, 0)

    def view(self, ref: BufferRef) -> memoryview:
        """The ref's bytes, writable. Valid while the slot is held."""
        self._check(ref)
        start = self._layout.offset_bytes[ref.slot]
        return memoryview(self._map)[start : start + ref.size_bytes]

    def retain(self, ref: BufferRef) -> None:
        """One more holder."""
        self._check(ref)
        self._holders[ref.slot] += 1

    def release(self, ref: BufferRef) -> None:
        """One holder less; the last one frees the slot, and the ref is stale from then on."""
        self._check(ref)
        self._holders[ref.slot] -= 1
        if self._holders[ref.slot] > 0:
            return
        self._generation[ref.slot] += 1
        self._free[self._layout.class_of[ref.slot]].append(ref.slot)
        self._keep_or_give_back(ref.slot)
        for listener in tuple(self._freed_listeners):
            listener()

    # ------------------------------------------------------------------------------- worker's side

    @property
    def classes(self) -> tuple[tuple[int, int], ...]:
        """What a `MappedSlots` over the same descriptor needs."""
        return self._layout.classes

    @property
    def slot_bytes_max(self) -> int:
        """The largest payload that fits."""
        return self._layout.classes[-1][0]

    def whole_view(self, ref: BufferRef) -> memoryview:
        """All of the ref's slot, whatever part of it the ref names."""
        self._check(ref)
        start = self._layout.offset_bytes[ref.slot]
        return memoryview(self._map)[start : start + self._layout.slot_bytes(ref.slot)]

    def resized(self, ref: BufferRef, size_bytes: int) -> BufferRef:
        """The same slot, the same hold, another size: what the worker really wrote."""
        self._check(ref)
        assert 0 <= size_bytes <= self._layout.slot_bytes(ref.slot), "more than the slot holds"
        self._touched_bytes[ref.slot] = max(self._touched_bytes[ref.slot], size_bytes)
        return BufferRef(ref.slot, ref.generation, size_bytes)

    def call_when_freed(self, listener: Callable[[], None]) -> None:
        """`listener` is called, in the releasing caller, whenever a slot became free."""
        self._freed_listeners.append(listener)

    def stop_calling(self, listener: Callable[[], None]) -> None:
        self._freed_listeners.remove(listener)

    # -------------------------------------------------------------------------------------- others

    @property
    def held_count(self) -> int:
        """Slots that somebody holds. A test's last assertion: 0."""
        return sum(1 for holders in self._holders if holders)

    def statistics(self) -> SlotStatistics:
        return SlotStatistics(
            classes=tuple(
                SlotClassStatistics(slot_bytes, count, len(self._free[number]), free_min)
                for number, ((slot_bytes, count), free_min) in enumerate(
                    zip(self._layout.classes, self._free_min, strict=True)
                )
            ),
            held=self.held_count,
            idle_bytes=self._idle_bytes,
            acquired_total=self._acquired_total,
            refused_total=self._refused_total,
        )

    def close(self) -> None:
        """Give the memory up. Views that somebody still has stay readable until they are gone."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        try:
            self._map.close()
        except BufferError:
            pass  # a view is alive; the mapping ends with it

    # ---------------------------------------------------------------------------------------- inner

    def _acquire(self, size_bytes: int, keep_free: int) -> BufferRef | None:
        number = self._layout.class_for(size_bytes)
        if number is None or len(self._free[number]) <= keep_free:
            self._refused_total += 1
            return None
        free = self._free[number]
        slot = free.pop()  # the last one freed: its pages are there and warm
        self._free_min[number] = min(self._free_min[number], len(free))
        self._idle_bytes -= self._touched_bytes[slot]
        self._touched_bytes[slot] = max(self._touched_bytes[slot], size_bytes)
        self._holders[slot] = 1
        self._acquired_total += 1
        return BufferRef(slot, self._generation[slot], size_bytes)

    def _check(self, ref: BufferRef) -> None:
        assert not self._closed, "the pool is closed"
        assert 0 <= ref.slot < len(self._holders), f"no slot {ref.slot}"
        assert ref.generation == self._generation[ref.slot], f"stale {ref}"
        assert self._holders[ref.slot] > 0, f"nobody holds {ref}"
        assert 0 <= ref.size_bytes <= self._layout.slot_bytes(ref.slot), f"{ref} is too large"

    def _keep_or_give_back(self, slot: int) -> None:
        touched = self._touched_bytes[slot]
        if self._idle_bytes + touched > self._idle_bytes_max and self._give_back(slot):
            self._touched_bytes[slot] = 0
            return
        self._idle_bytes += touched

    def _give_back(self, slot: int) -> bool:
        """Return the slot's pages to the system, for both mappings. False where it cannot."""
        advice = getattr(mmap, "MADV_REMOVE", None)
        if advice is None:
            return False
        start, length = self._layout.offset_bytes[slot], self._layout.slot_bytes(slot)
        try:
            self._map.madvise(advice, start, length)
        except OSError:  # a kernel or a file system without holes: the pages just stay
            return False
        return True


def _page_multiple(size_bytes: int) -> int:
    page = mmap.PAGESIZE
    return -(-size_bytes // page) * page
