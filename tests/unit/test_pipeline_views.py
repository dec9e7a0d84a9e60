"""What the pipeline tells of itself: reasons for waiting, booked seconds, recovery, loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_harness import VirtualPeer, World
from pipeline_worker import FAST_LIMITS, loss_of, run_shape

from swarmd.protocols import effects as fx
from swarmd.protocols.pipeline_statistics import LOSS_EMA_WEIGHT, Counters, FaultLog, WaitBook


def reason_of(peer: VirtualPeer) -> str | None:
    waiting = peer.machine.waiting(peer.world.now_s)
    return waiting.code if waiting else None


def test_idle_callee_waits_for_a_micro_batch_and_names_the_stage() -> None:
    world = World(((0.05,), (0.01,)))
    waiting = world["1a"].machine.waiting(0.0)
    assert waiting is not None
    assert (waiting.code, waiting.text) == ("waiting_for_micro_batch", "nothing from stage 0")
    assert waiting.subject["stage"] == 0


def test_caller_without_next_stage_names_it_and_since_when() -> None:
    world = World(((0.01,), (0.01,)))
    world.run_until(lambda: len(world.ended.done) >= 2)
    world.kill(world["1a"])
    head = world["0a"]
    world.run_until(lambda: reason_of(head) == "waiting_for_stage")
    since_s = world.now_s
    world.run_for(2.0)
    waiting = head.machine.waiting(world.now_s)
    assert waiting is not None
    assert waiting.text == "stage 1 has no peer"
    assert waiting.subject["stage"] == 1
    assert waiting.subject["since_s"] == pytest.approx(since_s, abs=0.1)


@pytest.mark.parametrize(
    ("event", "text"),
    [("unlinked", "that we are linked to"), ("banned", "could be reached")],
)
def test_stage_that_is_there_but_cannot_be_used_is_said_so(event: str, text: str) -> None:
    world = World(((0.01,), (0.01,)))
    head, callee = world["0a"], world["1a"]
    if event == "unlinked":
        head.deliver(fx.LinkDown(callee.id, "closed"))
    else:
        head.deliver(fx.DialFailed(callee.id, {}))
    waiting = head.machine.waiting(0.0)
    assert waiting is not None
    assert waiting.code == "waiting_for_stage"
    assert text in waiting.text


def test_caller_with_all_away_waits_for_the_gradient_of_the_peer_asked_first() -> None:
    world = World(((0.001,), (0.5,)))
    head = world["0a"]
    world.run_until(lambda: reason_of(head) == "waiting_for_gradient")
    waiting = head.machine.waiting(world.now_s)
    assert waiting is not None
    assert waiting.subject["peer"] == world["1a"].id


def test_busy_peer_waits_for_nothing() -> None:
    world = World(((0.5,), (0.01,)))
    world.run_for(0.1)
    assert reason_of(world["0a"]) is None


def test_booked_seconds_add_up_to_the_life_of_the_machine() -> None:
    run = run_shape(3, rounds=2, steps=2, per_step=4)
    world = World(((0.01,), (0.03,), (0.01,)), run=run, mix_s=0.2)
    world.run_all()
    for peer in world.peers:
        seconds = peer.machine.statistics(world.now_s).wait_s
        assert sum(seconds.values()) == pytest.approx(world.now_s)
        assert 0 < seconds["mixing"] < 0.25, "what came back meanwhile was computed"
    slowest = world["1a"].machine.statistics(world.now_s).wait_s
    assert slowest["computing"] / (world.now_s - 0.2) > 0.85
    last = world["2a"].machine.statistics(world.now_s).wait_s
    assert last["waiting_for_micro_batch"] > last["computing"]
    assert "waiting_for_gradient" not in last


def test_recovery_reaches_from_the_last_useful_work_to_the_first_after() -> None:
    log = FaultLog()
    log.useful(1.0)
    log.fault("silent", None, 2.0)
    log.fault("silent", None, 2.0)
    log.fault("unreachable", None, 3.0)
    log.useful(5.0)
    log.useful(6.0)
    assert (log.count, log.recovery_s_last, log.recovery_s_max) == (2, 4.0, 4.0)
    log.fault("silent", None, 6.5)
    log.useful(7.0)
    assert (log.recovery_s_last, log.recovery_s_max) == (1.0, 4.0)


def test_recovery_of_a_lost_callee_is_told() -> None:
    run = run_shape(2, steps=4, per_step=12)
    world = World(((0.005,), (0.02, 0.02)), run=run)
    world.run_until(lambda: len(world.ended.done) >= 12)
    world.kill(world["1a"])
    world.run_all()
    statistics = world["0a"].machine.statistics(world.now_s)
    assert statistics.faults >= 1
    assert statistics.fault_last is not None
    assert statistics.fault_last.code == "unreachable"
    assert statistics.recovery_s_max is not None
    assert statistics.recovery_s_max < 0.5
    assert statistics.counters.redone >= 1


def test_loss_is_seen_by_every_stage() -> None:
    world = World(((0.01,), (0.01,)), bounds=replace(FAST_LIMITS, in_flight_max=1))
    world.run_all()
    last = max(world.ended.done)
    ema = 3.0
    for index in range(1, 12):
        ema += LOSS_EMA_WEIGHT * (3.0 + 0.01 * index - ema)
    for peer in world.peers:
        statistics = peer.machine.statistics(world.now_s)
        assert statistics.loss_first == pytest.approx(3.0)
        assert statistics.loss_last == pytest.approx(loss_of(last) / 2)
        assert statistics.loss_ema == pytest.approx(ema)


def test_statistics_are_a_copy() -> None:
    world = World(((0.01,), (0.01,)))
    before = world["0a"].machine.statistics(0.0)
    world.run_all()
    assert before.counters.done == 0
    assert world["0a"].machine.statistics(world.now_s).counters.done == 12


def test_rejections_are_bounded_however_many_peers_send_nonsense() -> None:
    counters = Counters()
    for number in range(5000):
        counters.reject(f"peer-{number}", "malformed")  # type: ignore[arg-type]
    assert len(counters.rejected) <= 1025
    assert sum(counters.rejected.values()) == 5000


def test_wait_book_keeps_since_when() -> None:
    book = WaitBook()
    book.change("computing", 1.0)
    book.change("waiting_for_stage", 3.0)
    book.change("waiting_for_stage", 4.0)
    assert (book.code, book.since_s) == ("waiting_for_stage", 3.0)
    assert book.seconds(6.0) == {"computing": 2.0, "waiting_for_stage": 3.0}
