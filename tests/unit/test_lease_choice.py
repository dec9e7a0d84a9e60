"""The rule by which heads take micro-batches, as a table."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.lease_choice import Choice, RoundView, choose, place_in_line, share_of
from swarmd.protocols.lease_limits import local
from swarmd.protocols.lease_taker import LeaseTaker

HEADS = tuple(PeerId(name) for name in ("a", "b", "c"))
END = 30


def view(own: str = "a", free=range(END), **changes) -> RoundView:
    values = {
        "end": END,
        "heads": HEADS,
        "own": PeerId(own),
        "free": IndexSet.of(free),
        "returned": EMPTY,
        "stale": EMPTY,
        "window": 6,
        "turn_s": 0.5,
    }
    return RoundView(**{**values, **changes})


def never(head: PeerId, ahead: int) -> float | None:
    """Nobody's pace is known."""
    return None


def slow(head: PeerId, ahead: int) -> float | None:
    """Everybody needs ten seconds a micro-batch."""
    return 10.0 * ahead


def just_now(index: int) -> float:
    return 0.0


def for_long(index: int) -> float:
    return 100.0


@given(st.integers(1, 9), st.integers(0, 60))
def test_shares_are_disjoint_and_cover_the_round(count, end):
    heads = tuple(PeerId(f"p{number}") for number in range(count))
    shares = [list(share_of(head, heads, end)) for head in heads]
    assert sorted(index for share in shares for index in share) == list(range(end))


def test_each_takes_its_own_share_in_order():
    for own, first in (("a", 0), ("b", 1), ("c", 2)):
        assert choose(view(own), never, just_now) == Choice(first, "granted")
    assert choose(view("b", range(2, END)), never, just_now) == Choice(4, "granted")


def test_what_we_gave_back_comes_first():
    given_back = view(free=[1, 7, *range(9, END)], returned=IndexSet.of([7, 8]))
    assert choose(given_back, never, just_now) == Choice(7, "returned")


def test_without_anything_free_all_is_leased():
    assert choose(view(free=[]), slow, for_long) == Choice(None, "all_leased")


def test_ahead_of_the_others_by_more_than_the_window_we_help():
    free = [1, 2, 4, 5, *range(9, END)]
    assert choose(view(free=free), slow, for_long) == Choice(4, "stolen")
    assert choose(view(free=free, window=8), slow, for_long) == Choice(9, "granted")


def test_who_has_work_of_its_own_does_not_help_with_later_steps():
    """What a slow head will not get to for long lies far ahead; so would our next step then."""
    only_late = lambda head, ahead: 10.0 if ahead >= 2 else 0.1  # noqa: E731
    free = [1, 2, *range(9, END)]
    assert choose(view(free=free), only_late, for_long) == Choice(9, "granted")
    without_own = [index for index in free if index % 3]
    assert choose(view(free=without_own), only_late, for_long) == Choice(13, "stolen")


def test_who_can_help_nobody_runs_on():
    free = [1, 2, 4, 5, *range(9, END)]
    assert choose(view(free=free), never, for_long) == Choice(9, "granted")


def test_what_a_head_takes_next_is_left_to_it():
    choice = choose(view(free=[1, 2]), slow, for_long)
    assert (choice.index, choice.reason) == (None, "waiting_for_heads")


def test_a_quiet_heads_next_is_taken():
    choice = choose(view(free=[1, 2]), lambda head, ahead: math.inf, for_long)
    assert choice == Choice(1, "stolen")


def test_what_stands_under_a_lease_that_ran_out_is_taken():
    choice = choose(view(free=[1, 2], stale=IndexSet.of([2])), never, for_long)
    assert choice == Choice(2, "stolen")


def test_the_line_of_helpers_is_another_each_time_and_has_no_owner():
    for index in range(END):
        owner = HEADS[index % 3]
        line = {head: place_in_line(head, HEADS, index) for head in HEADS if head != owner}
        assert sorted(line.values()) == [0, 1]
    firsts = {
        next(h for h in HEADS if h != HEADS[1] and place_in_line(h, HEADS, index) == 0)
        for index in (1, 4)
    }
    assert firsts == {HEADS[0], HEADS[2]}


def test_two_who_want_to_help_do_not_take_the_same():
    free = [1, 4, 7, 10]  # all of b's
    quiet = lambda head, ahead: math.inf  # noqa: E731
    taken = {choose(view(own, free), quiet, just_now).index for own in ("a", "c")}
    assert len(taken) == 2


def test_further_back_in_the_line_one_waits_for_a_turn():
    free = [1]
    quiet = lambda head, ahead: math.inf  # noqa: E731
    behind = next(h for h in ("a", "c") if place_in_line(PeerId(h), HEADS, 1) == 1)
    waiting = choose(view(behind, free), quiet, just_now)
    assert waiting == Choice(None, "waiting_for_heads", 0.5)
    assert choose(view(behind, free), quiet, lambda index: 0.5) == Choice(1, "stolen")


@pytest.mark.parametrize(("stages", "window"), [(1, 320), (2, 2 * 16 + 5)])
def test_heads_keep_together_only_where_others_step_on_what_they_send(
    stages: int, window: int
) -> None:
    """A head that helps puts all of it into one of its own steps: four real replicas of a whole
    model took 46 steps of 60, and lost 5 % more."""
    shape = SimpleNamespace(
        stages=stages, micro_batches_per_step=16, micro_batches_of_round=lambda number: 320
    )
    watch = SimpleNamespace(heads=("a", "b"), taken_unheard=lambda now_s: 5)
    ledger = SimpleNamespace(shape=shape)
    taker = LeaseTaker(PeerId("a"), ledger, None, watch, None, local())  # type: ignore[arg-type]
    assert taker._window(0, 1.0) == window
