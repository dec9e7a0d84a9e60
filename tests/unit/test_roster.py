"""The roster: a join that does not care for order, and records that only their peers can sign."""

from __future__ import annotations

import random

import pytest
from gossip_helpers import RUN, peer_id, record, signed
from hypothesis import given
from hypothesis import strategies as st

from swarmd.protocols import limits
from swarmd.protocols.errors import LocalProtocolError, RemoteProtocolError
from swarmd.protocols.messages.gossip import SignedRecord
from swarmd.protocols.records import join
from swarmd.protocols.roster import Liveness, Meaning, Roster
from swarmd.sim.sim_peer import verify

PHASES = ("joining", "syncing", "active", "draining", "left")


def roster(own: str = "own") -> Roster:
    return Roster(peer_id(own), RUN, verify)


records = st.builds(
    lambda incarnation, version, refutation, phase, stage: signed(
        record(
            "x",
            incarnation=incarnation,
            version=version,
            refutation=refutation,
            phase=phase,
            stage=stage,
        )
    ),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(PHASES),
    st.integers(0, 2),
)


@given(records, records)
def test_join_is_commutative(a: SignedRecord, b: SignedRecord) -> None:
    assert join(a, b) == join(b, a)


@given(records, records, records)
def test_join_is_associative(a: SignedRecord, b: SignedRecord, c: SignedRecord) -> None:
    assert join(join(a, b), c) == join(a, join(b, c))


@given(records)
def test_join_is_idempotent(a: SignedRecord) -> None:
    assert join(a, a) == a


@given(st.lists(records, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_same_records_in_any_order_and_number_give_the_same_entry(
    some: list[SignedRecord], rng: random.Random
) -> None:
    shuffled = some + rng.sample(some, len(some) // 2)
    rng.shuffle(shuffled)
    one, other = roster(), roster()
    for item in some:
        one.merge(item, 0.0)
    for item in shuffled:
        other.merge(item, 0.0)
    entries = one.get(peer_id("x")), other.get(peer_id("x"))
    assert entries[0] is not None
    assert entries[1] is not None
    assert entries[0].signed == entries[1].signed
    assert entries[0].fingerprint == entries[1].fingerprint


@given(st.lists(records, min_size=1, max_size=8))
def test_roster_holds_what_join_of_all_says(some: list[SignedRecord]) -> None:
    held = roster()
    best = some[0]
    for item in some:
        held.merge(item, 0.0)
        best = join(best, item)
    entry = held.get(peer_id("x"))
    assert entry is not None
    assert entry.signed == best


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signed(record("x"), by="liar"), "bad_signature"),
        (signed(record("x", run_id="b" * 64)), "wrong_run"),
        (signed(record("x", phase="king")), "malformed"),
        (signed(record("", peer="")), "malformed"),
        (SignedRecord(body=b"\x93\x01\x02", signature=b""), "malformed"),
        (SignedRecord(body=b"", signature=b""), "malformed"),
        (SignedRecord(body=signed(record("x")).body, signature=b""), "bad_signature"),
    ],
)
def test_bad_record_is_rejected_with_its_code_and_changes_nothing(
    sent: SignedRecord, code: str
) -> None:
    held = roster()
    held.merge(signed(record("y")), 0.0)
    revision = held.revision
    with pytest.raises(RemoteProtocolError) as caught:
        held.merge(sent, 1.0)
    assert caught.value.code == code
    assert held.counters[code] == 1
    assert (list(held), held.revision) == ([peer_id("y")], revision)


def test_older_record_is_counted_and_not_taken() -> None:
    held = roster()
    held.merge(signed(record("x", version=5, stage=1)), 0.0)
    merged = held.merge(signed(record("x", version=4, stage=2)), 1.0)
    assert merged.meaning is Meaning.OLDER
    assert held.counters["duplicate"] == 1
    assert held.get(peer_id("x")).record.stage == 1  # type: ignore[union-attr]


def test_verification_is_asked_only_for_news() -> None:
    asked = []

    def counting(*args: object) -> bool:
        asked.append(args)
        return True

    held = Roster(peer_id("own"), RUN, counting)
    new = signed(record("x", version=2))
    held.merge(new, 0.0)
    held.merge(new, 0.0)
    held.merge(signed(record("x", version=1)), 0.0)
    assert len(asked) == 1


def test_equivocation_with_one_stamp_ends_the_same_everywhere() -> None:
    a, b = signed(record("x", stage=1)), signed(record("x", stage=2))
    one, other = roster(), roster()
    for item in (a, b):
        one.merge(item, 0.0)
    for item in (b, a):
        other.merge(item, 0.0)
    assert one.get(peer_id("x")).signed == other.get(peer_id("x")).signed  # type: ignore[union-attr]


def test_restart_is_one_entry_with_a_higher_incarnation() -> None:
    held = roster()
    held.merge(signed(record("x", incarnation=1, version=90)), 0.0)
    merged = held.merge(signed(record("x", incarnation=2, version=1)), 1.0)
    assert merged.meaning is Meaning.RETURNED
    assert list(held) == [peer_id("x")]
    assert held.get(peer_id("x")).record.incarnation == 2  # type: ignore[union-attr]


class TestLiveness:
    def test_newer_version_of_the_same_life_does_not_bring_the_dead_back(self) -> None:
        held = roster()
        held.merge(signed(record("x", version=1)), 0.0)
        entry = held.get(peer_id("x"))
        assert entry is not None
        held.set_liveness(entry, Liveness.DEAD, 1.0)
        merged = held.merge(signed(record("x", version=2)), 2.0)
        assert merged.meaning is Meaning.CHANGED
        assert entry.liveness is Liveness.DEAD

    @pytest.mark.parametrize("later", [{"refutation": 1}, {"incarnation": 2}])
    def test_later_life_brings_the_dead_back(self, later: dict[str, int]) -> None:
        held = roster()
        held.merge(signed(record("x", version=1)), 0.0)
        entry = held.get(peer_id("x"))
        assert entry is not None
        held.set_liveness(entry, Liveness.DEAD, 1.0)
        merged = held.merge(signed(record("x", version=2, **later)), 2.0)
        assert merged.meaning is Meaning.RETURNED
        assert entry.liveness is Liveness.ALIVE

    def test_refuted_suspect_returns_with_higher_refutation(self) -> None:
        held = roster()
        held.merge(signed(record("x", version=1)), 0.0)
        entry = held.get(peer_id("x"))
        assert entry is not None
        held.set_liveness(entry, Liveness.SUSPECT, 1.0)
        merged = held.merge(signed(record("x", version=2, refutation=1)), 2.0)
        assert merged.meaning is Meaning.REFUTED

    def test_only_its_own_record_makes_a_peer_left(self) -> None:
        held = roster()
        held.merge(signed(record("x", version=1)), 0.0)
        with pytest.raises(RemoteProtocolError):
            held.merge(signed(record("x", version=2, phase="left"), by="liar"), 1.0)
        assert held.present_count == 1
        held.merge(signed(record("x", version=2, phase="left")), 1.0)
        assert held.present_count == 0

    def test_dead_are_remembered_for_a_day_and_then_forgotten(self) -> None:
        held = roster()
        held.merge(signed(record("x")), 0.0)
        held.set_liveness(held.get(peer_id("x")), Liveness.DEAD, 10.0)  # type: ignore[arg-type]
        assert held.forget_older_than(86_400.0, 86_400.0) == []
        assert held.forget_older_than(86_400.0, 86_411.0) == [peer_id("x")]
        assert list(held) == []

    def test_present_cannot_be_forgotten(self) -> None:
        held = roster()
        held.merge(signed(record("x")), 0.0)
        assert not held.forget(peer_id("x"))


class TestBound:
    def test_full_roster_takes_nobody_while_everybody_lives(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "PEERS_MAX", 3)
        held = roster()
        for name in "abc":
            held.merge(signed(record(name)), 0.0)
        with pytest.raises(RemoteProtocolError) as caught:
            held.merge(signed(record("d")), 1.0)
        assert caught.value.code == "run_full"

    def test_full_roster_forgets_the_one_dead_longest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "PEERS_MAX", 3)
        held = roster()
        for at_s, name in enumerate("abc"):
            held.merge(signed(record(name)), 0.0)
            held.set_liveness(held.get(peer_id(name)), Liveness.DEAD, 9.0 - at_s)  # type: ignore[arg-type]
        held.merge(signed(record("d")), 20.0)
        assert list(held) == [peer_id(name) for name in "abd"]


class TestView:
    def test_view_is_sorted_and_the_same_object_until_something_changes(self) -> None:
        held = roster()
        for name in ("c", "a", "b"):
            held.merge(signed(record(name)), 0.0)
        view = held.view(0.5)
        assert [item.record.name for item in view.peers] == ["a", "b", "c"]
        assert held.view(0.6) is view
        held.merge(signed(record("a", version=2)), 0.7)
        assert held.view(0.7) is not view
        assert view.get(peer_id("a")).record.version == 1  # type: ignore[union-attr]

    def test_shape_stays_while_only_progress_changes(self) -> None:
        held = roster()
        held.merge(signed(record("x", version=1)), 0.0)
        before = held.view(0.0)
        held.merge(signed(record("x", version=2, step=7, micro_batches=9, tokens_per_s=3.0)), 0.0)
        after = held.view(0.0)
        assert after.shape == before.shape
        assert after.revision > before.revision
        held.merge(signed(record("x", version=3, stage=1)), 0.0)
        assert held.view(0.0).shape > before.shape

    def test_revision_counts_every_change_of_liveness(self) -> None:
        held = roster()
        held.merge(signed(record("x")), 0.0)
        entry = held.get(peer_id("x"))
        assert entry is not None
        before = held.revision
        held.set_liveness(entry, Liveness.SUSPECT, 1.0)
        held.set_liveness(entry, Liveness.SUSPECT, 2.0)
        assert held.revision == before + 1
        assert entry.since_s == 1.0


def test_own_record_must_advance() -> None:
    held = roster("x")
    first = record("x", version=1)
    held.put_own(signed(first), first, 0.0)
    with pytest.raises(LocalProtocolError):
        held.put_own(signed(first), first, 1.0)


def test_foreign_copy_of_the_own_record_changes_nothing() -> None:
    held = roster("x")
    own = record("x", version=1)
    held.put_own(signed(own), own, 0.0)
    merged = held.merge(signed(record("x", incarnation=9)), 1.0)
    assert merged.meaning is Meaning.OWN
    assert held.get(peer_id("x")).record == own  # type: ignore[union-attr]
