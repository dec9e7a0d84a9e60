"""Who mixes with whom (recipe F10), and how long one waits for it (R7's rule, as rounds use it)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.messages.mixing import MEMBERS_MAX
from swarmd.protocols.mix_deadline import MixDeadline, grace_s
from swarmd.protocols.mixing import (
    Draw,
    group_digest,
    group_of,
    mix1_group_size,
    split_into_groups,
    taking_part,
)

RUN = RunId("a" * 64)


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"peer-{number:03d}") for number in range(count)]


@pytest.mark.parametrize("group_size", range(2, 9))
@pytest.mark.parametrize("replicas", range(1, 41))
def test_groups_are_a_partition_of_nearly_equal_sizes(replicas: int, group_size: int) -> None:
    groups = split_into_groups(peers(replicas), group_size, Draw(RUN, 0, 3, 1))
    assert sorted(peer for group in groups for peer in group) == peers(replicas)
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    if replicas >= group_size:
        assert group_size <= min(sizes)
        assert max(sizes) <= 2 * group_size - 1
    else:
        assert len(groups) == 1
    if replicas >= 2:
        assert min(sizes) >= 2, "somebody is left alone"


def test_every_peer_finds_the_same_groups_whatever_order_it_heard_them_in() -> None:
    draw = Draw(RUN, 1, 7, 2)
    forwards = split_into_groups(peers(13), 4, draw)
    assert split_into_groups(reversed(peers(13)), 4, draw) == forwards
    for group in forwards:
        for peer in group:
            assert group_of(peer, peers(13), 4, draw) == group


@pytest.mark.parametrize(
    "other", [Draw(RUN, 0, 6, 1), Draw(RUN, 0, 5, 2), Draw(RUN, 1, 5, 1), Draw(RunId("b"), 0, 5, 1)]
)
def test_round_mix_stage_and_run_each_draw_anew(other: Draw) -> None:
    one = split_into_groups(peers(24), 4, Draw(RUN, 0, 5, 1))
    assert one != split_into_groups(peers(24), 4, other)


def test_over_rounds_everybody_meets_everybody_about_equally_often() -> None:
    met: Counter[tuple[PeerId, PeerId]] = Counter()
    rounds = 2_000
    for number in range(rounds):
        for group in split_into_groups(peers(8), 2, Draw(RUN, 0, number, 1)):
            met[group[0], group[1]] += 1
    assert len(met) == 28
    expected = rounds * 4 / 28
    assert all(abs(count - expected) < 5 * expected**0.5 for count in met.values())


def test_sizes_that_the_run_names() -> None:
    draw = Draw(RUN, 0, 0, 1)
    assert split_into_groups(peers(9), 0, draw) == [tuple(peers(9))]
    assert all(len(group) == 1 for group in split_into_groups(peers(9), 1, draw))
    assert mix1_group_size(0, 16) == 0
    assert mix1_group_size(0, 17) == 8
    assert mix1_group_size(4, 40) == 4
    assert max(len(g) for g in split_into_groups(peers(200), 0, draw)) <= MEMBERS_MAX
    assert split_into_groups([], 4, draw) == []
    assert group_of(PeerId("stranger"), peers(4), 2, draw) == ("stranger",)


def test_a_newcomer_counts_from_the_round_it_named() -> None:
    present = {peer: 0 for peer in peers(3)} | {PeerId("new"): 5}
    assert taking_part(present, 4) == tuple(peers(3))
    assert taking_part(present, 5) == ("new", *peers(3))


def test_a_group_is_named_by_its_members_alone() -> None:
    assert group_digest(peers(3)) == group_digest(tuple(peers(3)))
    assert group_digest(peers(3)) != group_digest(peers(4))
    assert group_digest([PeerId("ab"), PeerId("c")]) != group_digest([PeerId("a"), PeerId("bc")])


# -------------------------------------------------------------------------------------- deadlines


def after(*durations_s: float) -> MixDeadline:
    deadline = MixDeadline(20.0)
    for duration_s in durations_s:
        deadline.observe(duration_s)
    return deadline


def test_deadline_follows_median_and_spread_between_floor_and_ceiling() -> None:
    assert after().seconds == 20.0
    assert after(1.0).seconds == 5.0
    assert after(600.0, 600.0).seconds == 20.0, "two are no rule yet"
    assert after(0.1, 0.1, 0.1, 0.1, 0.1).seconds == 2.0
    assert after(10.0, 11.0, 9.0, 10.0, 12.0).seconds == pytest.approx(16.0)
    assert after(10.0, 11.0, 9.0, 10.0, 12.0, 600.0).seconds == pytest.approx(16.5, abs=1.0)
    assert after(1.0, 9.0, 17.0, 25.0, 33.0).seconds == pytest.approx(53.0)


def test_an_exchange_cut_off_while_parts_flow_gives_the_next_more_time() -> None:
    deadline = after(10.0, 10.0, 10.0, 10.0, 10.0)
    assert deadline.seconds == 10.0
    deadline.missed(11.0)
    assert deadline.seconds == 20.0
    for _ in range(5):
        deadline.missed(11.0)
    assert deadline.seconds == 35.0, "the ceiling"
    deadline.observe(11.0)
    assert deadline.seconds == 11.0


@given(st.lists(st.floats(0.001, 1e4), max_size=40), st.floats(0, 5))
def test_times_come_in_the_order_in_which_they_are_spent(
    durations_s: list[float], grace: float
) -> None:
    times = after(*durations_s).times(100.0, grace)
    assert 100.0 < 100.0 + times.patience_s <= times.wait_until_s <= times.grace_until_s
    assert times.last_words_s >= 0.5


def test_grace_is_a_tenth_of_a_round_within_bounds() -> None:
    assert [grace_s(value) for value in (None, 3.0, 20.0, 600.0)] == [1.0, 1.0, 2.0, 5.0]
