"""Outer rounds among replicas that are well: the mathematics, what is hidden, what is told.

Faults are in test_rounds_faults.py. Recipes: F5 and F13 through the machines, RND-01, RND-07.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mixing_world import SAMPLES, SHAPE, Replica, World, noise, optimum, spread

from swarmd.protocols.exchange_plan import WINDOW_SLOTS
from swarmd.protocols.mix_jobs import IN_FLIGHT_MAX
from swarmd.protocols.mixing import Draw, group_of
from swarmd.protocols.outer_rules import OuterRules


def fp32(**rules: object) -> OuterRules:
    return OuterRules(**({"mix1_wire": "fp32"} | rules))  # type: ignore[arg-type]


def mean_optimum(replicas: int) -> float:
    return sum(map(optimum, range(replicas))) / replicas


def model(world: World, rules: OuterRules, rounds: int) -> list[list[float]]:
    """The update of algorithms.md 2.2, written down once more, for scalar weights that drift."""
    ids = [replica.id for replica in world.replicas]
    count = len(ids)
    theta, momentum = [0.0] * count, [0.0] * count
    history = []
    for number in range(rounds):
        means: dict[int, list[float]] = {}
        d = [x - (x + 0.5 * (optimum(i) - x)) for i, x in enumerate(theta)]
        for mix, values, size in ((1, theta, rules.mix1_group), (2, d, rules.mix2_group)):
            means[mix] = []
            for peer in ids:
                draw = Draw(SHAPE.run_id, 0, number, mix)
                group = [ids.index(other) for other in group_of(peer, ids, size, draw)]
                means[mix].append(sum(values[i] for i in group) / len(group))
        for i in range(count):
            momentum[i] = rules.mu * momentum[i] + means[2][i]
            theta[i] = means[1][i] - rules.alpha * (means[2][i] + rules.mu * momentum[i])
        history.append(list(theta))
    return history


@pytest.mark.parametrize(
    "rules",
    [
        fp32(mix1_group=0, mix2_group=0),
        fp32(mix1_group=0, mix2_group=0, alpha=0.7, mu=0.9),
        fp32(mix1_group=0, mix2_group=1, alpha=0.7, mu=0.9),
        fp32(mix1_group=0, mix2_group=2),
        fp32(mix1_group=2, mix2_group=2, alpha=0.7, mu=0.9),
        fp32(mix1_group=1, mix2_group=2),
        fp32(mix1_group=1, mix2_group=1),
    ],
    ids=str,
)
def test_rounds_of_healthy_replicas_are_the_update_of_the_paper(rules: OuterRules) -> None:
    world = World(4, rules=rules, rounds=3)
    world.start()
    world.run()
    expected = model(world, rules, 3)[-1]
    for replica, value in zip(world.replicas, expected, strict=True):
        assert replica.weights == pytest.approx([value] * 12, abs=1e-12)
        assert replica.told["round_committed"] == 3
    world.assert_nothing_is_held()


def test_mix1_hides_behind_the_inner_phase_and_mix2_alone_blocks() -> None:
    world = World(4, rounds=3, latency_s=0.1)
    world.start()
    world.run()
    for replica in world.replicas:
        for fields in replica.rounds[1:]:
            assert fields["hidden_s"] == fields["mix1_s"] > 0.3
            assert fields["blocking_s"] == pytest.approx(fields["mix2_s"])
        assert max(replica.held_s) < 0.6


def test_what_mix1_does_not_finish_in_time_blocks_and_is_told_apart() -> None:
    world = World(3, rounds=3, latency_s=0.2, inner_s=0.3)
    world.start()
    world.run()
    for fields in world.replicas[0].rounds[1:]:
        assert fields["outcome"] == "committed"
        assert 0 < fields["hidden_s"] < fields["mix1_s"]
        blocked_s = fields["mix1_s"] - fields["hidden_s"] + fields["mix2_s"]
        assert fields["blocking_s"] == pytest.approx(blocked_s)


def test_a_run_whose_replicas_load_one_after_another_loses_nothing_of_round_0() -> None:
    """All begin with the seed's weights, so that round has no Mix1 for which they would differ."""
    world = World(4, rounds=3)
    for number, replica in enumerate(world.replicas):
        loaded = world.replicas[: number + 1]

        def load(replica: Replica = replica, loaded: list[Replica] = loaded) -> None:
            for other in loaded:
                other.see({peer.id: 0 for peer in loaded})
            replica.start()

        world.at(0.4 * number, load)
    world.run()
    for replica in world.replicas:
        assert [fields["outcome"] for fields in replica.rounds] == ["committed"] * 3
        assert [{part["mix"] for part in fields["parts"]} for fields in replica.rounds] == [
            {2}, {1, 2}, {1, 2},
        ]  # fmt: skip
    assert world.disagreement() < 1e-6


def test_a_blocking_mix1_is_over_before_the_inner_phase_begins() -> None:
    world = World(4, rules=fp32(mix1_blocking=True), rounds=3, latency_s=0.1)
    world.start()
    world.run()
    for replica in world.replicas:
        assert min(replica.held_s[:-1]) > 0.6, "Mix2 and the next Mix1, one after the other"
        for fields in replica.rounds[1:]:
            assert fields["hidden_s"] == 0.0
            assert fields["blocking_s"] == pytest.approx(fields["mix1_s"] + fields["mix2_s"])
        assert replica.told["round_committed"] == 3


def test_alone_at_full_step_the_start_is_remembered_and_nothing_waits() -> None:
    world = World(1, rounds=4)
    replica = world.replicas[0]
    world.start()
    world.run()
    assert replica.log == ["mix_snapshot"] * 4, "for whoever may come, and for guardians"
    assert max(replica.held_s) < 2 * replica.job_s, "one look at the weights a round"
    plain = 0.0
    for _ in range(4):
        plain = plain + 0.5 * (optimum(0) - plain)
    assert replica.weights == [plain] * 12, "bit for bit"
    assert [fields["outcome"] for fields in replica.rounds] == ["committed"] * 4
    assert replica.last()["planned"] == replica.last()["included"] == [replica.id]


def test_alone_with_momentum_it_is_the_plain_outer_step_and_waits_for_nobody() -> None:
    world = World(1, rules=fp32(alpha=0.7, mu=0.9), rounds=3)
    replica = world.replicas[0]

    def towards_eight(replica: Replica) -> None:
        replica.outer.weights = [w + 0.5 * (8 - w) for w in replica.weights]

    replica.inner = towards_eight
    world.start()
    world.run()
    # Recipe F1's independent replica 3.
    assert replica.weights == pytest.approx([11.259997] * 12)
    assert max(replica.held_s) < 0.05
    assert "mix_part" not in replica.log


def test_mix2_may_cover_a_part_of_the_weights() -> None:
    world = World(4, rules=fp32(mix1_group=1, mix2_group=0), covered=5, rounds=1)
    world.start()
    world.run()
    for replica in world.replicas:
        assert replica.weights[:5] == pytest.approx([mean_optimum(4) / 2] * 5)
        assert replica.weights[5:] == pytest.approx([optimum(replica.number) / 2] * 7)


def test_gradients_weigh_as_their_samples_and_starts_weigh_alike() -> None:
    world = World(2, rules=fp32(mix1_group=0, mix2_group=0), rounds=2)
    world.replicas[0].samples, world.replicas[1].samples = SAMPLES // 4, SAMPLES * 3 // 4
    world.start()
    world.run()
    # The mean of D is that towards the weighted mean of the optima.
    expected = (0.25 * optimum(0) + 0.75 * optimum(1)) * 3 / 4
    for replica in world.replicas:
        assert replica.weights == pytest.approx([expected] * 12)


def test_a_claim_beyond_what_neighbours_saw_carries_no_weight() -> None:
    world = World(2, rules=fp32(mix1_group=0, mix2_group=0), rounds=1)
    honest, boaster = world.replicas
    honest.samples = 8
    boaster.samples = 80
    for replica in world.replicas:
        replica.keeper.set_witnessed(0, {honest.id: 8, boaster.id: 8})
    world.start()
    world.run()
    assert honest.weights == pytest.approx([mean_optimum(2) / 2] * 12)


def test_no_claim_goes_beyond_what_a_round_has() -> None:
    world = World(2, rules=fp32(mix1_group=0, mix2_group=0), rounds=1)
    world.replicas[1].samples = 1_000_000
    world.start()
    world.run()
    assert world.replicas[0].weights == pytest.approx([mean_optimum(2) / 2] * 12)


@pytest.mark.parametrize(
    ("g1", "g2", "start"), [(4, 2, 0.5), (2, 2, 0.75), (4, 1, 1.1667), (8, 2, 0.4286)]
)
def test_disagreement_through_the_machines_settles_where_theory_says(
    g1: int, g2: int, start: float
) -> None:
    world = World(8, elements=60, rules=fp32(mix1_group=g1, mix2_group=g2), rounds=25, inner_s=0.5)
    for replica in world.replicas:
        replica.inner = noise
    world.start()
    world.run()
    found = [
        spread([replica.starts[number] for replica in world.replicas]) for number in range(5, 25)
    ]
    assert sum(found) / len(found) == pytest.approx(start, rel=0.15)
    world.assert_nothing_is_held()


def test_own_disagreement_is_told_every_round() -> None:
    world = World(4, rules=fp32(mix2_group=1), rounds=3)
    world.start()
    world.run()
    for replica in world.replicas:
        first, second, _ = (fields["disagreement"] for fields in replica.rounds)
        assert first in (0.0, None), "equal starts"
        x = optimum(replica.number) / 2
        d = 0.5 * (optimum(replica.number) - x)
        assert second == pytest.approx(abs(x - mean_optimum(4) / 2) / d)


# ------------------------------------------------------------------------------------ newcomers


def test_a_newcomer_takes_the_groups_mean_and_is_not_counted() -> None:
    world = World(4, rounds=6, rules=fp32(mix1_group=0, mix2_group=1))
    newcomer = world.replicas[3]
    newcomer.outer.weights = [1.6] * 12
    for replica in world.replicas[:3]:
        replica.inner = lambda replica: None
        replica.outer.weights = [float(replica.number)] * 12
        replica.start(1)
    newcomer.inner = lambda replica: None
    newcomer.start(1, joins=True)
    world.run(until_s=4.0)
    assert newcomer.weights == pytest.approx([1.0] * 12), "the mean of the others"
    for replica in world.replicas[:3]:
        assert replica.weights == pytest.approx([1.0] * 12), "its 1.6 moved nobody"
        assert newcomer.id not in replica.last()["planned"]
        assert replica.last()["outcome"] == "committed"
    world.run()
    assert newcomer.id in world.replicas[0].last()["included"], "the next round counts it"
    world.assert_nothing_is_held()


def test_a_stage_of_newcomers_only_comes_to_count_itself() -> None:
    world = World(3, rounds=8)
    for replica in world.replicas:
        replica.start(joins=True)
    world.run()
    for replica in world.replicas:
        assert replica.last()["outcome"] == "committed"
        assert len(replica.last()["included"]) == 3
    assert world.disagreement() < 1e-12


def when_next_begins(world: World, action: Callable[[], None]) -> None:
    """As soon as the first replica has gone on to its next round."""
    before = world.replicas[0].round

    def look() -> None:
        if world.replicas[0].round > before:
            action()
        else:
            world.after(0.01, look)

    look()


@pytest.mark.parametrize("tenth", range(10))
def test_joining_at_any_moment_of_a_round_costs_the_others_nothing(tenth: int) -> None:
    """RND-01: the replica says from which round on it mixes; until then nobody waits for it."""
    world = World(4, rounds=7)
    newcomer = world.replicas[3]
    newcomer.is_alive = False
    world.tell_roster()
    for replica in world.replicas[:3]:
        replica.start()

    def join() -> None:
        newcomer.is_alive = True
        newcomer.outer.weights = list(world.replicas[0].weights)
        now = world.replicas[0].round
        world.tell_roster(first={3: now + 2})
        when_next_begins(world, lambda: newcomer.start(now + 1, joins=True))

    world.at(3.05 + 0.3 * tenth, join)
    world.run()
    for replica in world.replicas[:3]:
        assert [fields["outcome"] for fields in replica.rounds] == ["committed"] * 7
        assert max(replica.held_s) < 1.5
        assert newcomer.id in replica.last()["included"]
    world.assert_nothing_is_held()


# -------------------------------------------------------------------------------- small matters


def test_a_short_last_round_and_then_nothing() -> None:
    world = World(2, rounds=2)
    world.start()
    world.run()
    for replica in world.replicas:
        assert replica.told["rounds/ended"] == 2
        statistics = replica.keeper.statistics(world.now_s)
        assert (statistics.committed, statistics.partial, statistics.skipped) == (2, 0, 0)
        sent = 3 * 2  # a part and a mean in each of three mixes
        assert statistics.raw_bytes_sent == statistics.wire_bytes_sent - sent * (16 + 8)
        assert statistics.comm_s_per_round is not None
        assert statistics.contributions == {peer.id: 2 for peer in world.replicas}


def test_phases_are_those_that_status_shows() -> None:
    world = World(2, rounds=1, latency_s=0.2)
    keeper = world.replicas[0].keeper
    assert keeper.view.phase == "inner"
    world.start()
    world.run(until_s=3.1)
    assert keeper.view.phase == "mix2"
    assert keeper.view.deadline_s is not None
    assert world.now_s < keeper.view.deadline_s < world.now_s + 10
    world.run()
    assert keeper.view.phase == "inner"


def test_many_parts_keep_to_a_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 5)
    world = World(4, elements=433, rounds=2)
    world.start()
    world.run()
    for replica in world.replicas:
        assert replica.told["round_committed"] == 2
        window = WINDOW_SLOTS // 5
        assert replica.slots.held_max <= 4 * window + 2 * window + IN_FLIGHT_MAX
    expected = model(world, fp32(mix1_group=0, mix2_group=0), 2)[-1][0]
    assert world.replicas[0].weights == pytest.approx([expected] * 433)
    world.assert_nothing_is_held()


def test_a_long_vector_is_mixed_beside_few_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """37 parts, and a worker that looks at its queue every half second only: the ten micro-batches
    of an inner phase are enough."""
    monkeypatch.setattr("swarmd.protocols.mix_parts.PART_ELEMENTS_MAX", 5)
    rules = fp32(mix1_group=0, mix2_group=1)
    world = World(2, elements=185, rounds=3, rules=rules, inner_s=5.0)
    for replica in world.replicas:
        replica.micro_batch_s = 0.5
    world.start()
    world.run()
    for replica in world.replicas:
        assert replica.told["round_committed"] == 3, "no part was given up"
        assert all(fields["hidden_s"] >= 0.95 * fields["mix1_s"] for fields in replica.rounds)
    world.assert_nothing_is_held()


def test_replies_to_a_round_told_twice_or_long_over_change_nothing() -> None:
    world = World(2, rounds=3)
    world.start()
    world.run(until_s=4.0)
    replica = world.replicas[0]
    ended = replica.keeper.inner_ended(0, SAMPLES, world.now_s)
    assert [effect.name for effect in ended if hasattr(effect, "name")] == ["rounds/ended"]
    assert replica.keeper.round == 1
