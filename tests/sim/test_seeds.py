"""Many seeds: drawn networks, drawn clocks, drawn faults; no rule is broken, and all come to rest.

How many: SWARMD_SIM_SEEDS (200) of the coordinator. A failing one prints the command that repeats
it. Whole peers cost some thirty times as much: here a few small swarms, and with --slow large ones
(SWARMD_WHOLE_SEEDS of them). docs/lab.md says what longer runs found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from swarmd.sim.run import OK, SimOptions, SimResult, Simulation, run
from swarmd.sim.scenarios import SCENARIOS

SEEDS = int(os.environ.get("SWARMD_SIM_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("SWARMD_SIM_FIRST_SEED", "0"))
WHOLE_SEEDS = int(os.environ.get("SWARMD_WHOLE_SEEDS", "4"))
CHUNKS = 100
"""Small ones, so that both workers have something to do until the end."""
WORKERS = max(1, min(2, os.cpu_count() or 1))
FAULTS = (
    "crash",
    "crash (disk lost)",
    "crash (host too)",
    "pause",
    "partition (both ways)",
    "partition (outwards)",
    "break_link",
    "clog",
    "slow_path",
    "slow_peer",
    "leave",
    "join",
    "lie",
)
KIND_SHARE_MIN = 0.1
"""Of the seeds, in which each kind of fault really happens."""


def options_of(seed: int) -> SimOptions:
    return SimOptions(peers=24, stages=4, rounds=20, seed=seed, coordinator_only=True)


def run_seeds(seeds: range) -> list[tuple[SimResult, Counter[str], float]]:
    """Each result with what happened to the swarm, and the processor time that it took."""
    done = []
    for seed in seeds:
        begun_s = time.process_time()
        simulation = Simulation(options_of(seed), lambda line: None)
        simulation.go()
        cost_s = time.process_time() - begun_s
        done.append((simulation.result(), simulation.plan.fired, cost_s))
    return done


@pytest.mark.process
def test_all_seeds_keep_the_rules_and_settle_and_every_kind_of_fault_is_among_them() -> None:
    """24 peers, 4 stages, faults for as long as 20 rounds of pretended work take."""
    size = -(-SEEDS // CHUNKS)
    end = FIRST_SEED + SEEDS
    chunks = [range(first, min(first + size, end)) for first in range(FIRST_SEED, end, size)]
    with ProcessPoolExecutor(WORKERS) as pool:
        done = [one for chunk in pool.map(run_seeds, chunks) for one in chunk]
    assert len(done) == SEEDS
    failed = [result for result, _, _ in done if result.exit_code != OK]
    for result in failed:
        print(result.command, *result.violations, sep="\n  ")
    assert not failed
    struck = Counter(name for _, fired, _ in done for name in fired)
    for name in FAULTS:
        total = sum(fired[name] for _, fired, _ in done)
        print(f"{name:<22} {total:6} times, in {struck[name]} of {SEEDS} seeds")
    print(f"{sum(cost_s for _, _, cost_s in done) / SEEDS:.2f} s of processor time a seed")
    rare = [name for name in FAULTS if struck[name] < KIND_SHARE_MIN * SEEDS]
    assert not rare
    assert struck.keys() <= set(FAULTS), "a kind of fault that nobody counts"


@pytest.mark.parametrize("seed", [1505, 3988, 4748])
def test_seed_that_once_broke_a_rule_keeps_it(seed: int) -> None:
    """1505: a pause of half of dead_after_s ended as a death (MembershipLimits.suspicion_s_min).
    Two that were the simulator's own: 3988, a peer was paused while it dialled and never heard how
    that had ended; 4748, all that a newcomer's link named had just left for good."""
    result = run(options_of(seed))
    assert result.exit_code == OK, result.violations


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + WHOLE_SEEDS))
def test_large_swarms_of_whole_peers_keep_the_rules_and_finish(seed: int) -> None:
    """As above, with leases, pipelines and mixes: twenty real rounds of two seconds."""
    options = SimOptions(peers=24, stages=4, rounds=20, seed=seed, round_s=2.0)
    result = run(options)
    print(result.command, result.events, "events", *result.faults_drawn, sep="\n  ")
    assert result.exit_code == OK, result.violations
    assert result.rounds >= 20


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_scenario_keeps_the_rules_and_settles(name: str) -> None:
    options = SimOptions(peers=8, stages=2, rounds=4, seed=11, scenario=name, coordinator_only=True)
    result = run(options)
    assert result.exit_code == OK, result.violations


@pytest.mark.parametrize("name", ["calm", "founder_dies", "mass_leave", "partition_heal"])
def test_whole_peers_bear_the_scenario_and_finish_their_run(name: str) -> None:
    result = run(SimOptions(peers=6, stages=2, rounds=2, seed=11, scenario=name))
    assert result.exit_code == OK, result.violations
    assert result.tokens_per_s is not None
    assert result.tokens_per_s > 0
    assert sum(result.wait_share_by_reason.values()) == pytest.approx(1.0, abs=0.01)


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    for coordinator_only in (True, False):
        options = SimOptions(peers=6, stages=2, rounds=2, seed=5, coordinator_only=coordinator_only)
        first, second = run(options), run(options)
        assert first == second
        assert first.trace_hash != run(replace(options, seed=6)).trace_hash


def test_encoding_every_message_for_real_changes_nothing_that_peers_see() -> None:
    """Every message is within its own bounds, and the estimated sizes are close."""
    options = SimOptions(
        peers=8,
        stages=2,
        rounds=2,
        seed=5,
        bandwidth_bytes_per_s=1e12,
        coordinator_only=True,
    )
    near, exact = run(options), run(replace(options, exact=True))
    assert exact.exit_code == OK
    assert near.bytes_per_peer_per_s == pytest.approx(exact.bytes_per_peer_per_s, rel=0.05)


def test_whole_peers_send_only_what_can_be_encoded() -> None:
    result = run(SimOptions(peers=4, stages=2, rounds=1, seed=5, scenario="calm", exact=True))
    assert result.exit_code == OK, result.violations


@pytest.mark.process
def test_trace_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import json; from swarmd.sim.run import SimOptions, run;"
        "kinds = [(3, True), (3, False)];"
        "results = [run(SimOptions(peers=6, stages=2, rounds=2, seed=s, coordinator_only=c))"
        " for s, c in kinds];"
        "print(json.dumps([r.trace_hash for r in results]))"
    )
    hashes = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        hashes.append(json.loads(done.stdout))
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[0][1]


@pytest.mark.process
def test_simulator_loads_neither_torch_nor_trio() -> None:
    program = (
        "import sys, swarmd.sim.run;"
        "print([m for m in ('torch', 'trio', 'numpy', 'libp2p', 'socket') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
