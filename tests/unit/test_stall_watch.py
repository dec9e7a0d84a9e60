"""A standstill is noticed by `stall_after_s`, has a beginning, and names what is missing."""

from __future__ import annotations

import pytest

from swarmd.protocols.coverage import Coverage
from swarmd.protocols.explain import Situation, choose_reason
from swarmd.protocols.pipeline_statistics import Waiting
from swarmd.protocols.reasons import Reason
from swarmd.protocols.stall_watch import StallWatch, what_is_missing


def look(watch: StallWatch, done: int, now_s: float, **more: object) -> float | None:
    values: dict[str, object] = {"may_move": True, "round_s": None, **more}
    return watch.look((done,), now_s=now_s, **values)  # type: ignore[arg-type]


def test_standstill_is_a_stall_from_the_last_progress_on() -> None:
    watch = StallWatch(30.0, now_s=100.0)
    assert look(watch, 1, 105.0) is None
    assert look(watch, 1, 134.9) is None
    assert look(watch, 1, 135.0) == 105.0
    assert look(watch, 1, 200.0) == 105.0


def test_any_progress_ends_it() -> None:
    watch = StallWatch(30.0, now_s=0.0)
    look(watch, 1, 0.0)
    assert look(watch, 1, 40.0) == 0.0
    assert look(watch, 2, 40.5) is None
    assert look(watch, 2, 60.0) is None


def test_who_may_not_move_does_not_stall_and_gets_the_whole_patience_afterwards() -> None:
    watch = StallWatch(30.0, now_s=0.0)
    assert look(watch, 1, 50.0, may_move=False) is None
    assert look(watch, 1, 79.0) is None
    assert look(watch, 1, 80.0) == 50.0


@pytest.mark.parametrize(
    ("round_s", "after_s"), [(None, 30.0), (2.0, 30.0), (4.9, 30.0), (20.0, 100.0), (100.0, 500.0)]
)
def test_patience_is_five_usual_rounds_and_no_less_than_stall_after_s(
    round_s: float | None, after_s: float
) -> None:
    assert StallWatch(30.0, now_s=0.0).after_s(round_s) == after_s


def test_quick_rounds_are_waited_for_no_longer_than_a_minute() -> None:
    assert StallWatch(90.0, now_s=0.0).after_s(1.0) == 60.0


def coverage(*counts: int) -> Coverage:
    """Of a map where only emptiness matters."""
    active = tuple((object(),) * count for count in counts)
    return Coverage(active=active, coming=(), active_count=sum(counts), observers=())  # type: ignore[arg-type]


def test_missing_stage_or_peer_is_named() -> None:
    assert what_is_missing(coverage(1, 0), None) == "stage 1 has no peer"
    subject = {"stage": 1, "peer": "12D3KooWabcd"}
    waiting = Waiting("waiting_for_gradient", subject, "nothing back from stage 1")
    assert "nothing back from stage 1, asked of peer abcd" == what_is_missing(
        coverage(1, 1), waiting
    )
    assert "none of them gets on" in what_is_missing(coverage(1, 1), None)


def test_lost_state_is_named_rather_than_the_stall_that_it_causes() -> None:
    lost = Reason(code="run_state_lost", text="nobody holds the state of stage 1", stage=1)
    facts = Situation(present=2, was_with_others=True, stalled_since_s=1.0, stall_text="x")
    assert choose_reason(facts).code == "stalled"
    facts = Situation(present=2, was_with_others=True, stalled_since_s=1.0, syncing=lost)
    assert choose_reason(facts).code == "run_state_lost"
