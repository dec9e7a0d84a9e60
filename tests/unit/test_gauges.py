"""What is looked at now and then for the status: the swarm's speed, the device's memory."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.machine_memory import memory_total_bytes
from swarmd.node.device_shown import device_shown
from swarmd.node.swarm_speed import SETTLE_S, WINDOW_S, SwarmSpeed
from swarmd.peer_config import PeerConfig


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
