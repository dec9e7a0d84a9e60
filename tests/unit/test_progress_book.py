"""Who gets on, by what the records tell: stalled alone, stalled with all, contributing."""

from __future__ import annotations

from typing import Any

import pytest
from gossip_helpers import peer_id, record, view_of

from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.progress_book import ProgressBook
from swarmd.protocols.standstill import HEARSAY, Standstill

A, B = peer_id("a"), peer_id("b")
AFTER_S = 30.0


def working(name: str, micro_batches: int, **changes: Any) -> PeerRecord:
    return record(name, micro_batches=micro_batches, **changes)


def test_who_stands_still_while_others_move_is_stalled_and_one_step_ends_it() -> None:
    book = ProgressBook()
    for second in range(41):
        book.look(view_of(working("a", 5), working("b", second)), 0, float(second))
    assert book.stalled_since_s(A, AFTER_S, 40.0) == 0.0
    assert book.stalled_since_s(B, AFTER_S, 40.0) is None
    book.look(view_of(working("a", 6), working("b", 40)), 0, 41.0)
    assert book.stalled_since_s(A, AFTER_S, 41.0) is None


def test_nobody_is_stalled_alone_where_nobody_moves() -> None:
    book = ProgressBook()
    for second in range(100):
        book.look(view_of(working("a", 5), working("b", 5)), 0, float(second))
    assert book.stalled_since_s(A, AFTER_S, 99.0) is None


@pytest.mark.parametrize("change", [{"incarnation": 9}, {"stage": 1}])
def test_new_life_or_stage_begins_with_patience(change: dict[str, int]) -> None:
    book = ProgressBook()
    for second in range(60):
        changed = change if second >= 40 else {}
        book.look(view_of(working("a", 5, **changed), working("b", second)), 0, float(second))
    assert book.stalled_since_s(A, AFTER_S, 59.0) is None


def test_contributing_is_who_did_something_in_the_last_finished_round() -> None:
    book = ProgressBook()
    counts = [(0, 3, 2), (1, 3, 4), (2, 3, 6)]
    seen = []
    for rounds_done, a, b in counts:
        book.look(view_of(working("a", a), working("b", b)), rounds_done, float(rounds_done))
        seen.append((book.contributes(A), book.contributes(B)))
    assert seen == [(True, True), (True, True), (False, True)]
    book.look(view_of(working("b", 6)), 2, 3.0)
    assert not book.contributes(A), "it is gone"


def test_others_are_held_for_stalled_later_than_ourselves() -> None:
    standstill = Standstill(A, AFTER_S, 0.0)
    told = []
    for second in range(60):
        standstill.look(
            view_of(working("a", 5), working("b", 7), working("c", second)),
            (second,),
            may_move=True,
            is_covered=True,
            rounds_done=0,
            round_s=None,
            now_s=float(second),
        )
        told.append((standstill.is_ours_alone, standstill.is_stalled(B, float(second))))
    assert told.index((True, False)) == AFTER_S
    assert told.index((True, True)) == HEARSAY * AFTER_S
