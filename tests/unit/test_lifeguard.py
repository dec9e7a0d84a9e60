"""Lifeguard's formulas as tables, and the books kept with them."""

from __future__ import annotations

import math

import pytest
from gossip_helpers import peer_id

from swarmd.protocols import membership_limits
from swarmd.protocols.local_health import LocalHealth
from swarmd.protocols.suspicion import Suspicions, suspicion_timeout_s


@pytest.mark.parametrize(
    ("confirmations", "expected", "low", "high", "result"),
    [
        (0, 3, 2.0, 30.0, 30.0),
        (1, 3, 2.0, 30.0, 16.0),
        (2, 3, 2.0, 30.0, 30.0 - 28.0 * math.log(3) / math.log(4)),
        (3, 3, 2.0, 30.0, 2.0),
        (9, 3, 2.0, 30.0, 2.0),
        (0, 1, 2.0, 30.0, 30.0),
        (1, 1, 2.0, 30.0, 2.0),
        (0, 0, 2.0, 30.0, 2.0),
        (0, -1, 2.0, 30.0, 2.0),
        (1, 4, 5.0, 5.0, 5.0),
    ],
)
def test_suspicion_time_falls_with_the_log_of_confirmations(
    confirmations: int, expected: int, low: float, high: float, result: float
) -> None:
    assert suspicion_timeout_s(confirmations, expected, low, high) == pytest.approx(result)


@pytest.mark.parametrize(
    ("steps", "score"),
    [
        ([("probe_failed", 0, 0)], 1),
        ([("probe_failed", 3, 3)], 0),
        ([("probe_failed", 3, 1)], 2),
        ([("probe_failed", 3, 0)], 3),
        ([("probe_failed", 3, 0), ("probe_failed", 3, 0)], 3),
        ([("was_accused",), ("was_accused",), ("probe_answered",)], 1),
        ([("probe_answered",)], 0),
        ([("lagged",), ("probe_answered",), ("probe_answered",)], 0),
    ],
)
def test_score_rises_with_signs_of_own_illness_and_falls_with_answers(
    steps: list[tuple[object, ...]], score: int
) -> None:
    health = LocalHealth(score_max=3)
    for name, *args in steps:
        getattr(health, str(name))(*args)
    assert (health.score, health.multiplier) == (score, 1.0 + score)


class TestSuspicions:
    def setup_method(self) -> None:
        self.book = Suspicions(timeout_s_min=2.0, timeout_s_max=30.0, expected_max=3)

    def accuse(self, who: str, life: tuple[int, int] = (1, 0), at_s: float = 0.0) -> bool:
        return self.book.accuse(
            peer_id("x"), life, peer_id(who), at_s, is_witness=who in "abcde", others=5
        )

    def test_each_voice_counts_once(self) -> None:
        assert self.accuse("a")
        assert not self.accuse("a", at_s=1.0)
        assert self.accuse("b", at_s=1.0)

    def test_more_voices_than_expected_are_not_passed_on(self) -> None:
        assert [self.accuse(who) for who in "abcde"] == [True, True, True, True, False]

    def test_those_that_cannot_know_make_it_no_sooner_dead(self) -> None:
        assert self.accuse("v"), "the first accusation is passed on, whoever made it"
        assert not self.accuse("w")
        for who in "xyz":
            self.accuse(who)
        assert self.book.expired(29.9) == []
        for who in "abcd":
            assert self.accuse(who)
        assert self.book.expired(2.0) == [peer_id("x")]

    def test_confirmations_bring_the_deadline_forward(self) -> None:
        self.accuse("a")
        assert self.book.expired(29.9) == []
        for who in "bcd":
            self.accuse(who, at_s=1.0)
        assert self.book.expired(1.9) == []
        assert self.book.expired(2.0) == [peer_id("x")]

    def test_accusation_of_an_earlier_life_is_stale(self) -> None:
        self.accuse("a", (1, 3))
        assert not self.accuse("b", (1, 2))
        assert not self.accuse("b", (0, 9))

    def test_accusation_of_a_later_life_begins_anew(self) -> None:
        self.accuse("a", (1, 0))
        assert self.accuse("a", (2, 0), at_s=20.0)
        assert self.book.expired(49.0) == []

    def test_our_own_pause_is_added_to_every_deadline(self) -> None:
        for who in "abcd":
            self.accuse(who)
        self.book.extend(10.0)
        assert self.book.expired(11.9) == []
        assert self.book.expired(12.0) == [peer_id("x")]

    def test_hastened_accused_has_the_least_time(self) -> None:
        self.accuse("a")
        self.book.hasten(peer_id("x"))
        assert self.book.expired(2.0) == [peer_id("x")]

    def test_half_of_the_least_time_is_counted_without_our_pause(self) -> None:
        self.accuse("a")
        assert self.book.is_half_spent(peer_id("x"), 1.0)
        self.book.extend(5.0)
        assert not self.book.is_half_spent(peer_id("x"), 5.9)


@pytest.mark.parametrize("preset", [membership_limits.wan, membership_limits.local])
def test_presets_keep_the_promise_of_dead_after(preset: object) -> None:
    """The relation is asserted when limits are made; here the documented values."""
    limits = preset()  # type: ignore[operator]
    documented = {membership_limits.wan: (1.0, 10.0), membership_limits.local: (0.5, 4.0)}
    assert (limits.probe_interval_s, limits.dead_after_s) == documented[preset]  # type: ignore[index]


def test_limits_that_break_their_promise_are_refused() -> None:
    with pytest.raises(AssertionError):
        membership_limits.MembershipLimits(suspicion_s_min=6.0, suspicion_s_max=6.0)
