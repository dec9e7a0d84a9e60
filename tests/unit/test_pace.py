"""An ETA rests on what this peer saw rise, not on how far the swarm was when it came."""

from __future__ import annotations

from swarmd.protocols.pace import MARKS, WINDOW_S, Pace


def test_what_was_done_before_the_first_look_makes_nothing_faster() -> None:
    pace = Pace()
    pace.note(900, 0.0)
    assert pace.takes_s(100, 0.0) is None, "nothing has risen yet"
    pace.note(910, 20.0)
    assert pace.takes_s(90, 20.0) == 180.0


def test_a_few_seconds_say_nothing_and_nothing_more_takes_no_time() -> None:
    pace = Pace()
    pace.note(0, 0.0)
    pace.note(50, 1.0)
    assert pace.takes_s(10, 1.0) is None
    assert pace.takes_s(0, 1.0) == 0.0


def test_a_pause_between_two_rounds_moves_an_eta_little_and_a_long_stop_lengthens_it() -> None:
    pace = Pace()
    for second in range(100):
        pace.note(second, float(second))
    assert pace.takes_s(100, 99.0) == 100.0
    assert 100.0 < (pace.takes_s(100, 104.0) or 0.0) < 106.0
    assert pace.takes_s(100, 198.0) == 200.0


def test_the_window_forgets_and_is_bounded() -> None:
    pace = Pace()
    now_s = 0.0
    for count in range(2000):  # slow at first, then ten times as fast
        now_s += 10.0 if count < 1000 else 1.0
        pace.note(count, now_s)
    assert len(pace._marks) <= MARKS
    assert abs((pace.takes_s(600, now_s) or 0.0) - WINDOW_S) < 0.05 * WINDOW_S


def test_a_count_that_fell_begins_anew() -> None:
    pace = Pace()
    pace.note(50, 0.0)
    pace.note(10, 10.0)
    pace.note(20, 20.0)
    assert pace.takes_s(10, 20.0) == 10.0
