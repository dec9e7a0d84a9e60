"""Goal: whatever heads and network do, every micro-batch ends exactly once and nothing is hidden.

Method: seeded worlds (tests/lease_world.py) in virtual time; at the end every living peer's audit
must be clean and complete, agree with the others', and count exactly the work that was done twice.
"""

import os

import pytest
from lease_world import LeaseWorld, lease_shape, loss_of

from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.lease_limits import wan
from swarmd.protocols.ledger_gossip import RECIPIENTS_MAX

SEEDS = int(os.environ.get("SWARMD_LEASE_SEEDS", "2"))
"""Of the test with ten kills; a thousand take six minutes of a processor. From _FIRST on."""
FIRST = int(os.environ.get("SWARMD_LEASE_FIRST", "0"))
LONG = lease_shape(inner_steps=10, total_steps=45)
"""Five rounds, the last one half as long: 180 micro-batches."""


def peers_of(world: LeaseWorld) -> list[PeerId]:
    return sorted(world.hosts)


def check_counted(world: LeaseWorld) -> None:
    """Every living peer proves the same: all samples once, and what was done twice besides."""
    world.run(world.now_s + 3 * world.limits.digest_s)
    shape = world.shape
    expected = {
        MicroBatchId(number, index)
        for number in range(shape.rounds)
        for index in range(shape.micro_batches_of_round(number))
    }
    assert set(world.done) == expected
    for host in world.living():
        audit = host.book.audit(world.now_s)
        assert audit.clean
        assert audit.complete
        assert audit.covered_until == audit.samples_total
        assert audit.samples_completed == sum(map(shape.samples_of, expected))


def twice_in_truth(world: LeaseWorld) -> int:
    return sum((times - 1) * world.shape.samples_of(one) for one, times in world.done.items())


def twice_in_ledgers(world: LeaseWorld) -> set[int]:
    return {host.book.audit(world.now_s).processed_twice for host in world.living()}


# -------------------------------------------------------------------------------------- good days


@pytest.mark.parametrize("heads", [1, 2, 3, 5])
def test_healthy_heads_do_everything_once(heads):
    world = LeaseWorld(heads, heads=heads, others=2, shape=LONG)
    world.run_until_complete()
    check_counted(world)
    assert twice_in_ledgers(world) == {twice_in_truth(world)}
    assert sum(world.done.values()) <= 1.01 * len(world.done)


def test_a_lone_head_takes_everything_in_order():
    world = LeaseWorld(1, heads=1, others=0, shape=LONG)
    world.hosts[PeerId("p000")].in_flight = 1
    world.run_until_complete()
    taken = [one for _, _, one in world.order if not one.held_out]
    assert taken == sorted(taken)
    assert len(taken) == len(set(taken)) == 180


def test_heads_share_the_work_by_their_speed():
    world = LeaseWorld(3, heads=2, others=0, shape=lease_shape(inner_steps=30, total_steps=60))
    fast, slow = (world.hosts[peer] for peer in peers_of(world))
    fast.work_s, slow.work_s = 0.1, 0.4
    world.run_until_complete()
    check_counted(world)
    share = fast.book.counters["done"] / sum(world.done.values())
    assert 0.7 < share < 0.85  # 0.8 by speed
    ideal_s = 240 / (1 / 0.1 + 1 / 0.4)
    assert world.now_s < 1.15 * ideal_s + 2.0


def test_a_fast_head_stays_within_some_steps_of_a_slow_one():
    """The clock rides on the micro-batch: a step's tags must not be spread over the round."""
    world = LeaseWorld(4, heads=2, others=0, shape=lease_shape(inner_steps=40, total_steps=40))
    fast, slow = (world.hosts[peer] for peer in peers_of(world))
    fast.work_s, slow.work_s = 0.1, 0.4
    world.run_until_complete()
    newest, lag_max = 0, 0
    for _, _, one in world.order:
        if not one.held_out:
            step = world.shape.step_of(one)
            lag_max = max(lag_max, newest - step)
            newest = max(newest, step)
    assert lag_max <= 8  # of 40 steps; 30 if each kept to its own half


def test_held_out_micro_batches_are_scored_once_each_and_their_loss_is_merged():
    world = LeaseWorld(5, heads=3, shape=LONG)
    world.run_until_complete()
    world.run(world.now_s + 60.0)
    for host in world.living():
        ledger = host.book.ledger
        last = world.shape.rounds - 1
        assert ledger.held_out_is_scored(last)
        expected = sum(loss_of(MicroBatchId(last, index, True)) for index in range(3)) / 3
        assert ledger.held_out_loss(last) == pytest.approx(expected)
    looked_at = [one for _, _, one in world.order if one.held_out and one.round == last]
    assert len(looked_at) == len(set(looked_at)) == 3


def test_the_loss_of_a_round_is_the_mean_over_its_micro_batches():
    world = LeaseWorld(6, heads=3, shape=LONG)
    world.run_until_complete()
    check_counted(world)
    assert twice_in_truth(world) == 0
    for number in range(world.shape.rounds):
        count = world.shape.micro_batches_of_round(number)
        expected = sum(loss_of(MicroBatchId(number, index)) for index in range(count)) / count
        for host in world.living():
            assert host.book.ledger.loss(number) == pytest.approx(expected)


def test_contributions_are_equal_everywhere_and_sum_up_to_the_audit():
    world = LeaseWorld(7, heads=4, shape=lease_shape(inner_steps=2, total_steps=60), loss=0.1)
    world.run_until_complete()
    check_counted(world)
    audit = world.living()[0].book.audit(world.now_s)
    shown = [host.book.ledger.contributions() for host in world.living()]
    assert all(one == shown[0] for one in shown)
    total = sum(peer.samples for peer in shown[0].values())
    assert total == audit.samples_completed + audit.processed_twice
    for peer, host in world.hosts.items():
        if host.is_head:
            assert shown[0][peer].micro_batches == host.book.counters["done"]


def test_data_that_end_in_the_middle_of_a_step_are_read_to_the_last_sample():
    shape = lease_shape(total_steps=18, samples_total=18 * 32 - 21)
    world = LeaseWorld(8, shape=shape)
    world.run_until_complete()
    check_counted(world)
    assert world.living()[0].book.audit(world.now_s).samples_total == 18 * 32 - 21


def test_news_reaches_everybody_where_not_everybody_is_linked():
    world = LeaseWorld(9, heads=4, others=12, degree=3, shape=LONG, limits=wan())
    world.run_until_complete()
    check_counted(world)
    assert sum(world.done.values()) <= 1.05 * len(world.done)


def test_a_quiet_swarm_costs_little():
    world = LeaseWorld(10, heads=4, others=2)
    world.run_until_complete()
    world.run(world.now_s + 10.0)
    before = dict(world.sent)
    world.run(world.now_s + 60.0)
    messages = sum(world.sent[name] - before[name] for name in before if name != "bytes")
    assert messages <= 61 * len(world.hosts)  # a digest a second
    assert (world.sent["bytes"] - before["bytes"]) / messages < 250


# --------------------------------------------------------------------------------------- bad days


@pytest.mark.parametrize("seed", range(8))
def test_lost_repeated_and_reordered_messages_change_no_count(seed):
    world = LeaseWorld(seed, shape=LONG, loss=0.3, duplicates=0.3, latency_s=0.05, failures=0.05)
    world.run_until_complete()
    world.run(world.now_s + 30.0)  # what was done again may be told after everything has ended
    check_counted(world)
    assert twice_in_ledgers(world) == {twice_in_truth(world)}


@pytest.mark.parametrize("seed", range(12))
def test_heads_that_die_and_return_leave_no_gap(seed):
    """Killed at random, restarted with an empty ledger, in a network that loses messages."""
    world = LeaseWorld(seed, heads=4, shape=LONG, loss=0.1, duplicates=0.1)
    heads = [peer for peer in peers_of(world) if world.hosts[peer].is_head]
    for peer in heads[1:]:
        at_s = world.random.uniform(1.0, 10.0)
        world.at(at_s, lambda peer=peer: world.kill(peer))
        if world.random.random() < 0.7:
            world.at(at_s + world.random.uniform(0.5, 6.0), lambda peer=peer: world.restart(peer))
    world.run_until_complete()
    check_counted(world)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_two_heads_killed_ten_times_in_a_run_leave_every_index_done_exactly_once(seed):
    """Either of them, at random, back with an empty ledger a little later. What a head had done and
    not yet told dies with it; of what was told, every repetition is counted."""
    world = LeaseWorld(seed, heads=2, others=2, shape=LONG)
    at_s = 1.0
    for _ in range(10):
        at_s += world.random.uniform(0.5, 3.0)
        peer = world.random.choice(peers_of(world)[:2])
        world.at(at_s, lambda peer=peer: world.kill(peer))
        at_s += world.random.uniform(0.2, 1.0)
        world.at(at_s, lambda peer=peer: world.restart(peer))
    world.run(at_s)
    world.run_until_complete()
    check_counted(world)
    (twice,) = twice_in_ledgers(world)
    assert twice <= twice_in_truth(world)


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_frozen_head_keeps_nobody_waiting_for_long(seed, noticed):
    world = LeaseWorld(seed, heads=3, shape=LONG)
    frozen = peers_of(world)[1]
    world.at(2.0, lambda: world.freeze(frozen, for_s=200.0, noticed=noticed))
    world.run_until_complete(limit_s=100.0)
    world.run(203.0)
    world.run_until_complete(limit_s=220.0)
    check_counted(world)
    assert twice_in_ledgers(world) == {twice_in_truth(world)}


@pytest.mark.parametrize("seed", range(6))
def test_both_halves_of_a_split_swarm_go_on_and_agree_when_it_heals(seed):
    world = LeaseWorld(seed, heads=4, others=2, shape=LONG)
    peers = peers_of(world)
    world.at(3.0, lambda: world.split(peers[:2] + peers[4:5], peers[2:4] + peers[5:]))
    world.at(9.0, world.heal)
    world.run_until_complete()
    check_counted(world)
    assert twice_in_ledgers(world) == {twice_in_truth(world)}


@pytest.mark.parametrize("seed", range(6))
def test_heads_that_leave_politely_return_their_leases_at_once(seed):
    world = LeaseWorld(seed, heads=3, shape=LONG)
    leaving = peers_of(world)[seed % 3]
    world.at(4.0, lambda: world.leave(leaving))
    world.run_until_complete()
    check_counted(world)
    assert twice_in_truth(world) == 0


@pytest.mark.parametrize("seed", range(6))
def test_the_data_end_though_the_last_leases_are_held_by_the_dead(seed):
    """Numbered samples, one epoch, deaths in the last round, one who returns at the very end."""
    shape = lease_shape(inner_steps=5, total_steps=13, samples_total=13 * 32 - 5)
    world = LeaseWorld(seed, heads=3, shape=shape)
    peers = peers_of(world)
    while world.hosts[peers[0]].book.ledger.settled < 2:
        world.run(world.now_s + 0.1)
    world.kill(peers[1])
    world.at(world.random.uniform(0.2, 3.0), lambda: world.kill(peers[2]))
    world.at(3.5, lambda: world.restart(peers[1]))
    world.run_until_complete()
    check_counted(world)


def test_a_joiner_learns_of_rounds_that_are_known_in_sum_only():
    world = LeaseWorld(11, heads=3, others=2, shape=lease_shape(inner_steps=2, total_steps=80))
    late = peers_of(world)[-1]
    world.at(0.0, lambda: world.kill(late))
    while world.hosts[peers_of(world)[0]].book.ledger.base < 20:
        world.run(world.now_s + 0.5)
    world.restart(late)
    world.run(world.now_s + 3.0)
    newcomer, old = world.hosts[late].book, world.hosts[peers_of(world)[0]].book
    assert newcomer.ledger.settled >= old.ledger.settled - 1
    world.run_until_complete()
    check_counted(world)


def test_who_hears_of_several_rounds_at_once_takes_none_of_them_for_a_short_one():
    """Rounds of half a minute; a head comes back in the middle of the third and has to catch up. It
    opens no round before its time."""
    shape = lease_shape(total_steps=25)
    world = LeaseWorld(15, heads=2, others=16, shape=shape, work_s=3.0)
    head, witness = peers_of(world)[0], world.hosts[peers_of(world)[-1]]
    while len(witness.book.ledger.done(2)) < 2:
        world.run(world.now_s + 0.5)
    world.kill(head)
    world.run(world.now_s + 1.0)
    world.restart(head)
    back_s, book = world.now_s, world.hosts[head].book
    while world.now_s < back_s + 25.0:
        world.run(world.now_s + 1.0)
        assert book.round_open(world.now_s) <= witness.book.ledger.settled + 1
    assert book.counters["done"] > 3


def test_newcomers_learn_from_the_only_one_who_knows():
    world = LeaseWorld(14, heads=1, others=2, shape=lease_shape(inner_steps=2, total_steps=60))
    veteran, *newcomers = peers_of(world)
    for late in newcomers:
        world.at(0.0, lambda late=late: world.kill(late))
    while world.hosts[veteran].book.ledger.base < 10:
        world.run(world.now_s + 0.5)
    for late in newcomers:
        world.restart(late)
    world.run_until_complete()
    world.run(world.now_s + 20.0)
    check_counted(world)


def test_the_same_seed_gives_the_same_world():
    def story() -> list:
        world = LeaseWorld(12, loss=0.2, duplicates=0.2, failures=0.1)
        world.at(2.0, lambda: world.kill(PeerId("p001")))
        world.run_until_complete()
        return world.order

    assert story() == story()


def test_with_many_heads_the_traffic_of_a_peer_stays_bounded():
    shape = lease_shape(inner_steps=5, total_steps=10, micro_batches_per_step=16)
    world = LeaseWorld(13, heads=16, others=0, degree=4, shape=shape, work_s=1.0)
    world.run_until_complete()
    check_counted(world)
    assert world.sent["bytes"] / len(world.hosts) / world.now_s < 20_000


@pytest.mark.parametrize("is_split", [False, True])
def test_in_a_swarm_of_forty_each_tells_a_few_and_all_prove_the_same(is_split):
    """Receipts, too, which nobody is told there: they are found by comparing."""
    world = LeaseWorld(1, heads=6, others=34, shape=lease_shape(inner_steps=10, total_steps=20))
    world.run(1.0)
    told = {peer: host.book._gossip.recipients for peer, host in world.hosts.items()}
    assert {len(peers) for peers in told.values()} == {RECIPIENTS_MAX}
    mutual = sum(peer in told[other] for peer, others in told.items() for other in others)
    assert mutual > 0.6 * sum(map(len, told.values()))
    if is_split:
        peers = peers_of(world)
        world.split(peers[::2], peers[1::2])
        world.run(4.0)
        world.heal()
    world.run_until_complete()
    world.run(world.now_s + 40.0)
    check_counted(world)
    (twice,) = twice_in_ledgers(world)
    assert twice == twice_in_truth(world)
    ledgers = [host.book.ledger for host in world.living()]
    proved = ledgers[0].witnessed_total()
    assert sum(found.samples for found in proved.values()) > 0
    assert all(ledger.witnessed_total() == proved for ledger in ledgers)
    assert all(ledger.contributions() == ledgers[0].contributions() for ledger in ledgers)
