"""The coordinator in simulated swarms: what docs/faults.md asks of rosters and stage maps.

Each test is one situation; the ids are those of docs/faults.md. All times are virtual.
"""

from __future__ import annotations

import pytest
from sim_helpers import Swarm

from swarmd.protocols import membership_limits
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.roster import Liveness
from swarmd.sim.liars import LIES, make_liar

PRESETS = [membership_limits.wan, membership_limits.local]
SIZES = [3, 8, 24]


def last_death_s(swarm: Swarm, about: int, observers: int) -> float:
    told = swarm.told("peer_dead", about)
    assert len(told) == observers, f"{len(told)} of {observers} noticed"
    return told[-1]


class TestDeath:
    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("peers", SIZES)
    @pytest.mark.parametrize("silently", [False, True])
    def test_killed_peer_is_dead_for_everybody_in_time(
        self, preset: object, peers: int, silently: bool
    ) -> None:
        """MEMB-04 a: with connections closed, and with its host gone."""
        limits: MembershipLimits = preset()  # type: ignore[operator]
        swarm = Swarm(seed=peers, peers=peers, limits=limits)
        killed_s = swarm.world.now_s
        swarm.cluster.crash(1, silently=silently)
        swarm.run(limits.dead_after_s + 1.0)
        assert last_death_s(swarm, 1, peers - 1) - killed_s <= limits.dead_after_s
        assert swarm.violations == []

    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("peers", SIZES)
    def test_frozen_peer_is_dead_for_everybody_in_time(self, preset: object, peers: int) -> None:
        """MEMB-04 b."""
        limits: MembershipLimits = preset()  # type: ignore[operator]
        swarm = Swarm(seed=peers, peers=peers, limits=limits)
        frozen_s = swarm.world.now_s
        swarm.cluster.pause(1)
        swarm.run(limits.dead_after_s + 1.0)
        assert last_death_s(swarm, 1, peers - 1) - frozen_s <= limits.dead_after_s

    def test_closed_connection_is_suspect_at_once(self) -> None:
        """MEMB-04 a: work can go elsewhere within reset_reroute_s."""
        swarm = Swarm(peers=6)
        killed_s = swarm.world.now_s
        swarm.cluster.crash(1)
        swarm.run(1.0)
        assert len([at for at in swarm.told("peer_suspect", 1) if at - killed_s < 0.3]) == 5

    def test_slow_link_is_never_dead(self) -> None:
        """MEMB-04 c: 800 ms among links of 20 ms."""
        swarm = Swarm(seed=5, peers=8, rtt_s=0.02)
        for other in range(8):
            if other != 3:
                swarm.cluster.network.slow(3, other, 0.39)
        swarm.run(120.0)
        assert swarm.told("peer_dead") == []

    def test_half_of_the_swarm_may_die_at_once(self) -> None:
        """Also those whose every neighbour died: the next ones on the rings take over."""
        swarm = Swarm(seed=2, peers=40)
        killed_s = swarm.world.now_s
        for number in range(1, 40, 2):
            swarm.cluster.crash(number, silently=True)
        took_s = swarm.run_until_settled(within_s=40.0)
        assert took_s > 0
        last_s = max(swarm.told("peer_dead"))
        assert last_s - killed_s <= 3 * swarm.limits.dead_after_s


class TestPause:
    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("seed", range(4))
    def test_pause_of_half_the_limit_kills_nobody(self, preset: object, seed: int) -> None:
        """MEMB-05."""
        limits: MembershipLimits = preset()  # type: ignore[operator]
        swarm = Swarm(seed=seed, peers=6, limits=limits)
        swarm.cluster.pause(2)
        swarm.run(limits.dead_after_s / 2)
        swarm.cluster.resume(2)
        swarm.run(limits.dead_after_s)
        assert swarm.told("peer_dead") == []
        assert swarm.moves() == []
        swarm.run_until_settled(within_s=5.0)

    def test_one_that_slept_through_its_own_death_returns_and_blames_nobody(self) -> None:
        """IDEN-04: it is not thrown out again by what others remember."""
        swarm = Swarm(seed=3, peers=8)
        swarm.cluster.pause(2)
        swarm.run(60.0)
        woke_s = swarm.world.now_s
        swarm.cluster.resume(2)
        swarm.run_until_settled(within_s=10.0)
        swarm.run(30.0)
        after = [at for at in swarm.told("peer_dead") if at > woke_s]
        assert after == []
        assert swarm.entry(0, 2).record.incarnation == 2, "who was dead has a new life"


class TestRestart:
    def test_ten_quick_restarts_are_one_entry_with_a_rising_incarnation(self) -> None:
        """IDEN-01."""
        swarm = Swarm(seed=4, peers=6)
        for life in range(2, 12):
            swarm.cluster.crash(1)
            swarm.run(1.0)
            swarm.cluster.start(1, (3,))
            swarm.run(6.0)
            for observer in (0, 2, 3, 4, 5):
                assert len(swarm.membership(observer).roster) == 6
                assert swarm.entry(observer, 1).record.incarnation == life
                assert swarm.liveness(observer, 1) is Liveness.ALIVE

    def test_killed_for_good_does_not_come_back_through_a_third_peers_memory(self) -> None:
        """IDEN-01. Peer 4 sleeps through the death, and wakes with the old news."""
        swarm = Swarm(seed=6, peers=8)
        swarm.cluster.pause(4)
        swarm.cluster.crash(1)
        swarm.run(30.0)
        swarm.cluster.resume(4)
        swarm.run(30.0)
        for observer in (0, 2, 3, 4, 5, 6, 7):
            assert swarm.liveness(observer, 1) is Liveness.DEAD
        assert swarm.told("peer_returned", 1) == []

    def test_dials_to_the_dead_back_off(self) -> None:
        swarm = Swarm(seed=6, peers=4)
        swarm.cluster.crash(1)
        swarm.run(60.0)
        dials: list[int] = []
        network = swarm.cluster.network
        dial, network.dial = network.dial, lambda a, b: (dials.append(b), dial(a, b))  # type: ignore[method-assign,func-returns-value]
        swarm.run(60.0)
        assert 3 <= dials.count(1) <= 3 * 60 / 7, "each of three, at most every ten seconds"

    def test_restart_without_its_disk_steps_over_its_former_life(self) -> None:
        swarm = Swarm(seed=8, peers=6)
        for _ in range(3):
            swarm.cluster.crash(1)
            swarm.run(2.0)
            swarm.cluster.start(1, (0,))
            swarm.run(5.0)
        swarm.cluster.crash(1, keep_disk=False)
        swarm.run(1.0)
        swarm.cluster.start(1, (0,))
        swarm.run_until_settled(within_s=10.0)
        assert swarm.entry(0, 1).record.incarnation == 5
        assert swarm.told("identity_conflict") == []

    def test_founder_dies_and_a_newcomer_joins_through_another(self) -> None:
        """MEMB-01."""
        swarm = Swarm(seed=9, peers=5, spare=1)
        swarm.cluster.crash(0)
        swarm.run(12.0)
        swarm.cluster.start(5, (2,))
        swarm.run_until_settled(within_s=10.0)
        swarm.cluster.start(0, (5,))
        swarm.run_until_settled(within_s=10.0)


class TestPartition:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(("peers", "stages"), [(6, 3), (6, 2), (12, 3)])
    def test_healed_halves_are_one_roster_and_one_map_within_ten_seconds(
        self, seed: int, peers: int, stages: int
    ) -> None:
        """MEMB-02."""
        swarm = Swarm(seed=seed, peers=peers, stages=stages)
        half = set(range(0, peers, 2))
        swarm.cut(half)
        swarm.run(60.0)
        for observer in range(peers):
            seen = {n for n in range(peers) if swarm.entry(observer, n).is_present}
            assert seen == (half if observer in half else set(range(peers)) - half)
        swarm.heal(half)
        swarm.run_until_settled(within_s=10.0)
        swarm.run(30.0)
        assert swarm.violations == []

    def test_half_that_lacks_a_stage_covers_it_itself(self) -> None:
        """MEMB-02 b: one half loses stage 1, and moves one peer there."""
        swarm = Swarm(seed=1, peers=6)
        on_one = {n for n in range(6) if swarm.membership(n).record.stage == 1}
        swarm.cut(on_one)
        swarm.run(30.0)
        for observer in range(6):
            assert all(swarm.map_sizes(observer)), f"p{observer} sees an uncovered stage"
        swarm.heal(on_one)
        swarm.run_until_settled(within_s=10.0)
        assert swarm.violations == []

    def test_one_way_cut_is_a_cut(self) -> None:
        swarm = Swarm(seed=2, peers=8)
        for other in range(1, 8):
            swarm.cluster.network.cut(0, other)
        swarm.cluster.disturbed_until_s = 1e9
        swarm.run(30.0)
        assert swarm.liveness(3, 0) is Liveness.DEAD
        for other in range(1, 8):
            swarm.cluster.network.heal(0, other)
        swarm.run_until_settled(within_s=20.0)

    def test_path_that_is_bad_is_not_a_peer_that_is_dead(self) -> None:
        """Two peers cannot reach each other for a minute; helpers know better."""
        swarm = Swarm(seed=3, peers=8)
        swarm.cluster.network.cut(1, 2)
        swarm.cluster.network.cut(2, 1)
        swarm.run(60.0)
        assert swarm.told("peer_dead") == []
        assert swarm.violations == []


class TestStart:
    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize("peers", [4, 8])
    def test_all_at_once_is_one_swarm_within_settle_s(self, seed: int, peers: int) -> None:
        """BOOT-03: each knows all the others' addresses, two of them found."""
        swarm = Swarm(seed=seed, peers=peers, start=False)
        everybody = range(peers)
        for number in everybody:
            entries = () if number == 0 else everybody
            swarm.world.at(0.01 * number, swarm.cluster.start, number, entries)
        swarm.run(5.0)
        for observer in everybody:
            assert swarm.membership(observer).roster.present_count == peers

    def test_entry_that_appears_late_is_found(self) -> None:
        """BOOT-02 b."""
        swarm = Swarm(seed=1, peers=2, start=False)
        swarm.cluster.start(1, (0,))
        swarm.run(60.0)
        swarm.cluster.start(0)
        swarm.run(swarm.limits.retry_known_max_s + 2.0)
        assert swarm.membership(1).roster.present_count == 2


class TestStages:
    def test_storm_of_joiners_ends_balanced_without_moves(self) -> None:
        """STAG-05."""
        for seed in range(3):
            swarm = Swarm(seed=seed, peers=4, spare=8)
            for number in range(4, 12):
                swarm.world.after(0.0125 * (number - 4), swarm.cluster.start, number, (number % 4,))
            swarm.run(20.0)
            sizes = swarm.map_sizes()
            assert (sum(sizes), max(sizes) - min(sizes)) == (12, 0)
            swarm.run(60.0)
            assert swarm.moves() == []

    def test_last_peer_of_a_stage_is_replaced_by_one(self) -> None:
        """STAG-01."""
        swarm = Swarm(seed=2, peers=3)
        sizes = swarm.map_sizes()
        alone = next(n for n in range(3) if swarm.membership(n).record.stage == sizes.index(1))
        swarm.cluster.crash(alone)
        swarm.run(swarm.limits.dead_after_s + 5.0)
        assert len(swarm.moves()) == 1
        observer = 0 if alone else 1
        assert swarm.map_sizes(observer) == [1, 1]

    def test_flapping_peer_moves_nobody_twice_and_ends_on_standby(self) -> None:
        """STAG-02: it leaves and returns every 20 s for ten minutes."""
        swarm = Swarm(seed=3, peers=5, stages=2)
        for _ in range(30):
            swarm.cluster.command(1, "leave")
            swarm.run(0.5)
            swarm.cluster.crash(1)
            swarm.run(9.5)
            swarm.cluster.start(1, (0,))
            swarm.run(10.0)
        moves = swarm.moves()
        assert all(moves.count(f"p{n}") <= 1 for n in (0, 2, 3, 4)), moves
        record = swarm.membership(1).record
        assert (record.phase, record.stage) == ("joining", None)

    def test_three_against_one_is_one_move(self) -> None:
        """STAG-02: two of stage 1's three leave it for good."""
        swarm = Swarm(seed=5, peers=6)
        gone = [n for n in range(6) if swarm.membership(n).record.stage == 1][:2]
        for number in gone:
            swarm.cluster.crash(number)
        swarm.run(90.0)
        observer = min(set(range(6)) - set(gone))
        assert swarm.map_sizes(observer) == [2, 2]
        assert len(swarm.moves()) == 1

    @pytest.mark.parametrize("seed", range(3))
    def test_whoever_moved_last_is_restarted_and_decisions_go_on(self, seed: int) -> None:
        """MEMB-03: ten times, within a second."""
        swarm = Swarm(seed=seed, peers=6)
        for _ in range(10):
            victim = max(range(6), key=lambda n: (swarm.membership(n).record.version, n))
            swarm.cluster.crash(victim)
            swarm.run(1.0)
            swarm.cluster.start(victim, (0 if victim else 1,))
            swarm.run(5.0)
            assert all(swarm.map_sizes(0)), "both stages are held"
        swarm.run_until_settled(within_s=10.0)


class TestLies:
    @pytest.mark.parametrize("lie", sorted(LIES))
    @pytest.mark.parametrize("seed", range(3))
    def test_liar_changes_nothing_for_the_honest(self, lie: str, seed: int) -> None:
        """SEC-04."""
        swarm = Swarm(seed=seed, peers=8)
        make_liar(swarm.cluster, 3, lie)
        swarm.run(60.0)
        assert swarm.violations == []
        dead = swarm.told("peer_dead")
        assert dead == swarm.told("peer_dead", 3), "nobody but the liar may seem dead"
        swarm.run_until_settled(within_s=40.0)

    @pytest.mark.parametrize(
        ("lie", "code"),
        [
            ("forge", "bad_signature"),
            ("foreign", "wrong_run"),
            ("garble", "malformed"),
        ],
    )
    def test_liar_is_counted_by_its_neighbours(self, lie: str, code: str) -> None:
        swarm = Swarm(seed=1, peers=6)
        make_liar(swarm.cluster, 3, lie)
        swarm.run(30.0)
        liar = swarm.cluster.peers[3].peer
        for observer in (0, 1, 2, 4, 5):
            rejected = swarm.membership(observer).statistics().rejected
            assert set(rejected) == {liar}
            assert rejected[liar][code] > 0

    def test_accuser_in_others_names_is_counted_where_it_is_not_simply_known_better(self) -> None:
        """Who hears the accused itself does not look at hearsay at all."""
        swarm = Swarm(seed=1, peers=16)
        make_liar(swarm.cluster, 3, "accuse")
        swarm.run(15.0)
        liar = swarm.cluster.peers[3].peer
        counted = [
            swarm.membership(n).statistics().rejected.get(liar, {}).get("bad_signature", 0)
            for n in range(16)
        ]
        assert sum(count > 0 for count in counted) >= 2


class TestCost:
    def test_messages_a_peer_do_not_grow_with_the_swarm(self) -> None:
        rates = {}
        for peers in (12, 32):
            swarm = Swarm(seed=1, peers=peers)
            swarm.run(30.0)
            network = swarm.cluster.network
            before_s, messages, size = swarm.world.now_s, network.sent_messages, network.sent_bytes
            swarm.run(30.0)
            peer_seconds = peers * (swarm.world.now_s - before_s)
            rates[peers] = (network.sent_messages - messages) / peer_seconds
            assert (network.sent_bytes - size) / peer_seconds < 12_000
        assert rates[32] < 1.5 * rates[12]
        assert rates[32] < 16

    def test_links_a_peer_stay_few(self) -> None:
        swarm = Swarm(seed=1, peers=32)
        swarm.run(60.0)
        links = [len(swarm.membership(n).keeper.links) for n in range(32)]
        assert max(links) <= 2 * swarm.limits.rings + 2

    def test_times_on_the_wire_are_relative(self) -> None:
        """MEMB-06: clocks differ by up to a million seconds from the start (cluster.py)."""
        origins = [peer.clock_origin_s for peer in Swarm(seed=1, peers=6).cluster.peers]
        assert max(origins) - min(origins) > 3_600
