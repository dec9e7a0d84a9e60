"""A checker that cannot fire is worth nothing: each rule is broken on purpose, and is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gossip_helpers import record, signed
from sim_helpers import Swarm

from swarmd.protocols import dissemination, probing, roster
from swarmd.protocols.ids import PeerId
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.messages import gossip
from swarmd.protocols.own_record import OwnRecord
from swarmd.protocols.own_voice import OwnVoice
from swarmd.protocols.roster import Entry, Liveness, Roster
from swarmd.sim.checkers import unsettled
from swarmd.sim.liars import make_liar
from swarmd.sim.run import OK, SimOptions, Simulation
from swarmd.sim.whole_run import machine_of


def rules(swarm: Swarm) -> set[str]:
    return {violation.rule for violation in swarm.checkers.violations}


def test_unbroken_swarm_breaks_no_rule() -> None:
    swarm = Swarm(peers=8)
    make_liar(swarm.cluster, 1, "forge")
    make_liar(swarm.cluster, 2, "replay")
    swarm.run(30.0)
    assert rules(swarm) == set()


def test_unverified_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(peers=8)
    for number in range(8):
        monkeypatch.setattr(swarm.membership(number).roster, "_verify", lambda *args: True)
    make_liar(swarm.cluster, 1, "forge")
    swarm.run(20.0)
    assert "record_not_its_owners" in rules(swarm)


def test_record_of_another_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(self: Roster, sent: gossip.SignedRecord) -> gossip.PeerRecord:
        return roster.read_record(sent.body)

    swarm = Swarm(peers=8)
    monkeypatch.setattr(Roster, "_check", unchecked)
    make_liar(swarm.cluster, 1, "foreign")
    swarm.run(20.0)
    assert "record_not_its_owners" in rules(swarm)


def test_older_record_taken_for_newer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(peers=8)
    monkeypatch.setattr(roster, "_is_newer", lambda sent, decoded, held: True)
    make_liar(swarm.cluster, 1, "replay")
    swarm.run(20.0)
    assert "stamp_fell" in rules(swarm)


@pytest.mark.parametrize("kind", ["twice", "miscounted"])
def test_inconsistent_roster_is_found(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def insert_twice(ids: list[PeerId], peer: PeerId) -> None:
        ids += [peer, peer]

    def miscounted(self: Roster, entry: Entry, liveness: Liveness, now_s: float) -> None:
        entry.liveness = liveness
        self.shape += 1

    if kind == "twice":
        monkeypatch.setattr(roster, "insort", insert_twice)
    else:
        monkeypatch.setattr(Roster, "set_liveness", miscounted)
    swarm = Swarm(peers=6, start=False)
    swarm.cluster.start(0)
    for number in range(1, 6):
        swarm.cluster.start(number, (0,))
    swarm.run(10.0)
    swarm.cluster.crash(1)
    swarm.run(10.0)
    assert "roster_inconsistent" in rules(swarm)


def test_boundless_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(peers=6)
    monkeypatch.setattr(dissemination, "QUEUE_MAX", 10**9)
    machine = swarm.membership(2)
    for number in range(5_000):
        sent = signed(record(f"x{number}"))
        machine.news.put((PeerId(f"x{number}"), "record"), sent)
    swarm.run(0.5)
    assert "limit_exceeded" in rules(swarm)


def test_boundless_relays_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(peers=6)
    monkeypatch.setattr(probing, "RELAYS_MAX", 10**9)
    prober = swarm.membership(2).prober
    target = swarm.cluster.peers[3].peer
    far_s = swarm.cluster.clock_of(swarm.cluster.peers[2]) + 100.0
    prober.relays += [probing._Relay(target, n, target, far_s, False) for n in range(50)]
    swarm.run(0.5)
    assert "limit_exceeded" in rules(swarm)


def never(*args: object) -> bool:
    return False


def mute(self: OwnRecord, life: object) -> None:
    """Does not contradict."""


@pytest.mark.parametrize(
    "breakage",
    [
        lambda monkeypatch: monkeypatch.setattr(OwnRecord, "refute", mute),
        lambda monkeypatch: monkeypatch.setattr(OwnVoice, "answer_accusers", never),
    ],
    ids=["refutes nothing", "answers nobody"],
)
def test_false_death_is_found(
    monkeypatch: pytest.MonkeyPatch, breakage: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breakage(monkeypatch)
    swarm = Swarm(seed=2, peers=16)
    make_liar(swarm.cluster, 1, "accuse")
    swarm.run(30.0)
    assert "false_death" in rules(swarm)


def whole_run() -> Simulation:
    options = SimOptions(peers=3, stages=1, rounds=1, seed=3, scenario="calm")
    return Simulation(options, lambda line: None)


def test_round_that_falls_is_found() -> None:
    simulation = whole_run()

    cluster, peer = simulation.cluster, simulation.cluster.peers[1]

    def fall_back() -> None:
        if peer.is_running and machine_of(peer).membership.record.round > 0:
            membership = machine_of(peer).membership
            cluster.tell(1, membership.update_own(cluster.clock_of(peer), round=0))
        else:
            simulation.world.after(0.5, fall_back)

    simulation.world.at(1.0, fall_back)
    simulation.go()
    assert "round_fell" in {violation.rule for violation in simulation.checkers.violations}


def test_end_before_the_last_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseBook, "is_complete", property(lambda book: book.ledger.settled >= 1))
    simulation = whole_run()
    simulation.go()
    assert "unclean_end" in {violation.rule for violation in simulation.checkers.violations}


def test_run_without_either_breaks_no_rule() -> None:
    simulation = whole_run()
    simulation.go()
    assert simulation.result().exit_code == OK


class TestUnsettled:
    def test_swarm_at_rest_is_settled(self) -> None:
        assert unsettled(Swarm(peers=6).cluster) == []

    def test_lacking_peer_is_named(self) -> None:
        swarm = Swarm(peers=6)
        roster_of_2 = swarm.membership(2).roster
        roster_of_2.set_liveness(swarm.entry(2, 3), Liveness.DEAD, 0.0)
        assert any("p2 lacks" in text for text in unsettled(swarm.cluster))

    def test_dead_that_seem_alive_are_named(self) -> None:
        swarm = Swarm(peers=6)
        swarm.cluster.crash(3)
        assert any("too many" in text for text in unsettled(swarm.cluster))

    def test_old_record_is_named(self) -> None:
        swarm = Swarm(peers=6)
        peer = swarm.cluster.peers[3]
        swarm.membership(3).update_own(swarm.cluster.clock_of(peer), phase="draining")
        assert any("old record of p3" in text for text in unsettled(swarm.cluster))

    def test_uncovered_stage_is_named(self) -> None:
        swarm = Swarm(peers=3)
        sizes = swarm.map_sizes()
        alone = next(n for n in range(3) if swarm.membership(n).record.stage == sizes.index(1))
        swarm.cluster.crash(alone)
        swarm.run(swarm.limits.suspicion_s_max + 0.5)
        assert any("have no peer" in text for text in unsettled(swarm.cluster))
