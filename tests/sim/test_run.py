"""What `swarmd sim` is told and tells: options, exit codes, the report, the hunt for a seed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from command_line import swarmd

from swarmd.errors import UserError
from swarmd.protocols.audit import Audit, SampleRange
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.membership import Membership
from swarmd.protocols.own_record import OwnRecord
from swarmd.protocols.peer import PeerMachine
from swarmd.sim.gossip_peer import GossipPeer
from swarmd.sim.run import (
    INVARIANT_BROKEN,
    OK,
    PEER_CRASHED,
    TARGET_MISSED,
    SimOptions,
    Simulation,
    run,
)

SMALL = {"peers": 5, "stages": 2, "rounds": 2, "coordinator_only": True}


def test_report_begins_with_the_seed_and_ends_with_what_repeats_it() -> None:
    lines: list[str] = []
    result = run(SimOptions(peers=5, stages=2, rounds=2, seed=9, kill=1), lines.append)
    assert lines[0] == "seed 9"
    assert lines[-1] == "swarmd sim --peers 5 --stages 2 --rounds 2 --seed 9 --kill 1"
    assert (result.outcome, result.exit_code) == ("target_reached", OK)


def test_every_fault_drawn_is_printed() -> None:
    lines: list[str] = []
    result = run(SimOptions(**SMALL, seed=3), lines.append)
    assert result.faults_drawn
    assert [f"fault {text}" for text in result.faults_drawn] == [
        line for line in lines if line.startswith("fault ")
    ]


def test_trace_is_printed_only_when_asked_for() -> None:
    quiet: list[str] = []
    loud: list[str] = []
    a = run(SimOptions(**SMALL, seed=3), quiet.append)
    b = run(SimOptions(**SMALL, seed=3, trace=True), loud.append)
    assert a.trace_hash == b.trace_hash
    assert len(loud) > len(quiet) + 20
    assert any("peer_joined" in line for line in loud)


def test_trace_shows_when_a_partition_begins_and_when_it_heals() -> None:
    lines: list[str] = []
    run(SimOptions(**SMALL, seed=3, trace=True, scenario="partition_heal"), lines.append)
    told = [line.split() for line in lines if line[:10].strip()[:1].isdigit()]
    begun = [float(words[0]) for words in told if words[2:4] == ["fault", "partition"]]
    healed = [float(words[0]) for words in told if words[2] == "heal"]
    assert len(begun) == len(healed) == 1
    assert begun[0] < healed[0]


@pytest.mark.parametrize("coordinator_only", [True, False])
def test_clocks_that_differ_by_an_hour_change_nothing(coordinator_only: bool) -> None:
    """Not even a rounding: all origins lie between two powers of two."""
    hashes = set()
    for offsets_s in ((0.0,), (3600.0, -3600.0, 0.0), (-3600.0, 0.0)):
        options = SimOptions(**SMALL | {"rounds": 1, "coordinator_only": coordinator_only}, seed=3)
        simulation = Simulation(options, lambda line: None)
        for peer in simulation.cluster.peers:
            offset_s = offsets_s[peer.number % len(offsets_s)]
            peer.clock_origin_s = 1.5 * 2.0**17 + offset_s
        simulation.go()
        hashes.add(simulation.result().trace_hash)
    assert len(hashes) == 1


def test_json_has_the_documented_fields() -> None:
    made = json.loads(json.dumps(run(SimOptions(**SMALL, seed=1)).to_json()))
    documented = {
        "schema", "schema_version", "outcome", "exit_code", "seed", "command", "trace_hash",
        "events", "virtual_s", "faults_drawn", "violations", "rounds", "tokens_per_s",
        "bytes_per_peer_per_s", "messages_per_peer_per_s", "wait_share_by_reason",
    }  # fmt: skip
    assert documented <= set(made)
    assert made["schema"] == "swarmd.sim"


def test_kill_kills_so_many_for_good() -> None:
    result = run(SimOptions(**SMALL | {"peers": 8}, seed=2, kill=3))
    crashes = [text for text in result.faults_drawn if " crash " in text]
    assert len(crashes) == 3
    assert all("for good" in text for text in crashes)
    assert result.exit_code == OK


def test_given_network_is_not_drawn() -> None:
    calm = SimOptions(**SMALL, seed=4, rtt_s=0.02, loss=0.0, scenario="calm")
    assert run(calm).faults_drawn == ()
    assert "--rtt 20ms" in calm.command()


def test_broken_rule_exits_10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnRecord, "refute", lambda self, life: None)
    result = run(SimOptions(**SMALL | {"peers": 16, "rounds": 3}, seed=2, scenario="liars"))
    assert (result.outcome, result.exit_code) == ("invariant_broken", INVARIANT_BROKEN)
    assert any("false_death" in text for text in result.violations)


def test_swarm_that_does_not_settle_exits_11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "introduce", lambda self, peer, addresses: [])
    result = run(SimOptions(**SMALL, seed=1, scenario="calm"))
    assert (result.outcome, result.exit_code) == ("target_missed", TARGET_MISSED)
    assert result.violations


def test_machine_that_raises_exits_12(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: GossipPeer, now_s: float) -> list[object]:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(GossipPeer, "_work", broken)
    result = run(SimOptions(**SMALL, seed=1, scenario="calm"))
    assert (result.outcome, result.exit_code) == ("peer_crashed", PEER_CRASHED)
    assert any("a bug of ours" in text for text in result.violations)


def test_until_failure_stops_at_the_first_seed_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    work = GossipPeer._work

    def broken_later(self: GossipPeer, now_s: float) -> list[object]:
        if "seed 7" in seen:
            raise RuntimeError("only with seed 7")
        return list(work(self, now_s))

    monkeypatch.setattr(GossipPeer, "_work", broken_later)
    options = SimOptions(**SMALL, seed=5, scenario="calm", until_failure=True)
    result = run(options, seen.append)
    assert (result.seed, result.exit_code) == (7, PEER_CRASHED)
    assert "--seed 7" in result.command


@pytest.mark.parametrize(
    "wrong",
    [
        {"scenario": "no_such"},
        {"kill": 5},
        {"kill": -1},
        {"peers": 100_000},
        {"peers": 1},
        {"peers": 0, "stages": 0},
        {"rounds": -1},
        {"rounds": 10**9},
        {"loss": 2.0},
        {"loss": float("nan")},
        {"loss": -0.1},
        {"seed": -1},
        {"seed": 1 << 80},
        {"rtt_s": 1e9},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_the_users_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        run(SimOptions(**SMALL | wrong))
    assert (caught.value.code, caught.value.exit_code) == ("usage", 2)
    assert "\n" not in str(caught.value)


def test_lone_peer_trains_by_itself() -> None:
    assert run(SimOptions(peers=1, stages=1, rounds=1, seed=1)).exit_code == OK


def test_unclean_end_of_a_whole_peer_exits_10(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = LeaseBook.audit

    def with_a_gap(self: LeaseBook, now_s: float) -> Audit:
        return replace(audit(self, now_s), gaps=(SampleRange(0, 3, 0),))

    monkeypatch.setattr(LeaseBook, "audit", with_a_gap)
    result = run(SimOptions(peers=3, stages=2, rounds=1, seed=1, scenario="calm"))
    assert result.exit_code == INVARIANT_BROKEN
    assert any("unclean_end" in text for text in result.violations)


def test_round_that_falls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    review = PeerMachine._review

    def back(self: PeerMachine, now_s: float) -> list[Any]:
        effects = review(self, now_s)
        return [*effects, *self.membership.update_own(now_s, round=0)]

    monkeypatch.setattr(PeerMachine, "_review", back)
    result = run(SimOptions(peers=3, stages=2, rounds=1, seed=1, scenario="calm"))
    assert any("round_fell" in text for text in result.violations)


def test_until_failure_ends_when_its_seeds_are_used_up() -> None:
    options = SimOptions(**SMALL, seed=5, scenario="calm", until_failure=True, seeds_max=2)
    assert run(options).seed == 6


def test_who_asks_between_slices_changes_nothing_and_may_end_it() -> None:
    options, asked = SimOptions(**SMALL, seed=3), []
    assert run(options, between=lambda: asked.append(1)).trace_hash == run(options).trace_hash
    assert len(asked) > 100

    def enough() -> None:
        raise UserError("enough", code="timed_out", exit_code=124)

    with pytest.raises(UserError, match="enough"):
        run(options, between=enough)


@pytest.mark.parametrize("more", [(), ("--json",), ("--until-failure",)])
def test_a_timeout_ends_the_simulation_with_124(more: tuple[str, ...]) -> None:
    began_s = time.monotonic()
    found = swarmd("sim", "--peers", "60", "--timeout", "200ms", *more)
    assert found.code == 124
    assert "it was not done within 0.2 s (timed_out)" in found.err
    assert time.monotonic() - began_s < 10
