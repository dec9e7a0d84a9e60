"""Of all reasons that hold, the one nearest to the cause is shown, in the order of docs/cli.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarmd.protocols.explain import Situation, choose_reason
from swarmd.protocols.ids import PeerId
from swarmd.protocols.reasons import Reason

LOADS = Reason(code="state_downloading", text="3 of 9 bytes", stage=1, eta_at_s=9.0)
EVERYTHING = Situation(
    failed=Reason(code="version_mismatch", text="x"),
    is_complete=True,
    user=Reason(code="paused", text="x"),
    resources=Reason(code="disk_full", text="x"),
    present=1,
    was_with_others=True,
    is_isolated=True,
    lost_stage=(3, 7),
    stalled_since_s=1.0,
    stall_text="x",
    missing_stages=(3,),
    syncing=LOADS,
    peers_min=4,
    stage=1,
    mixing=Reason(code="mixing", text="x"),
    waiting=("waiting_for_gradient", {}, "x"),
)
GONE: list[tuple[str, dict[str, Any]]] = [
    ("version_mismatch", {"failed": None}),
    ("run_complete", {"is_complete": False}),
    ("paused", {"user": None}),
    ("disk_full", {"resources": None}),
    ("isolated", {"is_isolated": False}),
    ("run_state_lost", {"lost_stage": None}),
    ("stalled", {"stalled_since_s": None}),
    ("waiting_for_stage", {"missing_stages": ()}),
    ("waiting_for_peers", {"peers_min": 1}),
    ("state_downloading", {"syncing": None}),
    ("mixing", {"mixing": None}),
    ("waiting_for_gradient", {"waiting": None}),
    ("training", {}),
]


def test_each_reason_gives_way_to_the_next_one_only_when_it_is_gone() -> None:
    facts = EVERYTHING
    for code, without in GONE:
        assert choose_reason(facts).code == code
        facts = replace(facts, **without)


def test_who_fetches_the_missing_stage_itself_says_how_far_it_is() -> None:
    facts = Situation(present=2, missing_stages=(0, 1), syncing=LOADS, stage=1)
    assert choose_reason(facts) == LOADS
    other = replace(facts, syncing=replace(LOADS, stage=2))
    assert choose_reason(other).code == "waiting_for_stage"


def test_missing_stage_names_who_is_taking_it_and_by_when() -> None:
    peer = PeerId("12D3KooWabcd")
    facts = Situation(
        present=3, missing_stages=(2,), coming=((2, peer),), missing_until_s=8.0, now_s=3.0
    )
    found = choose_reason(facts)
    assert (found.peer, found.eta_at_s, found.eta_basis) == (peer, 8.0, "deadline")
    assert choose_reason(replace(facts, now_s=9.0)).eta_at_s is None
    assert "this peer is taking it" in choose_reason(replace(facts, own=peer)).text


def test_a_lone_peer_is_told_to_invite_others_and_promised_nobody() -> None:
    facts = Situation(present=1, missing_stages=(2,), stage=1, missing_until_s=8.0, now_s=3.0)
    assert choose_reason(replace(facts, stage=None)).hint is None, "it may take the stage itself"
    found = choose_reason(facts)
    assert (found.code, found.eta_at_s) == ("waiting_for_stage", None)
    assert "swarmd run link" in (found.hint or "")


def test_who_has_no_stage_never_says_that_it_trains() -> None:
    settling = Reason(code="connecting", text="settles", eta_at_s=2.0, eta_basis="deadline")
    assert choose_reason(Situation(present=2, seating=settling)) == settling


@pytest.mark.parametrize("was_with_others", [False, True])
def test_unreachable_entries_are_counted_and_come_with_a_hint(was_with_others: bool) -> None:
    facts = Situation(
        entries_tried=True,
        entry_causes=(("/ip4/127.0.0.1/tcp/1", "refused"), ("/dns/x/tcp/1", "name_not_found")),
        was_with_others=was_with_others,
    )
    found = choose_reason(facts)
    if was_with_others:
        assert found.code == "training"
        return
    assert found.code == "bootstrap_unreachable"
    assert found.text.startswith("0 of 2 entry addresses reachable")
    assert "swarmd run link" in str(found.hint)
