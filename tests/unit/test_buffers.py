"""The slot pool: nothing leaks, nothing is read through a stale ref, memory goes back."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.buffers import MappedSlots, SlotPool
from swarmd.net.transport import PayloadStore
from swarmd.protocols.jobs import BufferRef

PAGE = mmap.PAGESIZE


@pytest.fixture
def pool():
    pool = SlotPool([(PAGE, 4), (4 * PAGE, 2)])
    yield pool
    pool.close()


def acquire(pool: SlotPool, size_bytes: int) -> BufferRef:
    ref = pool.acquire(size_bytes)
    assert ref is not None
    return ref


def free_counts(pool: SlotPool) -> list[int]:
    return [one.free for one in pool.statistics().classes]


def test_the_pool_is_a_payload_store(pool: SlotPool):
    store: PayloadStore = pool
    ref = store.acquire(10)
    assert ref is not None
    assert len(store.view(ref)) == 10
    store.release(ref)


def test_the_smallest_class_that_fits_is_taken(pool: SlotPool):
    acquire(pool, PAGE)
    acquire(pool, PAGE + 1)
    assert free_counts(pool) == [3, 1]


def test_an_exhausted_class_does_not_borrow_from_a_larger_one(pool: SlotPool):
    for _ in range(4):
        acquire(pool, 1)
    assert pool.acquire(1) is None
    assert free_counts(pool) == [0, 2]
    assert pool.statistics().refused_total == 1


def test_what_fits_nowhere_is_refused(pool: SlotPool):
    assert pool.acquire(4 * PAGE + 1) is None


def test_a_slot_is_free_after_its_last_holder(pool: SlotPool):
    ref = acquire(pool, 1)
    pool.retain(ref)
    pool.release(ref)
    assert pool.held_count == 1
    pool.release(ref)
    assert pool.held_count == 0


def test_a_stale_ref_is_an_assertion_even_when_its_slot_is_in_use_again(pool: SlotPool):
    old = acquire(pool, 1)
    pool.release(old)
    new = acquire(pool, 1)
    assert new.slot == old.slot
    for use in (pool.view, pool.retain, pool.release):
        with pytest.raises(AssertionError, match="stale"):
            use(old)
    assert pool.held_count == 1


def test_a_made_up_ref_is_an_assertion(pool: SlotPool):
    for ref in (BufferRef(99, 0, 1), BufferRef(0, 0, 1), BufferRef(-1, 0, 1)):
        with pytest.raises(AssertionError):
            pool.view(ref)


def test_arrivals_leave_the_reserve_to_outputs():
    pool = SlotPool([(PAGE, 3)], output_reserve=2)
    acquire(pool, 1)
    assert pool.acquire(1) is None
    assert pool.acquire_output(1) is not None
    assert pool.acquire_output(1) is not None
    assert pool.acquire_output(1) is None
    pool.close()


def test_both_mappings_see_the_same_bytes(pool: SlotPool):
    mapped = MappedSlots(pool.fd, pool.classes)
    refs = [acquire(pool, PAGE) for _ in range(4)] + [acquire(pool, 4 * PAGE) for _ in range(2)]
    for number, ref in enumerate(refs):
        pool.view(ref)[:] = bytes([number + 1]) * ref.size_bytes
    for number, ref in enumerate(refs):
        assert bytes(mapped.view(ref.slot, ref.size_bytes)) == bytes([number + 1]) * ref.size_bytes
    mapped.view(refs[0].slot, 2)[:] = b"ok"
    assert bytes(pool.view(refs[0])[:3]) == b"ok\x01"


def test_a_mapped_view_cannot_reach_into_the_next_slot(pool: SlotPool):
    mapped = MappedSlots(pool.fd, pool.classes)
    with pytest.raises(AssertionError, match="smaller"):
        mapped.view(0, PAGE + 1)


def test_resized_keeps_the_hold(pool: SlotPool):
    ref = acquire(pool, 4 * PAGE)
    small = pool.resized(ref, 7)
    assert len(pool.view(small)) == 7
    pool.release(small)
    assert pool.held_count == 0


def test_listeners_hear_of_every_freed_slot(pool: SlotPool):
    heard = []

    def listener() -> None:
        heard.append(pool.held_count)

    pool.call_when_freed(listener)
    ref = acquire(pool, 1)
    pool.retain(ref)
    pool.release(ref)
    assert heard == []
    pool.release(ref)
    pool.stop_calling(listener)
    pool.release(acquire(pool, 1))
    assert heard == [0]


def test_untouched_slots_take_no_memory_and_idle_ones_give_it_back():
    size = 1 << 20
    pool = SlotPool([(size, 8)], idle_bytes_max=2 * size)
    assert os.fstat(pool.fd).st_blocks == 0
    refs = [acquire(pool, size) for _ in range(6)]
    for ref in refs:
        pool.view(ref)[:] = b"x" * size
    assert os.fstat(pool.fd).st_blocks * 512 == 6 * size
    for ref in refs:
        pool.release(ref)
    assert pool.statistics().idle_bytes == 2 * size
    if hasattr(mmap, "MADV_REMOVE"):
        assert os.fstat(pool.fd).st_blocks * 512 == 2 * size
    again = [acquire(pool, size) for _ in range(6)]
    assert bytes(pool.view(again[0])[:1]) in (b"x", b"\0")
    assert pool.statistics().idle_bytes == 0
    pool.close()


def test_the_file_has_no_name_and_is_not_inherited_unasked(pool: SlotPool):
    assert os.fstat(pool.fd).st_nlink == 0
    assert not os.get_inheritable(pool.fd)


def test_closing_twice_is_harmless_and_leaves_living_views_readable():
    pool = SlotPool([(PAGE, 1)])
    view = pool.view(acquire(pool, 2))
    view[:] = b"hi"
    pool.close()
    pool.close()
    assert bytes(view) == b"hi"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("acquire retain release".split()), st.integers(0, 30))))
def test_any_order_of_holds_conserves_slots(actions):
    pool = SlotPool([(PAGE, 3), (2 * PAGE, 2)], idle_bytes_max=PAGE)
    holds: list[BufferRef] = []
    for action, number in actions:
        if action == "acquire":
            ref = pool.acquire(number * 300)
            holds.extend([ref] if ref else [])
        elif holds:
            ref = holds[number % len(holds)]
            if action == "retain":
                pool.retain(ref)
                holds.append(ref)
            else:
                pool.release(holds.pop(number % len(holds)))
        held = {ref.slot for ref in holds}
        assert pool.held_count == len(held)
        assert sum(free_counts(pool)) == 5 - len(held)
    for ref in holds:
        pool.release(ref)
    assert free_counts(pool) == [3, 2]
    pool.close()
