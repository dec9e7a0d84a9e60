"""What is looked at now and then for the status: speed, traffic, memory, who was refused."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.machine_memory import memory_total_bytes
from swarmd.node.device_shown import device_shown
from swarmd.node.recent_rounds import ROUNDS, RecentRounds
from swarmd.node.refusals_shown import refusals_shown
from swarmd.node.resources import ResourceMeter
from swarmd.node.swarm_speed import SETTLE_S, WINDOW_S, SwarmSpeed
from swarmd.node.traffic_rates import TrafficRates
from swarmd.peer_config import PeerConfig
from swarmd.protocols.ids import PeerId
from swarmd.protocols.raw_by_peer import PEERS_MAX, RawByPeer
from swarmd.protocols.stage_past import Spent, StagePast


def speed_over(points: list[tuple[float, int]]) -> list[float | None]:
    """tokens_per_s after each (time, tokens counted)."""
    counted = iter([tokens for _, tokens in points])
    speed = SwarmSpeed(lambda: next(counted))
    found = []
    for now_s, _ in points:
        speed.note(now_s)
        found.append(speed.tokens_per_s)
    return found


def test_speed_is_what_was_counted_in_the_last_minute() -> None:
    points = [(5.0 * step, 500 * step) for step in range(1, 60)]
    found = speed_over(points)
    assert found[-1] == pytest.approx(100.0)
    assert found[0] is None
    stood_still = [(points[-1][0] + 5.0 * step, points[-1][1]) for step in range(1, 20)]
    assert speed_over(points + stood_still)[-1] == 0.0
    assert len(stood_still) * 5.0 > WINDOW_S


def test_what_a_newcomer_learns_at_once_is_no_speed() -> None:
    told = [(0.0, 0), (5.0, 400_000), (10.0, 1_000_000)]
    after = [(5.0 + SETTLE_S + 5.0 * step, 1_000_000 + 50 * step) for step in range(5)]
    found = speed_over(told + after)
    assert found[:5] == [None] * 5
    assert found[-1] == pytest.approx(10.0)


def rates_over(points: list[tuple[float, int, int, int | None]]) -> TrafficRates:
    """After each (time, bytes sent, bytes received, inner steps)."""
    now = iter(points)
    point = points[0]
    rates = TrafficRates(lambda: (point[1], point[2]), lambda: point[3])
    for point in now:
        rates.note(point[0])
    return rates


def test_rates_are_of_the_last_ten_seconds_and_unknown_before() -> None:
    assert rates_over([(0.0, 5, 7, None)]).bytes_per_s == (None, None)
    quick = [(2.0 * look, 9_000 * look, 0, None) for look in range(10)]
    slow = [(20.0 + 2.0 * look, 81_000 + 200 * look, 50 * look, None) for look in range(10)]
    up, down = rates_over(quick + slow).bytes_per_s
    assert up == pytest.approx(100.0)
    assert down == pytest.approx(25.0)


def test_bytes_of_a_step_are_counted_from_step_to_step_and_of_one_stage_only() -> None:
    steps = [(2.0 * look, 300 * look, 0, look // 3) for look in range(12)]
    assert rates_over(steps).bytes_per_step == pytest.approx(900.0)
    assert rates_over([*steps, (30.0, 99_999, 0, 0)]).bytes_per_step is None, "another stage"
    assert rates_over([*steps, (30.0, 99_999, 0, None)]).bytes_per_step is None, "no stage"


def test_sockets_are_counted_and_nothing_else() -> None:
    meter = ResourceMeter(os.getpid())
    before = meter.read().sockets
    if before is None:
        pytest.skip("the system does not tell what descriptors are")
    with socket.socket(), open(os.devnull):
        assert meter.read().sockets == before + 1
    assert meter.read().sockets == before


def test_refusals_are_told_by_code_and_what_is_none_is_left_out() -> None:
    counts = {"bad_certificate": 9, "half_open_evicted": 3, "duplicate": 4, "host_restarted": 1}
    found = refusals_shown(counts | {"full": 0}, {"wrong_run": 2})
    assert found.by_code == {"bad_certificate": 9, "half_open_evicted": 3, "wrong_run": 2}
    assert found.total == 14
    assert refusals_shown({}, {}).total == 0


def test_raw_bytes_are_told_apart_by_peer_up_to_a_bound() -> None:
    one, other = RawByPeer(), RawByPeer()
    one.add(PeerId("a"), sent=5)
    one.add(PeerId("a"), received=2)
    one.add(PeerId("nothing"))
    other.add(PeerId("b"), sent=1)
    one.add_all(other)
    assert one.told() == {"a": (5, 2), "b": (1, 0)}
    for number in range(2 * PEERS_MAX):
        one.add(PeerId(f"churn {number}"), sent=1)
    one.add(PeerId("a"), sent=1)
    assert len(one.told()) == PEERS_MAX
    assert one.told()[PeerId("a")] == (6, 2)


def test_steps_are_lost_only_with_a_state_that_is_older_than_they_are() -> None:
    past = StagePast()
    past.worker_died(47)
    past.went_on(begun=40, saved=40)
    assert past.lost_steps == 7, "the inner steps of the round that had begun"
    past.worker_died(53)
    past.stage_changed()
    past.went_on(begun=60, saved=40)
    assert past.lost_steps == 27, "a round of another stage, and none of the steps in it"


def told_by(counted: int, **wait_s: float) -> Any:
    """As much of a pipeline's statistics as is kept of it."""
    return SimpleNamespace(counters=SimpleNamespace(counted=counted, redone=1), wait_s=wait_s)


def test_what_a_pipeline_did_counts_on_after_its_worker_died() -> None:
    past = StagePast()
    assert past.spent(None) == Spent()
    first = told_by(5, computing=10.0, waiting_for_gradient=2.0, mixing=1.0)
    assert past.spent(first) == Spent(5, 10.0, 3.0)
    past.ended(first)
    assert past.spent(told_by(2, computing=4.0)) == Spent(7, 14.0, 3.0)
    assert past.redone == 1


def test_speed_is_of_the_last_ten_rounds_and_their_waits() -> None:
    """Of rounds of 8 s computing and 2 s waiting; the first one was slow."""
    spent, number = Spent(1, 500.0, 500.0), 0
    rounds = RecentRounds(lambda: (number, spent))
    rounds.note()
    assert rounds.of(spent) == spent, "all there is"
    for number in range(1, 30):
        rounds.note()
        rounds.note()
        spent = spent.plus(Spent(4, 8.0, 2.0))
        if number == 29:
            spent = spent.minus(Spent(2, 4.0, 1.0))
    recent = rounds.of(spent)
    assert recent == Spent(4 * ROUNDS + 2, 8.0 * ROUNDS + 4.0, 2.0 * ROUNDS + 1.0)


def loader(**values: Any) -> Any:
    """As much of a StageLoader as is looked at."""
    empty = {"device": None, "memory_bytes": (None, None), "micro_batch_lowered_to": None}
    return SimpleNamespace(**(empty | values))


def test_memory_of_a_cpu_is_what_the_worker_s_process_holds() -> None:
    info = {"device": "cpu", "device_name": "some CPU", "pid": os.getpid(), "micro_batch": 8}
    shown = device_shown(info, loader(), PeerConfig(threads=2))
    assert (shown.kind, shown.name, shown.threads, shown.micro_batch) == ("cpu", "some CPU", 2, 8)
    assert shown.memory_total_bytes == memory_total_bytes()
    assert shown.memory_used_bytes is not None
    assert 1_000_000 < shown.memory_used_bytes < shown.memory_total_bytes
    if shown.memory_peak_bytes is not None:  # where the system tells it
        assert shown.memory_peak_bytes >= shown.memory_used_bytes
    gone = device_shown({**info, "pid": 2**22 + 1}, loader(), PeerConfig())
    assert (gone.memory_used_bytes, gone.memory_peak_bytes) == (None, None)


def test_memory_of_a_gpu_is_what_the_worker_told() -> None:
    gpu = SimpleNamespace(memory_total_bytes=24 << 30, uuid="GPU-1")
    told = loader(device=gpu, memory_bytes=(5, 7), micro_batch_lowered_to=4)
    shown = device_shown({"device": "cuda:0", "micro_batch": 8}, told, PeerConfig())
    assert (shown.kind, shown.uuid, shown.micro_batch) == ("cuda", "GPU-1", 4)
    assert (shown.memory_total_bytes, shown.memory_used_bytes) == (24 << 30, 5)
    assert shown.memory_peak_bytes == 7


def test_before_there_is_a_worker_nothing_is_known() -> None:
    shown = device_shown({}, None, PeerConfig(threads=1))
    assert (shown.kind, shown.memory_total_bytes, shown.threads) == (None, None, 1)
