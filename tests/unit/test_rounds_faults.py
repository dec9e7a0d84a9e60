"""Outer rounds among replicas that freeze, die, come late, lie, or see another roster.

Recipe F13; RND-02 to RND-05, SEC-01 as far as messages go. What is true of every case is checked by
`check_invariants`: rounds end, no slot is kept, numbers are finite, and reports tell the truth.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from mixing_world import SAMPLES, Replica, World, noise, optimum, spread

from swarmd.protocols.messages import Message
from swarmd.protocols.messages import mixing as wire
from swarmd.protocols.mixing import MIX2
from swarmd.protocols.outer_rules import OuterRules
from swarmd.sim.fake_outer import Values

RULES = OuterRules(mix1_wire="fp32", mix1_group=0, mix2_group=0)


def check_invariants(world: World) -> None:
    world.assert_nothing_is_held()
    for replica in world.alive():
        assert all(map(math.isfinite, replica.weights))
        numbers = [fields["round"] for fields in replica.rounds]
        assert numbers == sorted(set(numbers)), "a round ended twice"
        for fields in replica.rounds:
            check_that_report_is_true(world, replica, fields)


def check_that_report_is_true(world: World, replica: Replica, fields: dict) -> None:  # type: ignore[type-arg]
    """What each part was stepped with is the mean of the outer gradients of those it names."""
    number = fields["round"]
    stepped = replica.stepped_with.get(number, {})
    if number not in replica.gradients or not stepped or fields["was_reset"]:
        return
    told = Counter({tuple(p["included"]): p["parts"] for p in fields["parts"] if p["mix"] == MIX2})
    by_id = {other.id: other for other in world.replicas}
    part_size = -(-len(replica.weights) // max(1, sum(told.values())))
    found: Counter[tuple[str, ...]] = Counter()
    for first in range(0, len(replica.weights), part_size) if told else ():
        for included in told:
            if any(number not in by_id[peer].gradients for peer in included):
                continue
            mean = math.fsum(by_id[peer].gradients[number][first] for peer in included)
            if math.isclose(stepped[first], mean / len(included), abs_tol=1e-9):
                found[included] += 1
                break
    assert found == told, f"{replica.id} round {number}"


def outcomes(replica: Replica) -> list[str]:
    return [fields["outcome"] for fields in replica.rounds]


def missing(replica: Replica, number: int) -> dict[str, str]:
    fields = next(fields for fields in replica.rounds if fields["round"] == number)
    return {entry["peer"]: entry["code"] for entry in fields["missing"]}


# -------------------------------------------------------------------------------------- RND-02


@pytest.mark.parametrize("moment_s", [0.005, 0.02, 1.5, 3.02, 3.045, 3.06, 4.5, 6.08])
def test_a_frozen_replica_costs_the_others_one_deadline_and_no_more(moment_s: float) -> None:
    world = World(4, rules=RULES, rounds=8)
    frozen = world.replicas[2]
    world.start()
    world.at(moment_s, frozen.freeze)
    world.run(until_s=200.0)
    for replica in world.replicas:
        if replica is frozen:
            continue
        assert len(replica.rounds) == 8
        waited = [held for held in replica.held_s if held > 1.0]
        assert len(waited) <= 1, replica.held_s
        assert sum(replica.held_s) < 5.0 + 8 * 0.2
        assert missing(replica, 7) == {frozen.id: "silent"}
        assert frozen.id not in replica.last()["included"]
        assert len(replica.last()["included"]) == 3
        assert len(replica.slots) == 0
    survivors = [replica.weights for replica in world.replicas if replica is not frozen]
    assert survivors[0] == pytest.approx(survivors[1], abs=0.2)


def test_a_frozen_replica_that_wakes_up_is_waited_for_again() -> None:
    world = World(4, rules=RULES, rounds=12, leaves_behind=True)
    frozen = world.replicas[2]
    world.start()
    world.at(4.0, lambda: frozen.freeze(15.0))
    world.run()
    check_invariants(world)
    for replica in world.replicas:
        if replica is not frozen:
            assert outcomes(replica)[-2:] == ["committed"] * 2
            assert len(replica.last()["included"]) == 4
    assert "skipped" in outcomes(frozen), "it finds itself out of date, and says so"
    assert outcomes(frozen)[-1] == "committed"
    assert world.disagreement() < 1e-6


@pytest.mark.parametrize("seconds", [8.0, 12.0])
@pytest.mark.parametrize("moment_s", [6.06, 6.08])
def test_who_slept_for_rounds_is_mixed_with_again_in_the_first_that_it_is_awake_for(
    moment_s: float, seconds: float
) -> None:
    """What it sends of the round in which it fell asleep is refused, and not held against it."""
    world = World(2, rules=RULES, rounds=16, leaves_behind=True)
    awake, sleeper = world.replicas
    world.start()
    world.at(moment_s, lambda: sleeper.freeze(seconds))
    world.run(until_s=moment_s + seconds)
    asleep_in = awake.round
    world.run()
    check_invariants(world)
    for replica in world.replicas:
        later = [f["outcome"] for f in replica.rounds if f["round"] > asleep_in + 1]
        assert len(later) >= 5
        assert later == ["committed"] * len(later)


@pytest.mark.parametrize("seconds", [0.3, 2.0])
@pytest.mark.parametrize("moment_s", [0.01, 2.9, 3.03, 3.05])
def test_a_short_freeze_heals(moment_s: float, seconds: float) -> None:
    world = World(4, rules=RULES, rounds=6)
    world.start()
    world.at(moment_s, lambda: world.replicas[1].freeze(seconds))
    world.run()
    check_invariants(world)
    for replica in world.replicas:
        assert outcomes(replica)[-3:] == ["committed"] * 3


# -------------------------------------------------------------------------------------- RND-03


@pytest.mark.parametrize("step", range(24))
def test_killed_in_the_middle_survivors_say_who_was_in_part_by_part(step: int) -> None:
    """The sweep covers Mix2 of round 0 and Mix1 of round 1, job by job."""
    world = World(4, rules=RULES, rounds=6)
    victim = world.replicas[1]
    world.start()
    world.at(3.0005 + 0.004 * step, lambda: world.kill(victim))
    world.at(8.0, world.tell_roster)
    world.run()
    check_invariants(world)
    for replica in world.alive():
        assert max(replica.held_s) < 1.0, "a closed link is not waited for"
        assert set(outcomes(replica)) <= {"committed", "partial"}
        assert outcomes(replica)[-2:] == ["committed"] * 2
        assert len(replica.last()["included"]) == 3


@pytest.mark.parametrize("moment_s", [3.012, 3.02, 3.03])
def test_what_a_killed_reducer_left_undone_is_reduced_by_the_others(
    moment_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 4)
    world = World(4, elements=96, rules=RULES, rounds=2)
    victim = world.replicas[1]
    world.start()
    world.at(moment_s, lambda: world.kill(victim))
    world.run()
    check_invariants(world)
    told = []
    for replica in world.alive():
        assert max(replica.held_s) < 1.0, "a closed link is not waited for"
        parts = [part for part in replica.rounds[0]["parts"] if part["mix"] == MIX2]
        assert sum(part["parts"] for part in parts) == 24
        assert all(len(part["included"]) >= 3 for part in parts), parts
        told.append(parts)
    assert told[0] == told[1] == told[2], "survivors agree on who was in"
    first, *others = [replica.stepped_with[0] for replica in world.alive()]
    assert all(other == first for other in others), "and hold the same"


def test_survivors_that_hold_different_parts_agree_again_after_the_next_mixes() -> None:
    world = World(4, rules=RULES, rounds=7)
    victim, far = world.replicas[1], world.replicas[3]
    is_far = {victim: {far}}
    world.delay = lambda a, b, m: 0.05 if b in is_far.get(a, ()) else 0.0
    world.start()
    world.at(3.06, lambda: world.kill(victim))
    world.at(4.0, world.tell_roster)
    by_round: list[float] = []
    for number in range(1, 7):
        world.run(until_s=3.04 * (number + 1) - 0.5)
        by_round.append(world.disagreement())
    world.run()
    check_invariants(world)
    assert by_round[-1] <= 1e-9, by_round
    parts = [part for replica in world.alive() for part in replica.rounds[0]["parts"]]
    assert len({tuple(p["included"]) for p in parts if p["mix"] == MIX2}) > 1, "no part differed"


@pytest.mark.parametrize("seed", [3, 8, 19])
def test_a_freeze_and_a_kill_in_one_mix_leave_survivors_apart_for_one_round_at_most(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 seeds only 8 and 19 leave them apart at all: some had taken a mean of the killed one
    and others had not, while the frozen one was waited for. Inner phases are all noise, of variance
    1, so nothing but the mixes brings replicas together."""
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 4)
    world = World(5, elements=96, rules=RULES, rounds=5, seed=seed)
    rng = random.Random(seed)
    frozen, victim = rng.sample(world.replicas, 2)
    for replica in world.replicas:
        replica.inner = noise
    world.delay = lambda a, b, m: rng.uniform(0.0, 0.08)
    world.start()
    world.run(until_s=9.0)
    ends_s = world.inner_end_s(2)
    moments = sorted((rng.uniform(0.02, 0.2), rng.uniform(0.02, 0.2)), reverse=rng.random() < 0.5)
    world.at(ends_s + moments[0], frozen.freeze)
    world.at(ends_s + moments[1], lambda: world.kill(victim))
    world.run(until_s=200.0)
    survivors = [replica for replica in world.alive() if replica is not frozen]
    apart = [spread([replica.starts[number] for replica in survivors]) for number in range(5)]
    assert apart[:3] == pytest.approx([0.0] * 3), apart
    assert apart[3] < 0.01, "a hundredth of what an inner phase adds"
    assert (apart[3] > 1e-4) is (seed != 3), f"look for seeds that leave them apart: {apart}"
    assert apart[4] == pytest.approx(0.0), "the next round brings them together"
    for replica in survivors:
        assert [fields["round"] for fields in replica.rounds] == list(range(5))
        assert outcomes(replica)[2] == "partial"


def test_four_become_three_at_once_when_the_roster_says_so() -> None:
    world = World(4, rules=RULES, rounds=6)
    world.start()

    def leave() -> None:
        world.kill(world.replicas[0])
        world.tell_roster()

    world.at(4.5, leave)
    world.run()
    check_invariants(world)
    for replica in world.alive():
        assert outcomes(replica).count("committed") >= 5
        assert len(replica.last()["planned"]) == 3


def test_one_lost_reply_costs_one_part_of_one_replica() -> None:
    world = World(4, rules=RULES, rounds=4)
    lost: list[Message] = []

    def lose_one(sender: Replica, receiver: Replica, message: Message) -> float | None:
        is_it = isinstance(message, wire.Mean) and message.ref.mix == MIX2
        if is_it and receiver is world.replicas[0] and not lost:
            lost.append(message)
            return None
        return 0.0

    world.delay = lose_one
    world.start()
    world.run()
    check_invariants(world)
    assert outcomes(world.replicas[0])[0] == "partial"
    assert all(outcomes(replica)[0] == "committed" for replica in world.replicas[1:])
    for replica in world.replicas:
        assert outcomes(replica)[2:] == ["committed"] * 2


def test_a_lost_worker_is_told_and_not_waited_for() -> None:
    world = World(4, rules=RULES, rounds=4)
    lost = world.replicas[3]
    world.start()
    world.at(3.005, lost.lose_worker)
    world.run()
    for replica in world.replicas[:3]:
        assert len(replica.rounds) == 4
        assert max(replica.held_s) < 0.5
        assert missing(replica, 0)[lost.id] == "withdrawn"
        assert len(replica.slots) == 0
    assert len(lost.slots) == 0
    assert lost.keeper.round is None


def test_a_replica_that_stops_lets_its_pipeline_go_and_the_others_too() -> None:
    world = World(3, rules=RULES, rounds=3)
    leaver = world.replicas[0]
    world.start()
    world.at(3.02, lambda: leaver.carry_out(leaver.keeper.stop(world.now_s)))
    world.run()
    assert leaver.told["rounds/ended"] == 3
    assert max(leaver.held_s) < 0.5
    assert len(leaver.slots) == 0
    for replica in world.replicas[1:]:
        assert max(replica.held_s) < 0.5
        assert len(replica.rounds) == 3


# -------------------------------------------------------------------------------------- RND-04


def late_by(world: World, seconds: float) -> None:
    """The inner phase of round 3 takes replica 0 longer."""
    world.replicas[0].backlog_s = lambda number: seconds if number == 3 else 0.0


def test_an_update_that_comes_within_the_grace_is_used() -> None:
    """Deadlines are 2 s by then, of which 1.6 s are for waiting; the grace is 1 s more."""
    world = World(4, rules=RULES, rounds=7)
    late_by(world, 2.3)
    world.start()
    world.run()
    check_invariants(world)
    for replica in world.replicas:
        assert outcomes(replica) == ["committed"] * 7
        assert replica.told["update_late"] == 0
        assert max(replica.held_s) < 3.6


def test_an_update_after_the_grace_is_left_out_and_carried_by_the_next_mix() -> None:
    world = World(4, rules=RULES, rounds=8)
    late_by(world, 4.5)
    world.start()
    world.run()
    check_invariants(world)
    late = world.replicas[0]
    for replica in world.replicas[1:]:
        assert missing(replica, 3) == {late.id: "late"}
        assert max(replica.held_s) < 4.5
        assert replica.keeper.statistics(world.now_s).late_updates == 1
        assert outcomes(replica)[-2:] == ["committed"] * 2
    assert late.keeper.statistics(world.now_s).late_updates >= 1
    assert late.stepped_with[3][0] == pytest.approx(late.gradients[3][0]), "its own update"
    assert world.disagreement() < 1e-9, "Mix1 has carried it"


# -------------------------------------------------------------------------------------- RND-05


def test_a_thin_link_costs_its_owner_and_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the bandwidth: it brings what it can, the others pass by their deadline."""
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 4)
    world = World(4, elements=96, rules=RULES, rounds=8, latency_s=0.01, inner_s=20.0)
    thin = world.replicas[3]

    def delay(sender: Replica, receiver: Replica, message: Message) -> float:
        is_heavy = isinstance(message, wire.Part | wire.Mean)
        if not is_heavy or thin not in (sender, receiver):
            return 0.0
        return 0.4

    world.delay = delay
    world.start()
    world.run()
    check_invariants(world)
    for replica in world.replicas[:3]:
        assert len(replica.rounds) == 8
        assert max(replica.held_s[2:]) < 8.0
        included = {tuple(p["included"]) for p in replica.last()["parts"]}
        assert all(set(world_ids(world)[:3]) <= set(peers) for peers in included if len(peers) > 1)


def world_ids(world: World) -> list[str]:
    return [replica.id for replica in world.replicas]


# ------------------------------------------------------------------------------------- SEC-01


def spoil_with(number: float) -> object:
    def spoil(message: Message, values: Values) -> Values:
        return Values(values.first, (number, *values.numbers[1:]))

    return spoil


def scale_by(factor: float) -> object:
    def spoil(message: Message, values: Values) -> Values:
        return Values(values.first, tuple(factor * x for x in values.numbers))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (spoil_with(float("nan")), "not_finite"),
        (spoil_with(float("inf")), "not_finite"),
        (scale_by(1_000.0), "norm_too_large"),
        (scale_by(-1_000.0), "norm_too_large"),
    ],
    ids=["nan", "inf", "x1000", "-x1000"],
)
@pytest.mark.parametrize("replicas", [2, pytest.param(5)])
def test_a_spoilt_contribution_is_left_out_and_its_sender_named(
    replicas: int, spoil: object, code: str
) -> None:
    world = World(replicas, elements=20, rules=RULES, rounds=6)
    liar = world.replicas[1]

    def lie_from_now_on() -> None:
        liar.spoil = spoil  # type: ignore[assignment]

    world.start()
    world.at(6.5, lie_from_now_on)
    world.run()
    world.assert_nothing_is_held()
    for replica in world.replicas:
        if replica is liar:
            continue
        rejected = [f for name, f in replica.events if name == "update_rejected"]
        assert {(f["peer"], f["code"]) for f in rejected} == {(liar.id, code)}
        assert replica.keeper.statistics(world.now_s).rejected_updates >= 1
        assert missing(replica, 5)[liar.id] == code
        assert replica.last()["included"] == [r.id for r in world.replicas if r is not liar]
        honest = [optimum(other.number) for other in world.replicas if other is not liar]
        for weight in replica.weights:
            assert 0.95 * min(honest) < weight < 1.01 * max(honest), "it moved nobody"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ref: replace(ref, stage=1), "wrong_stage"),
        (lambda ref: replace(ref, round=10_000), "wrong_round"),
        (lambda ref: replace(ref, round=max(0, ref.round - 3)), "wrong_round"),
    ],
    ids=["stage", "future", "past"],
)
def test_messages_of_another_stage_or_round_are_refused_and_counted(
    change: object, code: str
) -> None:
    world = World(3, rules=RULES, rounds=6)
    liar = world.replicas[0]

    def rewrite(message: Message) -> Message:
        if isinstance(message, wire.Offer | wire.Part) and message.ref.round >= 3:
            return replace(message, ref=change(message.ref))  # type: ignore[operator]
        return message

    liar.rewrite = rewrite
    world.start()
    world.run()
    for replica in world.replicas[1:]:
        assert len(replica.slots) == 0
        assert len(replica.rounds) == 6
        rejected = [f for name, f in replica.events if name == "update_rejected"]
        assert {(f["peer"], f["code"]) for f in rejected} == {(liar.id, code)}
        assert len(replica.last()["included"]) == 2


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("elements", 13, "wrong_shape"), ("wire", "int8", "wrong_dtype")],
)
def test_an_offer_of_another_vector_is_refused_at_once(
    field: str, value: object, code: str
) -> None:
    world = World(3, rules=RULES, rounds=3)
    liar = world.replicas[0]

    def rewrite(message: Message) -> Message:
        return replace(message, **{field: value}) if isinstance(message, wire.Offer) else message

    liar.rewrite = rewrite
    world.start()
    world.run()
    for replica in world.replicas[1:]:
        assert missing(replica, 0)[liar.id] == code
        assert max(replica.held_s) < 0.5
        assert len(replica.slots) == 0


def test_an_honest_replica_is_never_rejected() -> None:
    for seed in range(3):
        world = World(5, elements=25, rules=RULES, rounds=10, seed=seed)
        rng = random.Random(seed)
        for replica in world.replicas:
            replica.samples = rng.choice([1, 4, SAMPLES])
            replica.inner = noise
        world.start()
        world.run()
        for replica in world.replicas:
            assert replica.told["update_rejected"] == 0, f"seed {seed}"
            assert outcomes(replica) == ["committed"] * 10


def test_strangers_and_forged_means_change_nothing() -> None:
    world = World(3, rules=RULES, rounds=3)
    plain = World(3, rules=RULES, rounds=3)
    liar = world.replicas[2]

    def rewrite(message: Message) -> Message:
        if isinstance(message, wire.Mean) and message.part != 0:
            return replace(message, part=0)
        return message

    for each in (world, plain):
        each.start()
    liar.rewrite = rewrite
    world.run()
    plain.run()
    for replica in world.replicas:
        assert len(replica.slots) == 0
        assert len(replica.rounds) == 3


# ------------------------------------------------------------------------------------- rosters


def test_peers_of_different_rosters_find_out_at_once() -> None:
    world = World(4, rules=RULES, rounds=4)
    world.start()
    three = {replica.id: 0 for replica in world.replicas[:3]}
    world.at(4.0, lambda: world.replicas[0].see(three))
    world.at(8.0, world.tell_roster)
    world.run()
    check_invariants(world)
    for replica in world.replicas:
        assert max(replica.held_s) < 0.5, "nobody waited for a deadline"
        assert outcomes(replica)[3] == "committed"
    assert set(missing(world.replicas[0], 1).values()) == {"wrong_group"}
    others = missing(world.replicas[1], 1)
    assert others == {world.replicas[0].id: "wrong_group"}


# ------------------------------------------------------------------------------------ transport


def test_where_no_slot_is_free_payloads_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 4)
    world = World(4, elements=64, rules=RULES, rounds=3)
    for replica in world.replicas:
        replica.slots.free_max = 8
    world.start()
    world.run()
    check_invariants(world)
    refused = sum(replica.refused_payloads for replica in world.replicas)
    assert refused > 0, "there was room: this shows nothing"
    for replica in world.replicas:
        assert outcomes(replica) == ["committed"] * 3


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_rounds_end_and_reports_are_true(seed: int) -> None:
    print(f"seed {seed}")
    world = World(4, elements=16, rules=RULES, rounds=5, seed=seed)
    rng = world.rng

    def lossy(sender: Replica, receiver: Replica, message: Message) -> float | None:
        return None if rng.random() < 0.05 else rng.choice([0.0, 0.0, 0.05])

    world.delay = lossy
    world.start()
    world.run()
    check_invariants(world)
    for replica in world.replicas:
        assert len(replica.rounds) >= 5


@pytest.mark.parametrize("seed", range(20))
def test_in_any_weather_rounds_end_slots_return_and_reports_are_true(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rules = rng.choice(
        [
            RULES,
            replace(RULES, mix2_group=2),
            replace(RULES, mix1_group=2, mix2_group=2, alpha=0.7, mu=0.9),
            replace(RULES, mix2_group=1),
            replace(RULES, mix1_blocking=True),
        ]
    )
    world = World(5, elements=20, rules=rules, rounds=6, seed=seed, leaves_behind=True)
    world.start()
    world.at(rng.uniform(0, 8), lambda: world.replicas[0].freeze(rng.uniform(0.1, 6)))
    world.at(rng.uniform(0, 8), lambda: world.replicas[1].freeze(rng.uniform(0.1, 6)))
    if seed % 2:
        world.at(rng.uniform(0, 12), lambda: world.kill(world.replicas[2]))
        world.at(13.0, world.tell_roster)
    if seed % 3 == 0:
        world.replicas[3].slots.free_max = 3
    world.delay = lambda a, b, m: rng.choice([0.0, 0.0, 0.0, 0.1])
    world.run()
    check_invariants(world)


def test_the_same_seed_replays_the_same() -> None:
    def once() -> list[object]:
        world = World(4, elements=8, rules=replace(RULES, mix2_group=2), rounds=4, seed=3)
        world.delay = lambda a, b, m: world.rng.choice([0.0, 0.03])
        world.start()
        world.at(3.01, lambda: world.kill(world.replicas[3]))
        world.run()
        return [(replica.rounds, replica.weights) for replica in world.replicas]

    assert once() == once()
