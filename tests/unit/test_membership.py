"""One machine or two, event by event: what membership does about links, silence and lies."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from gossip_helpers import Pair, membership, peer_id, record, signed

from swarmd.protocols import effects as fx
from swarmd.protocols.accusers import Accusers
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.introductions import CREDIT_MIN, NEW_HERE_S
from swarmd.protocols.membership import TICK, Membership
from swarmd.protocols.messages import control, gossip
from swarmd.protocols.roster import Liveness
from swarmd.protocols.telling import GOSSIP
from swarmd.sim.sim_peer import signature_of, verify

A, B, C, D = (peer_id(name) for name in "abcd")


def linked_pair() -> Pair:
    pair = Pair(membership("a"), membership("b"))
    pair.link()
    pair.tick(2.0)
    return pair


def rumour_by(
    accuser: str, about: str, verdict: str, life: tuple[int, int] = (1, 0)
) -> gossip.Rumour:
    key = peer_id(accuser)
    maker = Accusers(key, "a" * 64, lambda body: signature_of(key, body), verify)
    return maker.rumour(peer_id(about), life, verdict)


def sends(effects: list[fx.Effect], kind: type) -> list[tuple[PeerId, object]]:
    return [
        (effect.peer, effect.message)
        for effect in effects
        if isinstance(effect, fx.Send) and isinstance(effect.message, kind)
    ]


def started(name: str = "a", now_s: float = 100.0, **known: gossip.PeerRecord) -> Membership:
    """A machine that knows these records from a linked peer b."""
    machine = membership(name)
    machine.handle(fx.Started(), now_s)
    for item in known.values():
        machine.learn(signed(item), B, now_s)
    return machine


class TestMeeting:
    def test_two_linked_peers_know_each_other(self) -> None:
        pair = linked_pair()
        for machine in pair.machines.values():
            assert list(machine.roster) == [A, B]
        assert "peer_joined" in pair.names(A)
        assert "peer_joined" in pair.names(B)

    def test_entry_address_is_dialled_until_its_peer_is_known(self) -> None:
        machine = started()
        machine.introduce(B, ("/ip4/10.0.0.9/tcp/1",))
        effects = machine.handle(fx.TimerFired(TICK), 101.0)
        assert fx.Dial(B, ("/ip4/10.0.0.9/tcp/1",)) in effects
        assert not any(isinstance(e, fx.Dial) for e in machine.handle(fx.TimerFired(TICK), 102.0))
        machine.handle(fx.DialFailed(B, {}), 103.0)
        waits = [
            t
            for t in range(104, 110)
            if any(isinstance(e, fx.Dial) for e in machine.handle(fx.TimerFired(TICK), float(t)))
        ]
        assert len(waits) == 1, "once, after the back-off"

    def test_back_off_doubles_to_its_bound(self) -> None:
        machine = started()
        machine.introduce(B, ("/x",))
        now_s, dials = 100.0, []
        for _ in range(2_000):
            now_s += 0.25
            for effect in machine.handle(fx.TimerFired(TICK), now_s):
                if isinstance(effect, fx.Dial):
                    dials.append(now_s)
                    machine.handle(fx.DialFailed(B, {}), now_s)
        gaps = [later - earlier for earlier, later in itertools.pairwise(dials)]
        assert gaps[0] < gaps[1] < gaps[2]
        assert max(gaps) <= 1.25 * machine.limits.retry_known_max_s + 0.5

    def test_address_without_a_peer_behind_it_does_not_make_a_member(self) -> None:
        machine = started()
        machine.introduce(B, ("/x",))
        assert list(machine.roster) == [A]

    def test_record_of_another_run_is_rejected_and_its_sender_counted(self) -> None:
        pair = linked_pair()
        foreign = signed(record("c", run_id="b" * 64))
        pair.do(A, fx.Arrived(B, gossip.Gossip(records=(foreign,))))
        told = pair.machines[A].statistics()
        assert told.rejected == {B: {"wrong_run": 1}}
        assert C not in pair.machines[A].roster

    def test_forged_record_is_rejected_and_the_rest_of_the_message_taken(self) -> None:
        pair = linked_pair()
        forged, true = signed(record("c"), by="b"), signed(record("d"))
        pair.do(A, fx.Arrived(B, gossip.Gossip(records=(forged, true))))
        assert pair.machines[A].statistics().rejected == {B: {"bad_signature": 1}}
        assert list(pair.machines[A].roster) == [A, B, D]


class TestOwnRecord:
    def test_urgent_change_is_told_soon(self) -> None:
        pair = linked_pair()
        pair.carry(A, pair.machines[A].update_own(pair.now_s, stage=2))
        pair.do(A, fx.TimerFired(GOSSIP))
        assert pair.machines[B].roster.get(A).record.stage == 2  # type: ignore[union-attr]

    def test_new_round_is_gathered_and_shapes_nothing(self) -> None:
        pair = linked_pair()
        limits, shape = pair.machines[A].limits, pair.machines[B].roster.shape
        effects = pair.machines[A].update_own(pair.now_s, insist=True, round=1)
        assert [e for e in effects if isinstance(e, fx.SetTimer)] == [
            fx.SetTimer(GOSSIP, limits.gossip_gathered_s)
        ]
        pair.now_s += limits.gossip_gathered_s
        pair.do(A, fx.TimerFired(GOSSIP))
        held = pair.machines[B].roster.get(A)
        assert held is not None
        assert held.record.round == 1
        assert pair.machines[B].roster.shape == shape

    def test_claim_does_not_wait_for_the_round_that_is_gathered(self) -> None:
        pair = linked_pair()
        machine, limits = pair.machines[A], pair.machines[A].limits
        pair.now_s += 1.0
        machine.update_own(pair.now_s, insist=True, round=1)
        effects = machine.update_own(pair.now_s, stage=3)
        (timer,) = [effect for effect in effects if isinstance(effect, fx.SetTimer)]
        assert timer.delay_s == pytest.approx(limits.gossip_delay_s)

    def test_new_round_is_told_to_every_neighbour(self) -> None:
        """Mere progress is not: the next overtakes it, and after a run's last round comes none."""
        pair = linked_pair()
        machine = pair.machines[A]
        others = [peer_id(f"n{number}") for number in range(6)]
        for before in (record("d"), record("e", round=1)):
            machine.learn(signed(before), B, pair.now_s)
            machine.news.withdraw((PeerId(before.peer), "record"))
        later = [replace(record(n), version=2, round=1, step=5) for n in ("d", "e")]
        machine.learn(signed(later[0]), B, pair.now_s)
        machine.learn(signed(later[1]), B, pair.now_s)
        told = [machine.news.take(peer)[0] for peer in others]
        assert [len(records) for records in told] == [2, 2, 2, 1, 1, 1]
        assert all(signed(later[0]) in records for records in told)

    def test_round_that_nobody_insists_on_waits_as_progress_does(self) -> None:
        pair = linked_pair()
        machine = pair.machines[A]
        machine.update_own(pair.now_s, stage=1)  # from now on something was told just now
        version = machine.record.version
        assert machine.update_own(pair.now_s, round=1) == []
        assert machine.record.version == version
        until_s = pair.now_s + 1.5 * machine.limits.progress_s_min
        while machine.record.round == 0 and pair.now_s < until_s:
            pair.now_s += machine.limits.tick_s
            machine.handle(fx.TimerFired(TICK), pair.now_s)
        assert machine.record.round == 1

    def test_progress_waits_and_is_told_at_most_so_often(self) -> None:
        pair = linked_pair()
        start = pair.machines[A].record.version
        for step in range(40):
            pair.carry(A, pair.machines[A].update_own(pair.now_s, step=step))
            pair.tick(0.25)
        told = pair.machines[A].record.version - start
        assert 2 <= told <= 10.0 / pair.machines[A].limits.progress_s_min / 0.75 + 1
        known = pair.machines[B].roster.get(A).record.step  # type: ignore[union-attr]
        assert known > 20

    def test_change_that_changes_nothing_is_not_told(self) -> None:
        pair = linked_pair()
        version = pair.machines[A].record.version
        assert pair.machines[A].update_own(pair.now_s, stage=0, phase="active") == []
        assert pair.machines[A].record.version == version

    @pytest.mark.parametrize(
        "changes", [{"peer": "x"}, {"version": 9}, {"no_such": 1}, {"phase": "king"}]
    )
    def test_what_is_not_ours_to_set_is_our_own_error(self, changes: dict[str, object]) -> None:
        machine = started()
        with pytest.raises(LocalProtocolError):
            machine.update_own(100.0, **changes)

    def test_leaving_is_told_to_every_link_and_nothing_follows(self) -> None:
        pair = linked_pair()
        pair.carry(A, pair.machines[A].leave(pair.now_s))
        assert pair.names(B)[-1] == "peer_left"
        assert pair.machines[A].handle(fx.TimerFired(TICK), pair.now_s + 1) == []
        pair.do(B, fx.LinkDown(A, "lost"))
        assert "peer_suspect" not in pair.names(B)


class TestSilence:
    def test_quiet_link_is_probed_and_the_answer_measured(self) -> None:
        pair = linked_pair()
        pair.sent.clear()
        pair.tick(3.0)
        kinds = {type(message).__name__ for _, message in pair.sent}
        assert {"Probe", "Ack"} <= kinds
        assert any(
            machine.rtt_s(other) is not None
            for machine, other in ((pair.machines[A], B), (pair.machines[B], A))
        )

    def test_link_that_talks_is_not_probed(self) -> None:
        pair = linked_pair()
        pair.sent.clear()
        for _ in range(20):
            for me, other in ((A, B), (B, A)):
                pair.carry(me, pair.machines[me].heard(other, pair.now_s))
            pair.tick(0.25)
        assert not any(isinstance(message, gossip.Probe) for _, message in pair.sent)

    def test_frozen_peer_is_suspected_then_dead_and_dropped_in_time(self) -> None:
        pair = linked_pair()
        machine = pair.machines.pop(B)
        froze_s = pair.now_s
        pair.tick(machine.limits.dead_after_s, A)
        names = pair.names(A)
        assert names.index("peer_suspect") < names.index("peer_dead")
        assert (A, B) in pair.dropped
        entry = pair.machines[A].roster.get(B)
        assert entry is not None
        assert entry.since_s - froze_s <= pair.machines[A].limits.dead_after_s

    def test_end_of_a_link_without_goodbye_is_suspect_at_once(self) -> None:
        pair = linked_pair()
        pair.do(A, fx.LinkDown(B, "lost"))
        assert pair.names(A)[-1] == "peer_suspect"

    def test_suspect_is_dialled_at_once_whatever_the_back_off(self) -> None:
        machine = started(b=record("b", addresses=("/b",)))
        now_s = 100.0
        for _ in range(6):
            machine.handle(fx.LinkUp(B), now_s)
            now_s += 0.2
            machine.handle(fx.LinkDown(B, "lost"), now_s)
            now_s += 0.3
            effects = machine.handle(fx.TimerFired(TICK), now_s)
            answer = signed(record("b", version=9, refutation=int(10 * now_s)))
            assert any(isinstance(effect, fx.Dial) and effect.peer == B for effect in effects)
            machine.learn(answer, B, now_s)

    def test_end_of_a_link_after_goodbye_is_not_suspect(self) -> None:
        pair = linked_pair()
        pair.do(A, fx.Arrived(B, control.Goodbye(reason="surplus")))
        pair.do(A, fx.LinkDown(B, "dropped"))
        assert (A, B) in pair.dropped
        assert "peer_suspect" not in pair.names(A)

    def test_suspect_that_comes_back_is_told_and_refutes(self) -> None:
        pair = linked_pair()
        pair.do(A, fx.LinkDown(B, "lost"))
        pair.do(B, fx.LinkDown(A, "closed"))
        pair.link()
        pair.tick(1.0)
        assert "refuted" in pair.names(B)
        assert pair.names(A)[-1] == "peer_refuted"
        assert pair.machines[A].roster.get(B).record.refutation == 1  # type: ignore[union-attr]
        assert pair.machines[A].roster.get(B).record.incarnation == 1  # type: ignore[union-attr]

    def test_failed_dial_alone_accuses_nobody_while_a_helper_hears_the_peer(self) -> None:
        machine = started(b=record("b"), c=record("c"))
        machine.handle(fx.LinkUp(B), 100.0)
        machine.handle(fx.DialFailed(C, {"/x": "timeout"}), 101.0)
        effects = machine.handle(fx.TimerFired(TICK), 101.25)
        (helper, request) = sends(effects, gossip.ProbeRequest)[0]
        assert (helper, request.target) == (B, C)  # type: ignore[attr-defined]
        reply = gossip.ProbeReply(sequence=request.sequence, heard=True)  # type: ignore[attr-defined]
        machine.handle(fx.Arrived(B, reply), 101.5)
        for step in range(12):
            now_s = 101.75 + step / 4
            machine.heard(B, now_s)
            machine.handle(fx.TimerFired(TICK), now_s)
        assert machine.roster.get(C).liveness is Liveness.ALIVE  # type: ignore[union-attr]

    def test_nobody_hears_it_and_then_it_is_suspect(self) -> None:
        machine = started(b=record("b"), c=record("c"))
        machine.handle(fx.LinkUp(B), 100.0)
        machine.handle(fx.DialFailed(C, {"/x": "timeout"}), 101.0)
        effects = machine.handle(fx.TimerFired(TICK), 101.25)
        (_, request) = sends(effects, gossip.ProbeRequest)[0]
        reply = gossip.ProbeReply(sequence=request.sequence, heard=False)  # type: ignore[attr-defined]
        machine.handle(fx.Arrived(B, reply), 101.5)
        score = machine.health.score
        for step in range(12):
            now_s = 101.75 + step / 4
            machine.heard(B, now_s)
            machine.handle(fx.TimerFired(TICK), now_s)
        assert machine.roster.get(C).liveness is Liveness.SUSPECT  # type: ignore[union-attr]
        assert machine.health.score == score, "the helper answered, so our own links work"

    def test_helper_answers_from_what_it_just_heard(self) -> None:
        machine = started(b=record("b"), c=record("c"))
        machine.handle(fx.LinkUp(B), 100.0)
        machine.handle(fx.LinkUp(C), 100.0)
        request = gossip.ProbeRequest(sequence=7, target=C)
        effects = machine.handle(fx.Arrived(B, request), 100.2)
        assert sends(effects, gossip.ProbeReply) == [(B, gossip.ProbeReply(sequence=7, heard=True))]

    def test_helper_without_a_link_dials_and_reports_the_failure(self) -> None:
        machine = started(b=record("b"), c=record("c"))
        machine.handle(fx.LinkUp(B), 100.0)
        request = gossip.ProbeRequest(sequence=7, target=C)
        effects = machine.handle(fx.Arrived(B, request), 100.2)
        assert any(isinstance(effect, fx.Dial) and effect.peer == C for effect in effects)
        effects = machine.handle(fx.DialFailed(C, {}), 100.5)
        assert sends(effects, gossip.ProbeReply) == [
            (B, gossip.ProbeReply(sequence=7, heard=False))
        ]


class TestPause:
    @pytest.mark.parametrize(
        ("pause_s", "answer"), [(4.0, "refuted"), (30.0, "incarnation_raised")]
    )
    def test_own_pause_accuses_nobody_and_is_contradicted_ahead(
        self, pause_s: float, answer: str
    ) -> None:
        """So long that others may hold it for dead: it begins a new life."""
        pair = linked_pair()
        pair.now_s += pause_s
        pair.emits.clear()
        pair.do(A, fx.TimerFired(TICK))
        assert pair.names(A) == [answer]
        pair.tick(3.0)
        assert "peer_suspect" not in pair.names(A)

    def test_accused_get_our_pause_on_top(self) -> None:
        pair = linked_pair()
        pair.machines.pop(B)
        pair.do(A, fx.LinkDown(B, "lost"))
        pair.tick(1.0, A)
        pair.now_s += 60.0
        pair.do(A, fx.TimerFired(TICK))
        assert pair.machines[A].roster.get(B).liveness is Liveness.SUSPECT  # type: ignore[union-attr]

    def test_links_lost_during_a_pause_are_not_held_against_the_others(self) -> None:
        pair = linked_pair()
        pair.now_s += 30.0
        pair.emits.clear()
        pair.do(A, fx.LinkDown(B, "lost"))
        assert "peer_suspect" not in pair.names(A)

    def test_loop_lag_stretches_our_patience(self) -> None:
        machine = started()
        machine.handle(fx.LoopLag(0.1), 100.1)
        assert machine.health.multiplier == 1.0
        machine.handle(fx.LoopLag(2.0), 100.2)
        assert machine.health.multiplier == 2.0


class TestRumours:
    def with_c(self) -> Pair:
        pair = linked_pair()
        news = gossip.Gossip(records=(signed(record("c")), signed(record("d"))))
        pair.do(A, fx.Arrived(B, news))
        return pair

    def arrive(self, pair: Pair, *rumours: gossip.Rumour) -> None:
        pair.do(A, fx.Arrived(B, gossip.Gossip(rumours=rumours)))

    def liveness(self, pair: Pair, who: PeerId = C) -> Liveness:
        entry = pair.machines[A].roster.get(who)
        assert entry is not None
        return entry.liveness

    def test_genuine_accusation_makes_suspect(self) -> None:
        pair = self.with_c()
        self.arrive(pair, rumour_by("d", "c", "suspect"))
        assert self.liveness(pair) is Liveness.SUSPECT

    def test_accusation_in_anothers_name_is_rejected(self) -> None:
        pair = self.with_c()
        self.arrive(pair, replace(rumour_by("b", "c", "suspect"), accuser=D))
        assert self.liveness(pair) is Liveness.ALIVE
        assert pair.machines[A].statistics().rejected == {B: {"bad_signature": 1}}

    def test_accusation_by_a_stranger_is_ignored(self) -> None:
        pair = self.with_c()
        self.arrive(pair, rumour_by("nobody", "c", "dead"))
        assert self.liveness(pair) is Liveness.ALIVE

    def test_death_is_not_believed_before_the_accused_could_answer(self) -> None:
        pair = self.with_c()
        self.arrive(pair, rumour_by("d", "c", "dead"))
        assert self.liveness(pair) is Liveness.SUSPECT

    def test_death_is_believed_of_one_that_stood_accused(self) -> None:
        pair = self.with_c()
        self.arrive(pair, rumour_by("d", "c", "suspect"))
        pair.tick(2.0)
        self.arrive(pair, rumour_by("d", "c", "dead"))
        assert self.liveness(pair) is Liveness.SUSPECT, "one voice is not enough"
        self.arrive(pair, rumour_by("b", "c", "dead"))
        assert self.liveness(pair) is Liveness.DEAD

    def look(self, pair: Pair, seconds: float, *, heard: bool) -> list[gossip.Rumour]:
        """Let time pass; b answers what a asks about c. Returns what b was to tell it."""
        passed: list[gossip.Rumour] = []
        for _ in range(int(4 * seconds)):
            pair.sent.clear()
            pair.tick(0.25)
            for who, message in list(pair.sent):
                if who == A and isinstance(message, gossip.ProbeRequest) and message.target == C:
                    passed += message.rumours
                    reply = gossip.ProbeReply(sequence=message.sequence, heard=heard)
                    pair.do(A, fx.Arrived(B, reply))
        return passed

    def test_lone_voice_makes_us_look_before_we_believe(self) -> None:
        pair = self.with_c()
        self.arrive(pair, rumour_by("d", "c", "suspect"))
        self.look(pair, 5.0, heard=False)
        assert self.liveness(pair) is Liveness.SUSPECT
        self.look(pair, 4.0, heard=False)
        assert self.liveness(pair) is Liveness.DEAD

    def test_one_whom_a_helper_hears_is_told_and_gets_time_to_refute(self) -> None:
        for refutes, verdict in ((True, Liveness.ALIVE), (False, Liveness.DEAD)):
            pair = self.with_c()
            accusation = rumour_by("d", "c", "suspect")
            self.arrive(pair, accusation)
            assert accusation in self.look(pair, 7.0, heard=True)
            assert self.liveness(pair) is Liveness.SUSPECT
            if refutes:
                answer = signed(record("c", version=2, refutation=1))
                pair.do(A, fx.Arrived(B, gossip.Gossip(records=(answer,))))
            self.look(pair, 4.0, heard=True)
            assert self.liveness(pair) is verdict

    def test_stranger_that_comes_with_its_death_is_dead(self) -> None:
        """Else a newcomer would wake the dead of the whole swarm."""
        pair = linked_pair()
        news = gossip.Gossip(
            records=(signed(record("d")), signed(record("c"))),
            rumours=(rumour_by("d", "c", "dead"),),
        )
        pair.do(A, fx.Arrived(B, news))
        assert self.liveness(pair) is Liveness.DEAD

    def test_stranger_that_only_its_accuser_calls_dead_may_answer(self) -> None:
        pair = linked_pair()
        news = gossip.Gossip(records=(signed(record("c")),), rumours=(rumour_by("b", "c", "dead"),))
        pair.do(A, fx.Arrived(B, news))
        assert self.liveness(pair) is Liveness.SUSPECT

    def test_rumour_of_an_earlier_life_is_stale(self) -> None:
        pair = self.with_c()
        later = signed(record("c", version=2, refutation=3))
        pair.do(A, fx.Arrived(B, gossip.Gossip(records=(later,))))
        self.arrive(pair, rumour_by("d", "c", "suspect", (1, 2)))
        assert self.liveness(pair) is Liveness.ALIVE

    def test_our_own_ears_outweigh_rumours(self) -> None:
        pair = self.with_c()
        pair.do(A, fx.LinkUp(C))
        pair.sent.clear()
        self.arrive(pair, rumour_by("d", "c", "suspect"))
        assert self.liveness(pair) is Liveness.ALIVE
        told = [message for _, message in pair.sent if isinstance(message, gossip.Gossip)]
        assert any(rumour.peer == C for message in told for rumour in message.rumours)

    def test_one_that_is_heard_but_never_answers_is_believed_dead_in_the_end(self) -> None:
        pair = self.with_c()
        pair.do(A, fx.LinkUp(C))
        self.arrive(pair, rumour_by("d", "c", "suspect"))
        for _ in range(14):
            pair.carry(A, pair.machines[A].heard(C, pair.now_s))
            pair.tick(0.25)
        self.arrive(pair, rumour_by("d", "c", "suspect"))
        assert self.liveness(pair) is Liveness.SUSPECT

    def test_accusation_of_ourselves_is_refuted(self) -> None:
        pair = self.with_c()
        self.arrive(pair, rumour_by("d", "a", "suspect"))
        assert pair.machines[A].record.refutation == 1
        assert pair.machines[A].record.incarnation == 1

    def test_refutations_are_rare_however_many_shout(self) -> None:
        pair = self.with_c()
        accused = 0
        for _ in range(40):
            accused = pair.machines[A].record.refutation
            self.arrive(pair, rumour_by("d", "a", "suspect", (1, accused)))
            pair.tick(0.05, step_s=0.05)
        assert pair.names(A).count("refuted") <= 6
        pair.tick(1.0)
        assert pair.machines[A].record.refutation > accused, "and yet the last one is answered"

    def test_false_accuser_runs_out_of_credit(self) -> None:
        pair = self.with_c()
        believed = 0
        for life in range(60):
            self.arrive(pair, rumour_by("d", "c", "suspect", (1, life)))
            believed += self.liveness(pair) is Liveness.SUSPECT
            refuted = signed(record("c", version=life + 2, refutation=life + 1))
            pair.do(A, fx.Arrived(B, gossip.Gossip(records=(refuted,))))
        assert believed == 16

    @pytest.mark.parametrize("life", [(1, 1), (1, 2**62 - 1), (2, 0), (2**62 - 1, 2**62 - 1)])
    @pytest.mark.parametrize("accused", ["a", "c"])
    def test_a_life_that_nobody_has_begun_cannot_be_accused(
        self, accused: str, life: tuple[int, int]
    ) -> None:
        machine = started("a", b=record("b"), c=record("c"))
        machine.handle(fx.LinkUp(B), 100.0)
        before = machine.record.refutation
        for verdict in ("suspect", "dead"):
            news = gossip.Gossip(rumours=(rumour_by("b", accused, verdict, life),))
            machine.handle(fx.Arrived(B, news), 100.2)
        machine.handle(fx.TimerFired(TICK), 100.3)
        entry = machine.roster.get(peer_id(accused))
        assert entry is not None
        assert entry.liveness is Liveness.ALIVE
        assert machine.record.refutation == before


class TestIdentity:
    def test_former_life_is_stepped_over(self) -> None:
        machine = started("a")
        effects = machine.learn(signed(record("a", incarnation=5)), B, 101.0)
        assert machine.record.incarnation == 6
        assert any(isinstance(e, fx.Emit) and e.name == "incarnation_raised" for e in effects)
        assert not any(isinstance(e, fx.Emit) and e.name == "identity_conflict" for e in effects)

    def test_one_that_steps_over_us_in_turn_is_another_holder_and_the_elder(self) -> None:
        machine = started("a")
        machine.learn(signed(record("a", incarnation=5)), B, 101.0)
        effects = machine.learn(signed(record("a", incarnation=7)), B, 102.0)
        roles = [e.fields["role"] for e in effects if isinstance(e, fx.Emit)]
        assert roles == ["newcomer"]
        assert machine.record.incarnation == 6, "the newcomer does not fight"

    def test_elder_keeps_its_place(self) -> None:
        machine = started("a")
        machine.handle(fx.TimerFired(TICK), 100.3)
        now_s = 100.3 + machine.limits.identity_window_s
        effects = machine.learn(signed(record("a", incarnation=2)), B, now_s)
        roles = [e.fields.get("role") for e in effects if isinstance(e, fx.Emit)]
        assert "elder" in roles
        assert machine.record.incarnation == 3


class TestBounds:
    def test_flooding_neighbour_is_counted_and_not_heard(self) -> None:
        pair = linked_pair()
        for number in range(500):
            pair.do(A, fx.Arrived(B, gossip.ProbeReply(sequence=number, heard=True)))
        rejected = pair.machines[A].statistics().rejected
        assert rejected[B]["rate_exceeded"] >= 350
        assert pair.names(A).count("record_rejected") == 1

    def test_invented_peers_run_out_of_their_tellers_credit(self) -> None:
        machine = started("a", b=record("b"))
        invented = [signed(record(f"t{number}")) for number in range(200)]
        machine.learn(invented[0], B, 100.0 + NEW_HERE_S)
        for item in invented:
            machine.learn(item, B, 101.0 + NEW_HERE_S)
        told = [peer for peer in machine.roster if peer not in (A, B)]
        assert len(told) <= CREDIT_MIN
        machine.learn(invented[-1], C, 101.0 + NEW_HERE_S)
        assert peer_id("t199") in machine.roster, "each has a credit of its own"

    def test_the_invented_dead_do_not_come_back_for_nothing(self) -> None:
        machine = started("a", b=record("b"), c=record("c"))
        entry, now_s = machine.roster.get(C), 101.0 + NEW_HERE_S
        assert entry is not None
        returns = 0
        for life in range(2, 100):
            machine.roster.set_liveness(entry, Liveness.DEAD, now_s)
            machine.learn(signed(record("c", incarnation=life)), B, now_s)
            returns += entry.is_present
        assert 0 < returns <= CREDIT_MIN
        machine.learn(signed(record("c", incarnation=200)), C, now_s)
        assert entry.is_present, "who speaks for itself needs nobody"

    def test_a_newcomer_takes_the_word_of_those_it_finds(self) -> None:
        machine = started("a")
        for number in range(200):
            machine.learn(signed(record(f"t{number}")), B, 101.0)
        assert len(machine.roster) == 201

    def test_message_from_an_unlinked_peer_is_not_heard(self) -> None:
        machine = started()
        news = gossip.Gossip(records=(signed(record("c")),))
        assert machine.handle(fx.Arrived(B, news), 101.0) == []
        assert C not in machine.roster

    def test_relays_are_bounded_and_the_rest_refused(self) -> None:
        machine = started(**{f"t{n}": record(f"t{n}") for n in range(60)})
        machine.handle(fx.LinkUp(B), 100.0)
        refused = 0
        for number in range(60):
            request = gossip.ProbeRequest(sequence=number, target=peer_id(f"t{number}"))
            refused += len(sends(machine.handle(fx.Arrived(B, request), 100.1), gossip.ProbeReply))
        assert len(machine.prober.relays) == 32
        assert refused == 28


@pytest.mark.parametrize("cause", ["lost", "stalled", "closed", "dropped", "refused"])
def test_link_of_a_peer_that_was_never_up_may_end(cause: str) -> None:
    machine = started()
    assert machine.handle(fx.LinkDown(B, cause), 101.0) == []
