"""Outer rounds between real daemons: a replica is stopped, another is killed, the rest go on.

Four replicas of a whole small model. What is asserted holds at any speed: who was in which round,
how long a round was held against its own deadline, how far replicas are apart. How long rounds take
stands in docs/lab.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from real_swarm import RealSwarm, real_swarm
from small_replicas import LOSS_FIRST, REPLICAS, run_file, wait_for_round

from swarmd.json_record import unix_s

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]


@pytest.fixture
def swarm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RealSwarm]:
    rounds, mix2_group = request.param
    run = run_file(tmp_path, rounds=rounds, mix2_group=mix2_group)
    with real_swarm(tmp_path / "swarm", run) as found:
        found.start(REPLICAS, stages=1)
        yield found


@pytest.mark.parametrize("swarm", [(21, 2)], indirect=True)
def test_disagreement_stays_bounded_over_twenty_rounds(swarm: RealSwarm) -> None:
    """Mix1 over all, Mix2 in pairs. Where steps are all noise, theory has a start half an outer
    gradient from the mean (0.5 = sqrt(rho2 (1 - 1/M)) for M = 4, rho2 = 1/3); falling learning
    rates add to it, and what all replicas learn alike takes from it."""
    swarm.wait_until_ended(*range(REPLICAS))
    for number in range(REPLICAS):
        rounds = swarm.rounds(number)
        assert [fields["round"] for fields in rounds] == list(range(21))
        told = [fields["disagreement"] for fields in rounds if fields["disagreement"] is not None]
        assert len(told) >= 15
        assert max(told) < 1.0, told
        assert not any(fields["was_reset"] for fields in rounds)
        status = swarm.last_status(number)
        assert status["totals"]["rounds_skipped"] == 0
        assert status["progress"]["loss_last_tenth"] < 0.7 * LOSS_FIRST


@pytest.mark.parametrize("swarm", [(30, 0)], indirect=True)
def test_one_stopped_and_one_killed_cost_the_others_a_deadline_each(swarm: RealSwarm) -> None:
    ids = [swarm.id_of(number) for number in range(REPLICAS)]
    wait_for_round(swarm, 5)
    swarm.freeze(3)
    frozen_from = len(swarm.rounds(0))
    wait_for_round(swarm, frozen_from + 6)
    swarm.kill(2)
    killed_from = len(swarm.rounds(0))
    swarm.wait_until_ended(0, 1)
    for number in (0, 1):
        rounds = swarm.rounds(number)
        assert [fields["round"] for fields in rounds] == list(range(30)), "none is left out"
        in_all = [fields["round"] for fields in rounds if sorted(fields["included"]) == sorted(ids)]
        assert in_all, "all four have mixed before"
        assert max(in_all) <= frozen_from + 1, "what a stopped one cannot have brought is not in"
        with_killed = [fields["round"] for fields in rounds if ids[2] in fields["included"]]
        assert max(with_killed) <= killed_from + 1
        usual_s = max(fields["blocking_s"] for fields in rounds[1:frozen_from])
        held = [f["round"] for f in rounds[frozen_from:] if f["blocking_s"] > 3 * usual_s + 10.0]
        assert len(held) <= 2, f"{held}: more than the round that met each of them"
        status = swarm.last_status(number)
        assert status["progress"]["loss_last_tenth"] < 0.7 * LOSS_FIRST


@pytest.mark.parametrize("swarm", [(24, 0)], indirect=True)
def test_when_one_of_four_leaves_three_mix_on_and_nobody_is_waited_for(swarm: RealSwarm) -> None:
    ids = [swarm.id_of(number) for number in range(REPLICAS)]
    wait_for_round(swarm, 9)
    swarm.leave(3)
    left_in = len(swarm.rounds(0))
    swarm.wait_until_ended(*range(REPLICAS))
    assert swarm.processes.peers[3].exit_code == 0
    for number in range(3):
        rounds = swarm.rounds(number)
        assert [fields["round"] for fields in rounds] == list(range(24)), "none is left out"
        after = rounds[left_in + 2 :]
        assert len(after) >= 10
        for fields in after:
            assert set(fields["planned"]) == set(ids[:3]), "the one that left is not expected"
            assert not fields["missing"]
        lengths = [ended_s(two) - ended_s(one) for one, two in pairwise(rounds)]
        for name, some in (
            ("before", range(2, left_in)),
            ("when it left", range(left_in, left_in + 2)),
            ("after", range(left_in + 2, 24)),
        ):
            show(f"p{number} {name}", [lengths[n - 1] for n in some], [rounds[n] for n in some])


def ended_s(fields: dict[str, Any]) -> float:
    return unix_s(fields["at"])


def show(name: str, lengths_s: list[float], rounds: list[dict[str, Any]]) -> None:
    """What `-s` prints: a round's medians, and its longest."""
    held_s = [fields["held_s"] for fields in rounds]
    print(
        f"{name}: {len(rounds)} rounds of {median(lengths_s):.1f} s (longest {max(lengths_s):.1f}),"
        f" held {median(held_s):.2f} s (longest {max(held_s):.2f})"
    )
