"""Whom to ask next: recipes R1 to R4 and R8 of algorithms.md 4.6, and the router's own rules."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols.ids import PeerId
from swarmd.protocols.routing import Candidate, Router

A, B, C = PeerId("peer-a"), PeerId("peer-b"), PeerId("peer-c")


class Caller:
    """A router with a clock; every task has 100 tokens."""

    def __init__(self, *speeds: float, seed: int = 1) -> None:
        self.router = Router(random.Random(seed))
        self.now_s = 0.0
        self.attempts = itertools.count()
        self.given: Counter[PeerId] = Counter()
        self.set_candidates({peer: speed for peer, speed in zip((A, B, C), speeds, strict=False)})

    def set_candidates(self, speeds: dict[PeerId, float], incarnation: int = 1) -> None:
        candidates = [Candidate(peer, incarnation, speed) for peer, speed in speeds.items()]
        self.router.set_candidates(candidates)
        for peer in speeds:
            self.router.set_linked(peer, True)

    def choose(self, *exclude: PeerId) -> tuple[PeerId | None, int, str]:
        attempt = next(self.attempts)
        peer, reason = self.router.choose(
            100, self.now_s, attempt=attempt, size_bytes=1000, exclude=exclude
        )
        if peer is not None:
            self.given[peer] += 1
        return peer, attempt, reason

    def give(self, count: int) -> None:
        for _ in range(count):
            self.choose()

    def serve(self, count: int, service_s: dict[PeerId, float]) -> None:
        """One at a time, each answered after its peer's service time."""
        for _ in range(count):
            peer, attempt, _ = self.choose()
            assert peer is not None
            self.now_s += service_s[peer]
            self.router.delivered(peer, attempt, self.now_s, service_s[peer])

    def share(self, peer: PeerId) -> float:
        return {t.peer: t.traffic_share for t in self.router.statistics(self.now_s)}[peer]

    def score(self, peer: PeerId) -> float:
        return {t.peer: t.score for t in self.router.statistics(self.now_s)}[peer]


@pytest.mark.parametrize("seed", range(20))
def test_r1_tasks_are_shared_in_proportion_to_throughput(seed: int) -> None:
    two = Caller(1.0, 3.0, seed=seed)
    two.give(40)
    assert two.given == {A: 10, B: 30}
    three = Caller(1.0, 2.0, 5.0, seed=seed)
    three.give(80)
    assert three.given == {A: 10, B: 20, C: 50}


@pytest.mark.parametrize("seed", range(20))
def test_r2_newcomer_begins_as_the_most_loaded_and_gets_one_at_a_time(seed: int) -> None:
    caller = Caller(1.0, 3.0, seed=seed)
    caller.give(40)
    caller.set_candidates({A: 1.0, B: 3.0, C: 100.0})
    chosen = [caller.choose()[0] for _ in range(12)]
    assert chosen.count(C) == 1, chosen


def test_newcomer_that_answers_at_once_does_not_catch_up_on_the_past() -> None:
    caller = Caller(1.0, 1.0)
    caller.serve(20, {A: 1.0, B: 1.0})
    caller.set_candidates({A: 1.0, B: 1.0, C: 1.0})
    caller.given.clear()
    caller.serve(6, {A: 1.0, B: 1.0, C: 1.0})
    assert caller.given[C] <= 2


def test_newcomer_that_answers_gets_its_share() -> None:
    caller = Caller(1.0, 1.0)
    caller.serve(10, {A: 1.0, B: 1.0})
    caller.set_candidates({A: 1.0, B: 1.0, C: 1.0})
    caller.given.clear()
    caller.serve(30, {A: 1.0, B: 1.0, C: 1.0})
    assert 9 <= caller.given[C] <= 10


def test_r3_peer_that_always_says_busy_gets_no_work_no_ban_and_no_charge() -> None:
    caller = Caller(1.0, 1.0)
    done = 0
    for _ in range(200):
        peer, attempt, _ = caller.choose()
        caller.now_s += 0.1
        if peer == A:
            caller.router.busy(A, attempt, caller.now_s)
        elif peer == B:
            caller.router.delivered(B, attempt, caller.now_s, 0.1)
            done += 1
        assert caller.router.charged_s(A) == 0.0
        assert caller.router.banned_for_s(A, caller.now_s) == 0.0
    assert done >= 100
    assert caller.score(A) == 1.0


def test_r3_peer_that_was_busy_for_long_gets_its_share_as_soon_as_it_is_not() -> None:
    caller = Caller(100.0, 100.0)
    for _ in range(100):
        peer, attempt, _ = caller.choose()
        caller.now_s += 0.1
        if peer == A:
            caller.router.busy(A, attempt, caller.now_s)
        else:
            caller.router.delivered(B, attempt, caller.now_s, 1.0)
    caller.now_s += 1.0
    caller.given.clear()
    caller.serve(20, {A: 1.0, B: 1.0})
    assert 9 <= caller.given[A] <= 14


def test_r4_silent_peer_gets_its_upfront_share_and_then_nothing() -> None:
    caller = Caller(1.0, 1.0)
    open_at_b: list[int] = []
    early = 0
    for index in range(100):
        peer, attempt, _ = caller.choose()
        early = caller.given[A] if index < 50 else early
        if peer == B:
            open_at_b.append(attempt)
        if len(open_at_b) == 4:
            caller.now_s += 0.1
            caller.router.delivered(B, open_at_b.pop(0), caller.now_s, 0.1)
    assert caller.given[A] == early <= 6, "half of eight in flight, and a little"
    assert caller.router.charged_s(A) > 0


def test_r4_charge_stays_when_the_deadline_passes_and_goes_with_the_answer() -> None:
    caller = Caller(1.0, 1.0)
    attempts = {}
    for _ in range(2):
        peer, attempt, _ = caller.choose()
        attempts[peer] = attempt
    before_s = caller.router.charged_s(A)
    caller.router.overdue(A, attempts[A], 5.0)
    assert caller.router.charged_s(A) == before_s > 0
    assert caller.score(A) < 1.0
    caller.router.delivered(A, attempts[A], 6.0, 1.0)
    assert caller.router.charged_s(A) == 0
    assert caller.score(A) == 1.0, "late is not lost"


def test_r8_bans_double_to_a_minute_and_a_success_ends_them() -> None:
    caller = Caller(1.0)
    bans_s = []
    for _ in range(8):
        caller.router.unreachable(A, caller.now_s)
        ban_s = caller.router.banned_for_s(A, caller.now_s)
        bans_s.append(ban_s)
        assert caller.choose()[2] == "banned"
        caller.router.unreachable(A, caller.now_s)  # no news while it is banned
        caller.now_s += ban_s
    assert bans_s == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])
    caller.serve(1, {A: 1.0})
    caller.router.unreachable(A, caller.now_s)
    assert caller.router.banned_for_s(A, caller.now_s) == pytest.approx(1.0)


def test_r8_new_incarnation_lifts_the_ban() -> None:
    caller = Caller(1.0)
    caller.router.unreachable(A, 0.0)
    caller.set_candidates({A: 1.0}, incarnation=1)
    assert caller.choose()[2] == "banned"
    caller.set_candidates({A: 1.0}, incarnation=2)
    assert caller.choose()[0] == A


def test_measured_speed_replaces_what_was_claimed() -> None:
    caller = Caller(1000.0, 1.0)
    caller.serve(100, {A: 3.0, B: 1.0})
    caller.given.clear()
    caller.serve(80, {A: 3.0, B: 1.0})
    assert caller.given[A] == pytest.approx(20, abs=2)


def test_a_claim_of_next_to_nothing_does_not_keep_a_peer_from_being_measured() -> None:
    caller = Caller(100.0, 0.001)
    caller.serve(40, {A: 1.0, B: 1.0})
    assert caller.given[B] >= 10


def test_replicas_share_in_proportion_also_when_there_is_little_to_do() -> None:
    caller = Caller(1.0, 1.0)
    for _ in range(80):
        caller.serve(1, {A: 0.3, B: 0.1})
        caller.now_s += 1.0
    assert caller.given[A] >= 10


def test_nearer_replica_is_asked_first_and_the_far_one_still_does_its_part() -> None:
    caller = Caller(100.0, 100.0)
    caller.router.set_link(A, 2.5, 0.0)
    caller.router.set_link(B, 0.0, 0.0)
    assert [caller.choose()[0] for _ in range(2)] == [B, B]
    caller.give(38)
    assert caller.given[A] >= 15


def test_bytes_on_a_thin_link_are_charged() -> None:
    caller = Caller(100.0, 100.0)
    caller.router.set_link(A, 0.0, 500.0)  # two seconds for what the worker does in one
    caller.give(40)
    assert caller.given[A] == pytest.approx(10, abs=1)


def test_lone_member_keeps_all_the_traffic_however_bad() -> None:
    caller = Caller(1.0)
    for _ in range(50):
        peer, attempt, reason = caller.choose()
        assert (peer, reason) == (A, "only_one")
        caller.router.overdue(A, attempt, caller.now_s)
        caller.router.withdrawn(A, attempt)
        caller.now_s += 1.0


@pytest.mark.parametrize("seed", range(10))
def test_member_that_drops_three_of_four_falls_below_a_tenth_and_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    caller = Caller(10.0, 10.0, seed=seed)
    _serve_with_losses(caller, 50, rng, loss_at_a=0.75)
    shares = []
    for _ in range(100):
        _serve_with_losses(caller, 1, rng, loss_at_a=0.75)
        shares.append(caller.share(A))
    assert sum(shares) / len(shares) < 0.1
    assert caller.given[A] > 0
    healed_s = caller.now_s
    while caller.share(A) < 0.4:
        _serve_with_losses(caller, 1, rng, loss_at_a=0.0)
        assert caller.now_s < healed_s + 300.0


def _serve_with_losses(caller: Caller, count: int, rng: random.Random, loss_at_a: float) -> None:
    for _ in range(count):
        peer, attempt, _ = caller.choose()
        assert peer is not None
        caller.now_s += 0.1
        if peer == A and rng.random() < loss_at_a:
            caller.router.overdue(A, attempt, caller.now_s)
            caller.router.withdrawn(A, attempt)
        else:
            caller.router.delivered(peer, attempt, caller.now_s, 0.1)


def test_old_misses_are_forgiven_with_time() -> None:
    caller = Caller(1.0, 1.0)
    for _ in range(10):
        attempt = caller.choose(B)[1]
        caller.router.overdue(A, attempt, 0.0)
        caller.router.withdrawn(A, attempt)
    assert caller.score(A) == pytest.approx(0.1)
    caller.now_s = 600.0
    assert caller.score(A) > 0.95


def test_old_charges_do_not_pin_a_peer() -> None:
    caller = Caller(100.0, 100.0)
    for _ in range(10):
        attempt = caller.choose(B)[1]
        caller.router.overdue(A, attempt, 0.0)
        caller.router.withdrawn(A, attempt)
    caller.now_s = 600.0
    caller.given.clear()
    caller.serve(50, {A: 1.0, B: 1.0})
    assert caller.given[A] >= 20


def test_nobody_holds_more_than_a_fair_share_and_one_of_what_is_in_flight() -> None:
    caller = Caller(100.0, 100.0)
    open_at: dict[PeerId, list[int]] = {A: [], B: []}
    for _ in range(200):
        peer, attempt, _ = caller.choose()
        assert peer is not None
        open_at[peer].append(attempt)
        if sum(map(len, open_at.values())) == 8:
            assert max(map(len, open_at.values())) <= 5
            done = B if open_at[B] else A  # A answers nothing while B can
            caller.router.delivered(done, open_at[done].pop(0), caller.now_s, 1.0)


def test_busy_teaches_how_much_a_replica_takes() -> None:
    caller = Caller(1.0)
    taken: list[int] = []
    busy = delivered = 0
    for _ in range(400):
        peer, attempt, reason = caller.choose()
        if peer is None:
            assert reason == "busy"
            caller.now_s += 1.0
            caller.router.delivered(A, taken.pop(0), caller.now_s, 1.0)
            delivered += 1
        elif len(taken) >= 3:
            busy += 1
            caller.router.busy(A, attempt, caller.now_s, 0.1)
        else:
            taken.append(attempt)
    assert delivered > 100
    assert busy <= delivered / 9 + 1


def test_reasons_name_the_obstacle_nearest_to_being_over() -> None:
    caller = Caller(1.0, 1.0)
    assert caller.choose(A, B)[2] == "excluded"
    _, attempt, _ = caller.choose(B)
    caller.router.busy(A, attempt, 0.0, 1.0)
    assert caller.choose(B)[2] == "excluded"
    caller.router.unreachable(B, 0.0)
    assert caller.choose()[2] == "busy"
    assert caller.router.usable(0.0) == (True, "busy")
    caller.router.set_linked(A, False)
    assert caller.choose()[2] == "banned"
    assert caller.router.usable(0.0) == (False, "banned")
    caller.router.set_linked(B, False)
    assert caller.choose()[2] == "not_linked"
    caller.set_candidates({})
    assert caller.choose()[2] == "no_peer"


def test_answers_of_strangers_and_of_former_candidates_change_nothing() -> None:
    caller = Caller(1.0)
    _, attempt, _ = caller.choose()
    caller.set_candidates({B: 1.0})
    for peer in (A, C):
        caller.router.delivered(peer, attempt, 1.0)
        caller.router.busy(peer, attempt, 1.0)
        caller.router.refused(peer, attempt, 1.0, is_fault=True)
        caller.router.overdue(peer, attempt, 1.0)
        caller.router.withdrawn(peer, attempt)
        caller.router.unreachable(peer, 1.0)
    assert caller.choose()[0] == B


@given(st.integers(0, 2**32 - 1))
def test_whatever_happens_charges_and_scores_stay_in_bounds(seed: int) -> None:
    rng = random.Random(seed)
    caller = Caller(1.0, 2.0, 5.0, seed=seed)
    open_attempts: list[tuple[PeerId, int]] = []
    for _ in range(60):
        caller.now_s += rng.random()
        action = rng.randrange(7)
        if action < 3 or not open_attempts:
            peer, attempt, _ = caller.choose()
            if peer is not None:
                open_attempts.append((peer, attempt))
            continue
        peer, attempt = open_attempts.pop(rng.randrange(len(open_attempts)))
        match action:
            case 3:
                caller.router.delivered(peer, attempt, caller.now_s, rng.random())
            case 4:
                caller.router.busy(peer, attempt, caller.now_s, rng.random())
            case 5:
                caller.router.refused(peer, attempt, caller.now_s, is_fault=rng.random() < 0.5)
            case 6:
                caller.router.overdue(peer, attempt, caller.now_s)
                caller.router.withdrawn(peer, attempt)
    for traffic in caller.router.statistics(caller.now_s):
        mine = [attempt for peer, attempt in open_attempts if peer == traffic.peer]
        assert traffic.outstanding == len(mine)
        assert 0.1 <= traffic.score <= 1.0
        assert (caller.router.charged_s(traffic.peer) > 0) == bool(mine)
