"""What one hop survives: recipes R3, R4, R6; STAG-03, STAG-04, IDEN-05, MEMB-04 and their like."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from pipeline_harness import VirtualPeer, World
from pipeline_worker import FAST_LIMITS, loss_of, run_shape

from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import Backward, Forward, Job
from swarmd.protocols.messages.pipeline import Forward as ForwardMessage
from swarmd.protocols.messages.pipeline import Gradient


def share_of(caller: VirtualPeer, callee: VirtualPeer) -> float:
    statistics = caller.machine.statistics(caller.world.now_s)
    return {peer.peer: peer.traffic_share for peer in statistics.peers}[callee.id]


def check_all_done_once(world: World) -> None:
    world.run_all()
    for micro_batch, fields in world.ended.done.items():
        assert fields["loss_sum"] == pytest.approx(loss_of(micro_batch), abs=1e-6)
    for peer in world.peers:
        if peer.is_alive:
            assert len(peer.slots) == 0, peer.id
            assert peer.worker.graphs == {}, peer.id


def done(world: World) -> int:
    return len(world.ended.done)


def is_done(world: World, count: int) -> bool:
    return done(world) >= count


# --------------------------------------------------------------- killed, frozen, cut: R6, STAG-04


@pytest.mark.parametrize("stage", [1, 2])
def test_r6_stag_04_peer_killed_between_forward_and_backward_costs_one_hop(stage: int) -> None:
    run = run_shape(3, steps=2, per_step=6)
    world = World(((0.005,), (0.02, 0.02), (0.02, 0.02)), run=run)
    victim = world.of_stage(stage)[0]
    world.run_until(lambda: len(victim.worker.graphs) >= 2 or victim.worker.queued_max >= 2)
    killed_s = world.now_s
    world.kill(victim)
    callers = world.of_stage(stage - 1)
    again = sum(peer.machine.statistics(killed_s).counters.redone for peer in callers)
    assert again >= 1, "sent elsewhere at the same instant"
    check_all_done_once(world)
    assert not world.ended.expired


def test_r6_head_killed_gives_its_micro_batches_to_another_and_callees_keep_nothing() -> None:
    world = World(((0.02, 0.02), (0.01,)), run=run_shape(2, steps=2, per_step=6))
    world.run_until(lambda: done(world) >= 2)
    victim = world["0a"]
    mine = [m for m, head in world._leased.items() if head == victim.id]
    assert mine
    world.kill(victim)
    statistics = world["1a"].machine.statistics(world.now_s)
    assert all(p.caller != victim.id for p in world["1a"].machine._table.all())
    assert statistics.slots_held <= sum(statistics.in_flight.values())
    check_all_done_once(world)


def test_r6_double_counts_across_replicas_are_reported() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=2, per_step=6))
    world.run_until(lambda: done(world) >= 7)
    frozen = world["1b"]
    frozen.freeze(3.0)  # it counts what it holds when it wakes, and nobody needs it any more
    world.run_until(lambda: not frozen.is_frozen)
    check_all_done_once(world)
    both = set(world["1a"].worker.counted) & set(frozen.worker.counted)
    reported = sum(
        peer.machine.statistics(world.now_s).counters.double_counts for peer in world.peers
    )
    assert reported >= len(both) > 0
    for peer in world.peers:
        assert max(peer.worker.counted.values()) == 1


def test_memb_04_frozen_peer_costs_one_deadline_and_no_micro_batch() -> None:
    run = run_shape(2, steps=4, per_step=12)
    world = World(((0.005,), (0.02, 0.02)), run=run)
    world.run_until(lambda: done(world) >= 20)
    world["1a"].freeze(60.0)
    frozen_s = world.now_s
    world.run_until(lambda: world.is_done)
    assert not world.ended.expired
    assert world.now_s - frozen_s < 28 * 0.06 + 4 * FAST_LIMITS.hop_s_max


def test_memb_04_slow_link_among_fast_ones_still_counts() -> None:
    run = run_shape(2, steps=4, per_step=12)
    world = World(((0.005,), (0.02, 0.02)), run=run)
    slow = world["1b"]
    arrive = slow.arrive

    def late(sender, body, content) -> None:  # type: ignore[no-untyped-def]
        world.after(0.4, lambda: arrive(sender, body, content))

    slow.arrive = late  # type: ignore[method-assign]
    check_all_done_once(world)
    assert not world.ended.expired
    assert len(slow.worker.counted) >= 3
    assert not world["0a"].machine.statistics(world.now_s).faults


def test_restarted_callee_is_asked_again_at_once() -> None:
    world = World(((0.005,), (0.02,)), run=run_shape(2, steps=4, per_step=6))
    world.run_until(lambda: done(world) >= 6)
    world.kill(world["1a"])
    world.after(0.2, lambda: world.restart(world["1a"]))
    restarted_s = world.now_s + 0.2
    world.run_until(lambda: len(world["1a"].worker.log) > 0 and world["1a"].incarnation == 2)
    assert world.now_s - restarted_s < 0.2, "a new incarnation lifts the ban"
    check_all_done_once(world)


def test_broken_link_sends_elsewhere_at_once_and_comes_back() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=8, per_step=12))
    world.run_until(lambda: done(world) >= 20)
    world.cut(world["0a"], world["1a"], seconds=0.3)
    again = world["0a"].machine.statistics(world.now_s).counters.redone
    assert again >= 1
    check_all_done_once(world)
    assert not world.ended.expired
    assert share_of(world["0a"], world["1a"]) > 0.3


# -------------------------------------------------- busy, silent, unreliable: R3, R4, STAG-03


def test_r3_peer_that_is_always_busy_gets_no_work_and_no_blame() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=4, per_step=6))
    busy = world["1b"]
    busy.slots.free_max = 0
    check_all_done_once(world)
    assert busy.worker.log == []
    statistics = world["0a"].machine.statistics(world.now_s)
    peer = next(peer for peer in statistics.peers if peer.peer == busy.id)
    assert (peer.score, peer.outstanding, peer.banned_for_s) == (1.0, 0, 0.0)
    assert statistics.faults == 0
    assert statistics.counters.redone == 0


def test_r4_silent_peer_gets_its_share_once_and_all_is_done_elsewhere() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=10, per_step=12))
    silent = world["1b"]
    silent.drop_share = 1.0
    arrived: list[float] = []
    arrive = silent.arrive

    def count(sender, body, content) -> None:  # type: ignore[no-untyped-def]
        arrived.extend([world.now_s] if content is not None else [])
        arrive(sender, body, content)

    silent.arrive = count  # type: ignore[method-assign]
    check_all_done_once(world)
    assert not world.ended.expired
    first_s = FAST_LIMITS.hop_s_max
    assert sum(time_s < first_s for time_s in arrived) <= FAST_LIMITS.in_flight_max // 2 + 2
    assert len(arrived) <= 120 * 0.15


@pytest.mark.parametrize("seed", range(4))
def test_stag_03_bad_member_falls_below_a_tenth_of_the_traffic_and_comes_back(seed: int) -> None:
    run = run_shape(2, steps=60, per_step=12)
    world = World(((0.005,), (0.02, 0.02)), run=run, seed=seed)
    bad, head = world["1b"], world["0a"]
    bad.drop_share = 0.75
    world.run_until(lambda: done(world) >= 50)
    shares = []
    for count in range(60, 400, 10):
        world.run_until(partial(is_done, world, count))
        shares.append(share_of(head, bad))
    assert sum(shares) / len(shares) < 0.1, shares
    assert head.machine.statistics(world.now_s).faults > 0
    bad.drop_share = 0.0
    healed_s = world.now_s
    world.run_until(lambda: share_of(head, bad) >= 0.8 * 0.5)
    assert world.now_s - healed_s < 300.0


def test_stag_03_with_a_bad_member_the_rate_is_four_fifths_of_what_the_other_can() -> None:
    run = run_shape(2, steps=50, per_step=12)
    alone = World(((0.005,), (0.02,)), run=run)
    alone.run_until(lambda: alone.is_done)
    world = World(((0.005,), (0.02, 0.02)), run=run)
    world["1b"].drop_share = 0.75
    world.run_until(lambda: world.is_done)
    assert world.now_s < alone.now_s / 0.8


def test_stag_03_the_only_member_keeps_all_the_traffic() -> None:
    world = World(((0.005,), (0.02,)), run=run_shape(2, steps=2, per_step=6))
    world["1a"].drop_share = 0.75
    check_all_done_once(world)
    assert share_of(world["0a"], world["1a"]) == 1.0


def test_iden_05_peer_that_completes_nothing_keeps_a_trickle_and_returns_when_it_works() -> None:
    run = run_shape(2, steps=100, per_step=12)
    world = World(((0.005,), (0.02, 0.02)), run=run)
    useless, head = world["1b"], world["0a"]
    world.run_until(lambda: done(world) >= 50)
    useless.drop_share = 1.0
    world.run_until(lambda: done(world) >= 400)
    assert share_of(head, useless) < 0.1
    useless.drop_share = 0.0
    world.run_until(lambda: share_of(head, useless) > 0.4)


def test_slow_replica_contributes_the_smaller_part_it_manages() -> None:
    run = run_shape(2, steps=20, per_step=12)
    world = World(((0.002,), (0.02, 0.1)), run=run)
    world.run_all()
    slow = len(world["1b"].worker.counted)
    assert slow >= 240 / 6 * 0.6
    assert not world.ended.expired


# ---------------------------------------------------------------------------------- bad answers


def fail_first(peer: VirtualPeer, kind: type[Job], code: str, count: int = 1) -> None:
    left = [count]

    def fail(job: Job) -> str | None:
        if isinstance(job, kind) and left[0]:
            left[0] -= 1
            return code
        return None

    peer.worker.fail_with = fail


@pytest.mark.parametrize("code", ["out_of_memory", "not_finite", "compute_failed", "malformed"])
def test_refused_micro_batch_is_done_by_the_other_replica(code: str) -> None:
    world = World(((0.005,), (0.02, 0.02)))
    fail_first(world["1a"], Forward, code)
    check_all_done_once(world)
    assert not world.ended.expired
    assert world["0a"].machine.statistics(world.now_s).counters.redone == 1
    assert world["1a"].machine.statistics(world.now_s).counters.compute_failures == {code: 1}


def test_what_every_replica_refuses_expires_with_the_reason_and_not_for_ever_later() -> None:
    world = World(((0.005,), (0.02, 0.02)))
    left = [FAST_LIMITS.refusals_max]

    def fail(job: Job) -> str | None:
        if isinstance(job, Forward) and job.micro_batch.index == 5 and left[0]:
            left[0] -= 1
            return "not_finite"
        return None

    for peer in world.of_stage(1):
        peer.worker.fail_with = fail
    check_all_done_once(world)
    assert world.ended.reasons == {"not_finite": 1}


def test_bad_gradient_is_asked_for_again_elsewhere_while_the_graph_waits() -> None:
    world = World(((0.005,), (0.02, 0.02)))
    fail_first(world["0a"], Backward, "not_finite")
    check_all_done_once(world)
    assert not world.ended.expired
    rejected = world["0a"].machine.statistics(world.now_s).counters.rejected
    assert list(rejected.values()) == [1]
    assert next(iter(rejected))[1] == "not_finite"


def test_backward_that_fails_by_our_own_fault_ends_the_micro_batch() -> None:
    world = World(((0.005,), (0.02,)))
    fail_first(world["0a"], Backward, "out_of_memory")
    check_all_done_once(world)
    assert world.ended.reasons == {"out_of_memory": 1}


def test_lost_worker_refuses_what_it_held_and_goes_on_when_a_new_one_is_ready() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=12, per_step=12))
    world.run_until(lambda: done(world) >= 18)  # in the middle of a step
    victim = world["1a"]
    victim.worker.die()
    statistics = victim.machine.statistics(world.now_s)
    assert (statistics.in_flight, statistics.slots_held, statistics.pending) == ({}, 0, 0)
    assert statistics.counters.gradients_lost >= 1
    before = len(victim.worker.log)
    world.run_until(lambda: done(world) >= 24)
    assert len(victim.worker.log) == before
    victim.deliver(fx.ComputeReady({}))
    check_all_done_once(world)
    assert len(victim.worker.log) > before


def test_gradient_that_finds_no_slot_is_asked_for_again_from_the_same_peer() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=2, per_step=6))
    head = world["0a"]
    world.run_until(lambda: done(world) >= 3)
    head.slots.free_max = 0
    world.after(0.1, lambda: setattr(head.slots, "free_max", None))
    check_all_done_once(world)
    counters = [peer.machine.statistics(world.now_s).counters for peer in world.of_stage(1)]
    assert sum(item.counted for item in counters) == 12
    assert sum(item.not_counted for item in counters) >= 1


def test_answers_that_never_leave_are_asked_for_again_and_counted_once() -> None:
    world = World(((0.005,), (0.02,)), run=run_shape(2, steps=2, per_step=6))
    callee = world["1a"]
    send = world.send
    lost = [3]

    def lossy(sender: VirtualPeer, effect: fx.Send) -> None:
        if sender is callee and isinstance(effect.message, Gradient) and lost[0]:
            lost[0] -= 1
            sender.deliver(fx.SendFailed(effect.peer, effect.message, "full"))
        else:
            send(sender, effect)

    world.send = lossy  # type: ignore[method-assign]
    check_all_done_once(world)
    counters = callee.machine.statistics(world.now_s).counters
    assert (counters.counted, counters.not_counted, counters.answers_lost) == (12, 3, 3)


def test_full_queue_is_back_pressure_and_no_fault() -> None:
    world = World(((0.005,), (0.02,)))
    head = world["0a"]
    send = world.send
    full = [2]

    def narrow(sender: VirtualPeer, effect: fx.Send) -> None:
        if isinstance(effect.message, ForwardMessage) and full[0]:
            full[0] -= 1
            sender.deliver(fx.SendFailed(effect.peer, effect.message, "full"))
        else:
            send(sender, effect)

    world.send = narrow  # type: ignore[method-assign]
    check_all_done_once(world)
    statistics = head.machine.statistics(world.now_s)
    assert (statistics.faults, statistics.counters.redone) == (0, 0)


def test_micro_batch_that_nobody_takes_expires_once_at_its_deadline() -> None:
    bounds = replace(FAST_LIMITS, micro_batch_s=1.0)
    world = World(((0.005,), (0.02,)), bounds=bounds)
    world.run_until(lambda: done(world) >= 2)
    world.kill(world["1a"])
    world.run_until(lambda: world.now_s > 3.0 or world["0a"].machine.is_empty)
    assert 1.0 <= world.now_s <= 1.2
    assert set(world.ended.reasons) == {"expired"}
    assert max(world.ended.expired.values()) == 1
    assert len(world["0a"].slots) == 0
    assert world["0a"].machine.capacity(world.now_s) == 0, "nobody to send to: nothing is leased"


def test_draining_peer_finishes_what_it_holds_and_takes_nothing_new() -> None:
    world = World(((0.005,), (0.02, 0.02)), run=run_shape(2, steps=4, per_step=12))
    world.run_until(lambda: done(world) >= 12)
    leaver = world["1a"]
    held = len(leaver.machine._table)
    assert held
    leaver.carry_out(leaver.machine.drain(True, world.now_s))
    answered = leaver.machine.statistics(world.now_s).counters.answered
    world.run_until(lambda: leaver.machine.is_empty)
    check_all_done_once(world)
    counters = leaver.machine.statistics(world.now_s).counters
    assert counters.answered == answered + held
    statistics = world["0a"].machine.statistics(world.now_s)
    assert (statistics.faults, statistics.counters.redone) == (0, 0)


def test_head_that_drains_leads_nothing_new() -> None:
    world = World(((0.005,), (0.02,)))
    world.run_until(lambda: done(world) >= 2)
    head = world["0a"]
    head.carry_out(head.machine.drain(True, world.now_s))
    assert head.machine.capacity(world.now_s) == 0
    world.run_until(lambda: head.machine.is_empty)
    assert len(head.slots) == 0
    head.carry_out(head.machine.drain(False, world.now_s))
    check_all_done_once(world)
