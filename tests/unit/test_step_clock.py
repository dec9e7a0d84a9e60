"""The clock on the micro-batches: recipe O2 of algorithms.md 3.6 and each rule by itself."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols.ids import MicroBatchId, RunId
from swarmd.protocols.run_shape import RunShape
from swarmd.protocols.step_clock import StepClock

O2_TAGS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


class Replica:
    """Runs micro-batches as a peer would and writes down what its optimiser sees."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.steps: list[int] = []
        self.log: list[str] = []

    def arrive(self, *tags: int) -> None:
        for tag in tags:
            self.clock.reached(tag)
            self._take(self.clock.due())

    def accumulate(self, *tags: int) -> None:
        """Gradients that come back, each ending its micro-batch."""
        for tag in tags:
            self._take(self.clock.before(tag))
            self.clock.accumulated(tag)
            self.log.append(f"g{tag}")
            self.clock.left(tag)
            self._take(self.clock.due())

    def run_one_at_a_time(self, *tags: int) -> None:
        for tag in tags:
            self.arrive(tag)
            self.accumulate(tag)

    def finish(self, next_step: int) -> None:
        self._take(self.clock.finish(next_step))

    def _take(self, step: int | None) -> None:
        if step is not None:
            self.steps.append(step)
            self.log.append(f"s{step}")


def test_o2_tags_of_twelve_micro_batches_in_three_steps() -> None:
    run = RunShape(
        run_id=RunId("0" * 64),
        stages=1,
        inner_steps=3,
        total_steps=6,
        micro_batches_per_step=4,
        micro_batch_samples=1,
        sequence_tokens=8,
        held_out_micro_batches=0,
        width=8,
    )
    assert [run.step_of(MicroBatchId(0, index)) for index in range(12)] == O2_TAGS
    assert run.step_of(MicroBatchId(1, 0)) == 3


@pytest.mark.parametrize("share", [9, 6])
def test_o2_replicas_with_unequal_shares_take_equal_steps(share: int) -> None:
    fast, slow = Replica(), Replica()
    taken = 0
    for index, tag in enumerate(O2_TAGS):
        chosen = fast if taken * 12 <= index * share else slow
        taken += chosen is fast
        chosen.run_one_at_a_time(tag)
    assert taken == share
    fast.finish(3)
    slow.finish(3)
    assert fast.steps == slow.steps == [0, 1, 2]


def test_o2_a_replica_that_sees_tags_0_and_2_takes_two_steps_each_at_its_tag() -> None:
    replica = Replica()
    replica.run_one_at_a_time(0, 0, 2, 2)
    replica.finish(3)
    assert replica.log == ["g0", "g0", "s0", "g2", "g2", "s2"]


def test_one_micro_batch_in_flight_is_the_plain_loop() -> None:
    replica = Replica()
    replica.run_one_at_a_time(*O2_TAGS)
    replica.finish(3)
    assert replica.log == [
        *["g0"] * 4,
        "s0",
        *["g1"] * 4,
        "s1",
        *["g2"] * 4,
        "s2",
    ]


def test_step_waits_while_an_earlier_micro_batch_is_held() -> None:
    replica = Replica()
    replica.arrive(0, 0)
    replica.accumulate(0)
    replica.arrive(1)
    assert replica.steps == []
    replica.accumulate(0)
    assert replica.log == ["g0", "g0", "s0"]


def test_step_comes_at_the_latest_before_a_later_gradient_is_accumulated() -> None:
    replica = Replica()
    replica.arrive(0, 0, 1)
    replica.accumulate(0, 1, 0)
    replica.finish(2)
    assert replica.log == ["g0", "s0", "g1", "g0", "s1"]


def test_late_micro_batch_counts_into_the_next_step_taken() -> None:
    replica = Replica()
    replica.run_one_at_a_time(0, 1)
    replica.arrive(0)
    replica.accumulate(0)
    replica.run_one_at_a_time(2)
    replica.finish(3)
    assert replica.log == ["g0", "s0", "g1", "g0", "s1", "g2", "s2"]


def test_micro_batch_late_by_a_round_counts_into_the_next_rounds_first_step() -> None:
    replica = Replica()
    replica.arrive(2, 2)
    replica.accumulate(2)
    replica.finish(3)
    replica.accumulate(2)
    replica.run_one_at_a_time(3, 4)
    replica.finish(6)
    assert replica.log == ["g2", "s2", "g2", "g3", "s3", "g4", "s4"]


def test_step_of_a_round_that_has_ended_is_never_taken_afterwards() -> None:
    replica = Replica()
    replica.arrive(0, 1)
    replica.accumulate(0)
    replica.finish(3)
    replica.accumulate(1)
    replica.run_one_at_a_time(4)
    replica.finish(6)
    assert replica.log == ["g0", "s0", "g1", "s3", "g4", "s4"]


def test_nothing_accumulated_is_no_step() -> None:
    replica = Replica()
    replica.arrive(0)
    replica.clock.left(0)
    replica.arrive(5)
    replica.finish(8)
    assert replica.steps == []


def test_a_failed_accumulation_is_no_step_either() -> None:
    replica = Replica()
    replica.arrive(0)
    replica.clock.revoked(replica.clock.accumulated(0))
    replica.finish(1)
    assert replica.steps == []


def test_lost_worker_takes_its_pending_gradients_along() -> None:
    replica = Replica()
    replica.arrive(0)
    replica.accumulate(0)
    replica.clock.lost()
    replica.finish(1)
    assert replica.steps == []


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 30))
def test_any_order_gives_rising_steps_that_cover_every_gradient_once(
    seed: int, in_flight: int, count: int
) -> None:
    rng = random.Random(seed)
    replica = Replica()
    waiting = sorted(rng.randrange(6) for _ in range(count))
    held: list[int] = []
    while waiting or held:
        if waiting and len(held) < in_flight and (not held or rng.random() < 0.6):
            held.append(waiting.pop(0))
            replica.arrive(held[-1])
        else:
            replica.accumulate(held.pop(rng.randrange(len(held))))
    replica.finish(6)
    assert replica.steps == sorted(set(replica.steps))
    assert sum(entry.startswith("g") for entry in replica.log) == count
    _assert_no_gradient_is_stepped_before_its_tag(replica.log)


def _assert_no_gradient_is_stepped_before_its_tag(log: list[str]) -> None:
    pending: list[int] = []
    for entry in log:
        if entry.startswith("g"):
            pending.append(int(entry[1:]))
        else:
            assert pending, f"an empty step in {log}"
            assert max(pending) <= int(entry[1:]), log
            pending = []
    assert not pending
