"""Who should hold which stage: tables of situations, and what must hold for any roster."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from gossip_helpers import peer_id, record, view_of
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols.assignment import (
    AssignmentLimits,
    Plan,
    StageNeeds,
    equal_needs,
    local,
    plan,
    stage_map,
)
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.placement import Placement
from swarmd.protocols.receipts import tag_of
from swarmd.protocols.roster import Liveness, RosterView

LIMITS = AssignmentLimits()
QUIET_S = LIMITS.settling_s


def active(name: str, stage: int, **fields: Any) -> PeerRecord:
    usual = {"tokens_per_s": 1_000.0, "settled": True}
    return record(name, stage=stage, phase="active", **(usual | fields))


def joiner(name: str, **fields: Any) -> PeerRecord:
    usual: dict[str, Any] = {"stage": None, "tokens_per_s": 1_000.0}
    return record(name, phase="joining", **(usual | fields))


def planned(
    *records: PeerRecord, stages: int = 2, quiet_s: float = QUIET_S, needs: StageNeeds | None = None
) -> Plan:
    return plan(view_of(*records), needs or equal_needs(stages), 7, LIMITS, quiet_s)


def sizes(found: Plan) -> list[int]:
    return [len(peers) for peers in found.proposal.stages]


def stage_of(found: Plan, name: str) -> int | None:
    return found.seats[peer_id(name)].stage


class TestJoining:
    def test_newcomer_takes_the_stage_that_nobody_holds(self) -> None:
        found = planned(active("a", 0), active("b", 1), joiner("c"), stages=3)
        assert stage_of(found, "c") == 2

    def test_newcomer_takes_the_slowest_stage(self) -> None:
        found = planned(active("a", 0), active("b", 0), active("c", 1), joiner("d"))
        assert stage_of(found, "d") == 1

    @pytest.mark.parametrize("seed", range(20))
    def test_equal_newcomers_at_once_end_at_most_one_apart(self, seed: int) -> None:
        """STAG-05: eight peers join a two-stage swarm; measurements differ by noise."""
        rng = random.Random(seed)
        here = [active(f"h{n}", n % 2, tokens_per_s=rng.uniform(800, 1300)) for n in range(4)]
        new = [joiner(f"n{n}", tokens_per_s=rng.uniform(800, 1300)) for n in range(8)]
        found = plan(view_of(*here, *new), equal_needs(2), seed, LIMITS, 0.0)
        assert max(sizes(found)) - min(sizes(found)) <= 1

    def test_claim_is_kept_among_equal_stages(self) -> None:
        for claim in (0, 1):
            found = planned(active("a", 0), active("b", 1), joiner("c", stage=claim))
            assert stage_of(found, "c") == claim

    def test_pinned_newcomer_gets_what_it_asks_for(self) -> None:
        here = (active("a", 0), active("b", 0), active("c", 1))
        assert stage_of(planned(*here, joiner("d", stage=0, pinned=True)), "d") == 0

    def test_newcomer_goes_only_where_its_memory_suffices(self) -> None:
        needs = StageNeeds((1.0, 1.0), (4 << 30, 16 << 30))
        found = planned(active("a", 0), joiner("b", memory_bytes=8 << 30), needs=needs)
        assert stage_of(found, "b") == 0
        found = planned(active("a", 0), joiner("b", memory_bytes=2 << 30), needs=needs)
        assert found.seats[peer_id("b")].why == "does_not_fit"
        assert found.proposal.standby == (peer_id("b"),)

    def test_flapping_newcomer_is_left_on_standby(self) -> None:
        found = planned(active("a", 0), active("b", 1), joiner("c", recent_starts=4))
        assert found.seats[peer_id("c")].why == "flapping"

    def test_flapping_peer_is_taken_where_there_is_no_other(self) -> None:
        found = planned(active("a", 0), joiner("c", recent_starts=9))
        assert stage_of(found, "c") == 1

    def test_who_lacks_the_data_gets_no_first_stage_however_much_it_is_needed(self) -> None:
        without = [joiner(name, lacks_data=True) for name in "abc"]
        found = planned(*without)
        assert sizes(found) == [0, 3]
        assert planned(*without, stages=1).seats[peer_id("a")].why == "does_not_fit"
        assert stage_of(planned(*without, joiner("d")), "d") == 0

    def test_observers_have_no_seat(self) -> None:
        found = planned(active("a", 0), active("b", 1), record("o", stage=None, observer=True))
        assert peer_id("o") not in found.seats

    def test_costly_stage_gets_more_peers(self) -> None:
        needs = StageNeeds((1.0, 3.0), (0, 0))
        found = planned(*(joiner(f"n{n}") for n in range(8)), needs=needs)
        assert sizes(found) == [2, 6]


class TestFilling:
    def test_uncovered_stage_takes_one_peer_at_once_whatever_the_hysteresis(self) -> None:
        """STAG-01: nobody has settled, and the map has changed this instant."""
        here = [active(name, 0, settled=False) for name in "abc"]
        found = planned(*here, quiet_s=0.0)
        assert (found.decision, sizes(found)) == ("fill", [2, 1])
        assert found.gain_share == math.inf

    def test_newcomer_fills_before_anybody_moves(self) -> None:
        found = planned(active("a", 0), active("b", 0), joiner("c"), quiet_s=0.0)
        assert found.decision == "keep"
        assert stage_of(found, "c") == 1

    def test_last_peer_of_a_stage_does_not_leave_it(self) -> None:
        found = planned(active("a", 0), active("b", 1), stages=3)
        assert found.decision == "keep"
        assert found.proposal.uncovered == (2,)
        assert "stage 2 has no peer" in found.why

    @pytest.mark.parametrize("bond", [{"pinned": True}, {"cordoned": True}])
    def test_pinned_and_cordoned_peers_do_not_move(self, bond: dict[str, bool]) -> None:
        found = planned(active("a", 0, **bond), active("b", 0, **bond))
        assert found.decision == "keep"

    def test_only_who_has_the_data_fills_the_first_stage(self) -> None:
        here = [active(name, 1, lacks_data=True) for name in "abc"]
        assert planned(*here, quiet_s=0.0).decision == "keep"
        found = planned(*here, active("d", 1), quiet_s=0.0)
        assert (found.decision, stage_of(found, "d")) == ("fill", 0)

    def test_dead_and_left_hold_nothing_and_suspects_still_do(self) -> None:
        records = (active("a", 0), active("b", 0), active("c", 1))
        for liveness, decision in (
            (Liveness.SUSPECT, "keep"),
            (Liveness.DEAD, "fill"),
            (Liveness.LEFT, "fill"),
        ):
            view = view_of(*records, liveness={"c": liveness})
            assert plan(view, equal_needs(2), 7, LIMITS, 0.0).decision == decision

    def test_draining_peer_is_replaced_before_it_is_gone(self) -> None:
        leaving = record("c", stage=1, phase="draining")
        found = planned(active("a", 0), active("b", 0), leaving, quiet_s=0.0)
        assert found.decision == "fill"

    def test_several_uncovered_stages_take_different_peers(self) -> None:
        found = planned(*(active(name, 0) for name in "abcd"), stages=3, quiet_s=0.0)
        assert sizes(found) == [2, 1, 1]

    def test_the_stage_that_stays_fastest_gives_the_peer(self) -> None:
        here = [active(f"a{n}", 0) for n in range(4)] + [active(f"b{n}", 1) for n in range(2)]
        found = planned(*here, stages=3, quiet_s=0.0)
        assert sizes(found) == [3, 2, 1]


class TestProof:
    """Records are claims: what a stage has learned is left to who was seen to work."""

    def proved(self, *names: str, records: tuple[PeerRecord, ...]) -> Plan:
        proven = {peer_id(name) for name in names}
        return plan(view_of(*records), equal_needs(2), 7, LIMITS, QUIET_S, proven=proven)

    def test_last_proven_holder_stays_however_many_say_that_they_hold_its_stage(self) -> None:
        liars = tuple(active(f"liar{n}", 0, tokens_per_s=1e12) for n in range(50))
        found = self.proved("a", "b", records=(active("a", 0), active("b", 1), *liars))
        assert stage_of(found, "a") == 0
        assert found.decision == "keep"

    def test_boaster_beside_an_honest_peer_moves_nobody(self) -> None:
        liar = active("liar", 1, tokens_per_s=1e12)
        honest = (active("a", 0), active("b", 1))
        assert planned(*honest, liar).decision == "move", "a claim that is believed would"
        assert self.proved("a", "b", records=(*honest, liar)).decision == "keep"

    def test_of_two_proven_one_may_go(self) -> None:
        here = (active("a", 0), active("b", 0), active("c", 0), active("d", 1))
        assert self.proved("a", "b", "d", records=here).decision == "move"
        assert self.proved("a", "d", records=here).decision == "keep"

    def test_uncovered_stage_takes_a_proven_peer_that_leaves_a_proven_one(self) -> None:
        liars = tuple(active(f"liar{n}", 0) for n in range(20))
        found = self.proved("a", "b", records=(active("a", 0), active("b", 0), *liars))
        moved = [name for name in ("a", "b") if stage_of(found, name) == 1]
        assert len(moved) == 1

    def test_uncovered_stage_takes_anybody_who_is_not_alone_before_all_stands_still(self) -> None:
        found = self.proved(records=(active("a", 0), active("b", 0)))
        assert found.decision == "fill"

    def test_newcomers_are_placed_by_what_was_proved_and_not_by_boasts(self) -> None:
        boaster = active("liar", 1, tokens_per_s=1e12)
        here = (active("a", 0), active("b", 0), active("c", 1), boaster, joiner("new"))
        assert stage_of(planned(*here), "new") == 0
        here = (*here, active("d", 0))
        assert stage_of(self.proved("a", "b", "c", "d", records=here), "new") == 1


class TestMoving:
    def three_and_one(self, **fields: Any) -> list[PeerRecord]:
        return [active(name, 0, **fields) for name in "abc"] + [active("d", 1, **fields)]

    def test_three_against_one_moves_once_and_never_again(self) -> None:
        """STAG-02."""
        here = self.three_and_one()
        found = planned(*here)
        assert (found.decision, sizes(found)) == ("move", [2, 2])
        assert found.gain_share == pytest.approx(1.0)
        (mover,) = [peer for peer, seat in found.seats.items() if seat.why == "move"]
        moved = [active(item.name, 1) if item.peer == mover else item for item in here]
        assert planned(*moved).decision == "keep"

    def test_nobody_moves_while_the_map_is_fresh(self) -> None:
        found = planned(*self.three_and_one(), quiet_s=QUIET_S - 1)
        assert found.decision == "keep"
        assert found.gain_share > 0

    def test_nobody_moves_before_its_dwell(self) -> None:
        assert planned(*self.three_and_one(settled=False)).decision == "keep"

    def test_one_at_a_time(self) -> None:
        on_its_way = record("e", stage=0, phase="syncing", tokens_per_s=1_000.0)
        assert planned(*self.three_and_one(), on_its_way).decision == "keep"

    @pytest.mark.parametrize("seed", range(50))
    def test_noise_moves_nobody(self, seed: int) -> None:
        rng = random.Random(seed)
        here = [
            active(f"p{n}", n % 3, tokens_per_s=1_000.0 * rng.uniform(0.8, 1.2))
            for n in range(rng.randint(3, 14))
        ]
        assert planned(*here, stages=3).decision == "keep"

    def test_two_equally_slow_stages_are_both_helped_one_after_the_other(self) -> None:
        """No single move makes the slowest stage faster here; two do."""
        here = [active(f"a{n}", 0) for n in range(4)] + [active("b", 1), active("c", 2)]
        moves = 0
        for _ in range(10):
            found = planned(*here, stages=3)
            if found.decision != "move":
                break
            moves += 1
            here = [active(item.name, stage_of(found, item.name) or 0) for item in here]
        assert (moves, sizes(planned(*here, stages=3))) == (2, [2, 2, 2])

    def test_move_that_only_evens_out_is_not_made(self) -> None:
        here = [active(f"a{n}", 0) for n in range(4)]
        here += [active(f"b{n}", 1) for n in range(2)] + [active(f"c{n}", 2) for n in range(2)]
        assert planned(*here, stages=3).decision == "keep"

    def test_one_fast_peer_equals_four_slow_ones(self) -> None:
        here = [active("fast", 0, tokens_per_s=4_000.0)]
        here += [active(f"s{n}", 1) for n in range(4)]
        assert planned(*here).decision == "keep"


names = st.sampled_from([f"p{n}" for n in range(12)])
any_record = st.builds(
    record,
    name=names,
    stage=st.one_of(st.none(), st.integers(0, 4)),
    phase=st.sampled_from(("joining", "syncing", "active", "draining", "left")),
    tokens_per_s=st.sampled_from((0.0, 500.0, 1_000.0, 9_000.0)),
    memory_bytes=st.sampled_from((0, 1 << 30, 8 << 30)),
    pinned=st.booleans(),
    cordoned=st.booleans(),
    settled=st.booleans(),
    observer=st.booleans(),
    recent_starts=st.integers(0, 6),
)
any_view = st.lists(any_record, max_size=12, unique_by=lambda item: item.name).map(
    lambda records: view_of(*records)
)
SOME_NEEDS = StageNeeds((1.0, 2.0, 1.0, 1.0), (0, 2 << 30, 0, 0))


@given(any_view, st.integers(0, 99))
def test_any_view_gives_a_whole_plan(view: RosterView, seed: int) -> None:
    found = plan(view, SOME_NEEDS, seed, LIMITS, QUIET_S)
    seated = [peer for peers in found.proposal.stages for peer in peers]
    assert len(seated) == len(set(seated)), "nobody sits twice"
    for peer, seat in found.seats.items():
        item = view.get(peer)
        assert item is not None
        assert item.is_present
        assert not item.record.observer
        assert (seat.stage is None) == (peer in found.proposal.standby)
    moved = [seat for seat in found.seats.values() if seat.why == "move"]
    assert len(moved) <= 1
    for seat in found.seats.values():
        mover = view.get(seat.peer)
        if seat.why in ("fill", "move") and mover is not None:
            assert not (mover.record.pinned and mover.record.phase == "active")


@given(any_view, st.integers(0, 99))
def test_a_move_or_fill_never_uncovers_a_stage(view: RosterView, seed: int) -> None:
    found = plan(view, SOME_NEEDS, seed, LIMITS, QUIET_S)
    holders = {
        stage
        for item in view.present()
        if item.record.phase in ("syncing", "active") and not item.record.observer
        for stage in [item.record.stage]
        if stage is not None and stage < SOME_NEEDS.stages
    }
    assert holders <= {stage for stage, peers in enumerate(found.proposal.stages) if peers}


@given(any_view, st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_order_of_anything(
    view: RosterView, rng: random.Random
) -> None:
    records = [item.record for item in view.peers]
    rng.shuffle(records)
    again = view_of(*records)
    one = plan(view, SOME_NEEDS, 3, LIMITS, QUIET_S)
    other = plan(again, SOME_NEEDS, 3, LIMITS, QUIET_S)
    assert one == other
    assert one.proposal.version == other.proposal.version


def test_map_version_says_who_holds_what_and_nothing_else() -> None:
    a = stage_map(view_of(active("a", 0), active("b", 1)), 2)
    slower = stage_map(view_of(active("a", 0, tokens_per_s=5.0), active("b", 1)), 2)
    swapped = stage_map(view_of(active("a", 1), active("b", 0)), 2)
    assert a.version == slower.version
    assert a.version != swapped.version


def test_every_seat_says_why() -> None:
    found = planned(active("a", 0), active("b", 1), joiner("c", recent_starts=4), active("d", 1))
    seats = {name: found.seat_of(peer_id(name)) for name in ("a", "c", "nobody")}
    shown = {name: seat and (seat.stage, seat.why) for name, seat in seats.items()}
    assert shown == {"a": (0, "keep"), "c": (None, "flapping"), "nobody": None}


class TestPlacement:
    """One peer's own acts. Views are given, time passes by hand."""

    def setup_method(self) -> None:
        self.limits = local()
        self.placement = Placement(peer_id("me"), equal_needs(2), 7, self.limits)

    def review(self, now_s: float, *others: PeerRecord, me: PeerRecord) -> tuple[Any, str]:
        change = self.placement.review(view_of(me, *others), now_s)
        return change.fields, change.why

    def test_newcomer_claims_waits_and_takes(self) -> None:
        others = (active("a", 0), active("b", 0), active("c", 1))
        assert self.review(0.0, *others, me=joiner("me")) == ({"stage": 1}, "claim")
        me = joiner("me", stage=1)
        assert self.review(0.5, *others, me=me) == ({}, "claim")
        assert self.review(1.1, *others, me=me) == ({"phase": "syncing"}, "take")

    def test_claim_is_given_up_when_another_sits_there_first(self) -> None:
        me = joiner("me", stage=1)
        assert self.review(0.0, active("a", 0), active("b", 0), me=me)[1] == "claim"
        crowded = (active("a", 0), active("c", 1), active("d", 1))
        assert self.review(0.5, *crowded, me=me) == ({"stage": 0}, "claim")
        me = joiner("me", stage=0)
        assert self.review(1.2, *crowded, me=me) == ({}, "claim"), "the wait begins anew"
        assert self.review(1.6, *crowded, me=me) == ({"phase": "syncing"}, "take")

    def test_moves_at_once_to_a_stage_without_peers(self) -> None:
        me = active("me", 0, pinned=False)
        others = (active("a", 0, pinned=True),)
        assert self.review(0.0, *others, me=me) == ({}, "keep")
        change = self.review(1.1, *others, me=me)
        assert change == ({"stage": 1, "phase": "joining", "settled": False}, "fill")

    def test_settles_after_its_dwell_and_says_so(self) -> None:
        me = active("me", 0, settled=False)
        other = active("a", 1)
        assert self.review(0.0, other, me=me) == ({}, "keep")
        assert self.review(self.limits.dwell_s - 1, other, me=me) == ({}, "keep")
        assert self.review(self.limits.dwell_s, other, me=me) == ({"settled": True}, "settled")

    def test_moves_of_free_will_only_after_the_map_was_still(self) -> None:
        me = active("me", 0)
        others = (active("a", 0, pinned=True), active("b", 0, pinned=True), active("c", 1))
        moved_at_s = None
        for step in range(100):
            if self.review(step / 4, *others, me=me)[1] == "move":
                moved_at_s = step / 4
                break
        assert moved_at_s is not None
        assert moved_at_s >= self.limits.settling_s + self.limits.claim_settle_s

    @pytest.mark.parametrize("phase", ["draining", "left", "syncing"])
    def test_does_nothing_in_other_phases(self, phase: str) -> None:
        assert self.review(0.0, me=record("me", phase=phase)) == ({}, "")

    def test_flapping_newcomer_gives_its_claim_back(self) -> None:
        me = joiner("me", stage=1, recent_starts=5)
        others = (active("a", 0), active("b", 1))
        assert self.review(0.0, *others, me=me) == ({"stage": None}, "flapping")


def test_plan_that_peers_share_is_the_one_that_each_would_find() -> None:
    """One after another look at swarms that differ in one word of one record."""
    others = (active("a", 0), active("b", 0, settled=True), active("c", 1))
    changes: list[dict[str, Any]] = [
        {},
        {"stage": 1},
        {"settled": True},
        {"observer": True},
        {"pinned": True},
        {"cordoned": True},
        {"recent_starts": 9},
        {"tokens_per_s": 900.0},
        {"memory_bytes": 5},
        {"round": 3},
    ]
    needs = StageNeeds((1.0, 2.0), (10, 20))
    for proven, fields in itertools.product((None, (), ("a", "c")), changes):
        view = view_of(*others, joiner("me", **fields))
        placement = Placement(peer_id("me"), needs, 7, local())
        if proven is not None:
            placement.set_proven(frozenset(tag_of(peer_id(name)) for name in proven))
        placement.review(view, 0.0)
        seen = placement._proven_in(view)
        found = placement._followed(view, 0.0)
        assert found == plan(view, needs, 7, local(), 0.0, tells_gain=False, proven=seen), fields


def test_two_that_set_out_for_the_same_stage_are_told_apart_alike() -> None:
    """Both moved on views that had not met; as joiners, exactly one is seated there."""
    both = [joiner("x", stage=1), joiner("y", stage=1), active("a", 0)]
    seats = planned(*both).seats
    assert sorted(seats[peer_id(name)].stage or 0 for name in "xy") in ([0, 1], [1, 1])
    assert sizes(planned(*both)) == [2, 1] or sizes(planned(*both)) == [1, 2]


def test_limits_presets_differ_only_in_time_and_coarseness() -> None:
    chosen: list[Callable[[], AssignmentLimits]] = [local, AssignmentLimits]
    assert {make().gain_share_min for make in chosen} == {0.15}

    def test_believes_its_plan_to_receipts_once_there_is_a_ledger(self) -> None:
        records = (active("me", 0), active("a", 0), active("b", 1, tokens_per_s=10.0))
        view, later_s = view_of(*records), self.limits.settling_s + 1.0
        self.placement.review(view, 0.0)
        assert self.placement.plan(view, later_s).decision == "move"
        tags = {name: tag_of(peer_id(name)) for name in ("me", "a", "b")}
        self.placement.set_proven(frozenset({tags["me"], tags["b"]}))
        assert self.placement.plan(view, later_s).decision == "keep"
        self.placement.set_proven(frozenset(tags.values()))
        assert self.placement.plan(view, later_s).decision == "move"
