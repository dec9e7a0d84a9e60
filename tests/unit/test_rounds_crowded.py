"""Outer rounds of healthy replicas on a crowded machine: slow, late, out of step, and yet whole."""

from __future__ import annotations

from collections import Counter

import pytest
from mixing_world import Replica, World

from swarmd.protocols.messages import Message
from swarmd.protocols.messages import mixing as wire
from swarmd.protocols.mix_deadline import MixDeadline
from swarmd.protocols.mix_jobs import JobPace
from swarmd.protocols.outer_rules import OuterRules

RULES = OuterRules(mix1_wire="fp32", mix1_group=0, mix2_group=0)


def outcomes(world: World) -> Counter[str]:
    return Counter(fields["outcome"] for replica in world.replicas for fields in replica.rounds)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector of 96 has 24 parts, six to each of four reducers."""
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 4)


@pytest.mark.usefixtures("small_parts")
def test_parts_that_overtake_their_offer_are_not_sent_twice() -> None:
    sent: Counter[type] = Counter()

    def delay(a: Replica, b: Replica, message: Message) -> float:
        sent[type(message)] += 1
        return 0.2 if isinstance(message, wire.Offer) and not message.wants_reply else 0.0

    world = World(4, elements=96, rules=RULES, rounds=3)
    world.delay = delay
    world.start()
    world.run()
    world.assert_nothing_is_held()
    assert outcomes(world) == {"committed": 12}
    assert not sent[wire.NoRoom]
    parts_of_a_mix = 4 * 18  # each member has 18 parts that others reduce
    assert sent[wire.Part] == (2 + 3) * parts_of_a_mix, "round 0 has no Mix1"
    assert max(held for replica in world.replicas for held in replica.held_s) < 1.0


@pytest.mark.parametrize("moment_s", [0.02, 3.02, 3.05])
@pytest.mark.parametrize("seconds", [3.0, 30.0])
def test_a_machine_that_stands_still_as_a_whole_loses_no_round(
    moment_s: float, seconds: float
) -> None:
    world = World(4, rules=RULES, rounds=4)
    world.start()
    for replica in world.replicas:
        world.at(moment_s, lambda replica=replica: replica.freeze(seconds))  # type: ignore[misc]
    world.run()
    world.assert_nothing_is_held()
    assert outcomes(world) == {"committed": 16}
    assert world.disagreement() < 1e-9


@pytest.mark.usefixtures("small_parts")
def test_a_machine_that_becomes_slow_loses_no_round() -> None:
    """Each mix took a tenth of a second; from round 7 on it takes several, and the floor is two."""

    def slow_down(replica: Replica) -> None:
        replica.job_s = 0.002 if replica.round < 7 else 0.1

    world = World(4, elements=96, rules=RULES, rounds=12, inner_s=6.0)
    for replica in world.replicas:
        inner = replica.inner
        replica.inner = lambda r, inner=inner: (slow_down(r), inner(r))[1]  # type: ignore[misc]
    world.start()
    world.run()
    world.assert_nothing_is_held()
    held_s = [held for replica in world.replicas for held in replica.held_s]
    assert max(held_s) > 4.0, "the story is not told"
    assert outcomes(world) == {"committed": 48}


@pytest.mark.usefixtures("small_parts")
def test_on_a_slow_machine_too_a_frozen_replica_costs_less_than_a_round() -> None:
    world = World(4, elements=96, rules=RULES, rounds=12, inner_s=1.0)
    for replica in world.replicas:
        replica.job_s = 0.05
    frozen = world.replicas[2]
    world.start()
    world.run(until_s=30.0)
    usual_s = max(held for replica in world.replicas for held in replica.held_s)
    frozen.freeze()
    world.run(until_s=200.0)
    for replica in world.replicas:
        if replica is not frozen:
            assert len(replica.rounds) == 12
            assert max(replica.held_s) < 2 * usual_s + 1.0
            assert replica.last()["outcome"] == "partial"
            assert sum(held > 1.2 * usual_s for held in replica.held_s) <= 1


# ---------------------------------------------------------------------------------------- deadlines


def settled() -> MixDeadline:
    deadline = MixDeadline(20.0)
    for _ in range(6):
        deadline.observe(3.0, JobPace(seconds=1.0, jobs=100))
    return deadline


def test_an_exchange_gets_as_much_more_time_as_its_jobs_take_longer() -> None:
    deadline = settled()
    assert deadline.more_s(JobPace(seconds=0.1, jobs=10), 3.0) == pytest.approx(0.0)
    assert deadline.more_s(JobPace(seconds=0.5, jobs=10), 3.0) == pytest.approx(4.0)
    assert deadline.more_s(JobPace(seconds=0.05, jobs=10), 3.0) == 0.0, "never less"
    assert deadline.more_s(JobPace(seconds=90.0, jobs=10), 3.0) == 21.0, "within limits"
    assert deadline.more_s(JobPace(seconds=9.0, jobs=3), 3.0) == 0.0, "three say nothing"
    assert MixDeadline(20.0).more_s(JobPace(seconds=9.0, jobs=10), 3.0) == 0.0


def test_who_has_become_much_slower_has_time_enough_after_a_few_rounds() -> None:
    deadline = settled()
    misses = 0
    while deadline.seconds < 60.0:
        deadline.missed(60.0)
        misses += 1
    assert misses <= 5
    deadline.observe(2.9)
    assert deadline.seconds < 30.0, "as it was, once it is fast again"
