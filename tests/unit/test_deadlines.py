"""Adaptive deadlines: recipe R7 of algorithms.md 4.6, and what happens when they are missed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols.deadlines import AdaptiveDeadline

R7_SAMPLES_S = (1.0, 1.1, 0.9, 1.0, 1.2)


def deadline_after(*elapsed_s: float, lo_s: float = 0.1, hi_s: float = 30.0) -> AdaptiveDeadline:
    deadline = AdaptiveDeadline(lo_s, hi_s)
    for value in elapsed_s:
        deadline.observe(value)
    return deadline


def test_r7_deadline_is_the_median_and_six_median_deviations() -> None:
    deadline = deadline_after(*R7_SAMPLES_S)
    assert deadline.typical_s() == pytest.approx(1.0)
    assert deadline.seconds() == pytest.approx(1.6)


def test_r7_one_outlier_of_a_minute_hardly_moves_it() -> None:
    assert deadline_after(*R7_SAMPLES_S, 60.0).seconds() == pytest.approx(1.65)


def test_deadline_is_the_highest_until_five_exchanges_are_known() -> None:
    assert deadline_after(*R7_SAMPLES_S[:4]).seconds() == 30.0
    assert deadline_after(*R7_SAMPLES_S[:4]).typical_s() is None


def test_deadline_grows_with_the_bytes() -> None:
    deadline = AdaptiveDeadline(0.1, 30.0)
    for value in R7_SAMPLES_S:
        deadline.observe(value, size_bytes=1000)
    assert deadline.seconds(3000) == pytest.approx(4.8)


def test_only_the_last_32_exchanges_count() -> None:
    deadline = deadline_after(*[5.0] * 100, *[0.5] * 32)
    assert deadline.seconds() == pytest.approx(0.5)


def test_each_miss_doubles_the_deadline_up_to_the_highest() -> None:
    deadline = deadline_after(*R7_SAMPLES_S)
    waits_s = []
    for sent_s in range(6):
        deadline.missed(sent_s, sent_s + 1)
        waits_s.append(deadline.seconds())
    assert waits_s == pytest.approx([3.2, 6.4, 12.8, 25.6, 30.0, 30.0])


def test_what_was_sent_before_the_last_miss_is_no_further_miss() -> None:
    deadline = deadline_after(*R7_SAMPLES_S)
    for sent_s in (0.0, 0.1, 0.2, 0.3):
        deadline.missed(sent_s, sent_s + 1.6)
    assert deadline.seconds() == pytest.approx(3.2)


def test_an_answer_in_plain_time_ends_the_patience_and_a_late_one_does_not() -> None:
    deadline = deadline_after(*R7_SAMPLES_S)
    deadline.missed(0.0, 1.6)
    deadline.observe(3.0)
    assert deadline.seconds() > 3.0
    deadline.observe(1.0)
    assert deadline.seconds() < 2.0


def test_a_peer_that_became_five_times_slower_is_believed_in_the_end() -> None:
    deadline = deadline_after(*[1.0] * 32)
    misses = 0
    for index in range(64):
        if deadline.seconds() < 5.0:
            deadline.missed(10.0 * index, 10.0 * index + 5.0)
            misses += 1
        else:
            deadline.observe(5.0)
    assert misses <= 4
    deadline.observe(5.0)
    assert deadline.typical_s() == pytest.approx(5.0)
    assert deadline.seconds() >= 5.0


@given(
    st.lists(st.floats(0.0, 1e4), max_size=80),
    st.integers(0, 10),
    st.integers(0, 1 << 28),
)
def test_deadline_stays_within_its_bounds(
    elapsed_s: list[float], misses: int, size_bytes: int
) -> None:
    deadline = deadline_after(*elapsed_s, lo_s=0.5, hi_s=20.0)
    for sent_s in range(misses):
        deadline.missed(sent_s, sent_s + 1)
    assert 0.5 <= deadline.seconds(size_bytes) <= 20.0
