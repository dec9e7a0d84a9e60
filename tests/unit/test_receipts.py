"""Receipts: what neighbours sign for counts, the same on every peer, and nothing else does."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_world import LeaseWorld, lease_shape, make_book, sign_as, verify

from swarmd.ledger_shown import contributors
from swarmd.protocols import wire
from swarmd.protocols.effects import Arrived, Started
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId, RunId
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_entries import Entry, EntryKey, sign_entry
from swarmd.protocols.messages.ledger import LedgerUpdate
from swarmd.protocols.own_work import OwnWork
from swarmd.protocols.receipts import (
    CALLED,
    CALLER,
    CAP_SLACK,
    Seen,
    SeenBook,
    Witnessed,
    pack_seen,
    tag_of,
    unpack_seen,
    weight_caps,
    witnessed,
)
from swarmd.protocols.run_shape import RunShape

P0, P1, P2, P3 = (PeerId(f"p{number}") for number in range(4))
SHAPE = lease_shape(stages=3)


def seen(peer: PeerId, stage: int, role: int, samples: int) -> Seen:
    return Seen(stage, role, tag_of(peer), -(-samples // 8), samples)


def entry_of(
    witness: PeerId,
    told: Sequence[Seen],
    *,
    round_number: int = 0,
    version: int = 1,
    shape: RunShape = SHAPE,
    signer: PeerId | None = None,
) -> Entry:
    key = EntryKey(round_number, witness, 1)
    entry = Entry(key, version, witnessed=tuple(sorted(told)))
    return sign_entry(entry, shape, sign_as(signer or witness))


def taken(ledger: Ledger, entry: Entry) -> Ledger:
    assert entry.signed is not None
    checked = ledger.check(entry.signed)
    if checked is not None:
        ledger.put(checked)
    return ledger


def samples_of(found: dict[bytes, Witnessed], peer: PeerId) -> int:
    return found.get(tag_of(peer), Witnessed()).samples


# -------------------------------------------------------------------------------------------- wire

ANY_SEEN = st.builds(
    Seen,
    stage=st.just(1),
    role=st.sampled_from((CALLED, CALLER)),
    tag=st.binary(min_size=8, max_size=8),
    micro_batches=st.integers(1, 20),
    samples=st.integers(1, 8),
)


@given(st.lists(ANY_SEEN, unique_by=lambda item: item[:3]))
def test_what_is_packed_is_unpacked(items):
    told = tuple(sorted(items))
    assert unpack_seen(pack_seen(told, SHAPE), SHAPE, 0) == told


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_raise_what_peers_may_cause(body):
    try:
        found = unpack_seen(body, SHAPE, 0)
    except RemoteProtocolError:
        return
    assert pack_seen(found, SHAPE) == body or len(pack_seen(found, SHAPE)) < len(body)


@pytest.mark.parametrize(
    "told",
    [
        [seen(P1, 3, CALLED, 8)],
        [seen(P1, 0, CALLED, 8)],
        [seen(P1, 2, CALLER, 8)],
        [seen(P1, 1, CALLED, 0)],
        [seen(P1, 1, CALLED, 21 * 8)],
        [Seen(1, CALLED, tag_of(P1), 2, 0)],
        [Seen(1, CALLED, tag_of(P1), 2, -8)],
        [seen(P1, 1, CALLED, 8), seen(P1, 1, CALLED, 16)],
        [seen(P1, 1, CALLER, 8), seen(P1, 1, CALLED, 8)],
    ],
)
def test_receipts_that_no_round_can_give_are_malformed(told):
    with pytest.raises(RemoteProtocolError, match="malformed"):
        unpack_seen(pack_seen(told, SHAPE), SHAPE, 0)


def test_receipts_cut_short_are_malformed():
    body = pack_seen([seen(P1, 1, CALLED, 8)], SHAPE)
    for size in range(1, len(body)):
        with pytest.raises(RemoteProtocolError, match="malformed"):
            unpack_seen(body[:size], SHAPE, 0)


# ----------------------------------------------------------------------------------- what is proved


def test_ends_of_the_pipeline_need_one_side_and_the_middle_both():
    told = [
        (P0, (seen(P1, 1, CALLED, 40), seen(P3, 1, CALLED, 24))),
        (P1, (seen(P0, 0, CALLER, 40), seen(P2, 2, CALLED, 40))),
        (P2, (seen(P1, 1, CALLER, 32),)),
    ]
    proved = witnessed(told, SHAPE)
    assert [samples_of(proved, peer) for peer in (P0, P1, P2, P3)] == [40, 32, 40, 0]
    assert proved[tag_of(P1)] == Witnessed(4, 32, rounds=1, receipts=2)


def test_what_a_peer_signs_for_itself_adds_nothing():
    told = [(P0, (seen(P0, 0, CALLER, 80),)), (P1, (seen(P0, 0, CALLER, 8),))]
    proved = witnessed(told, SHAPE)
    assert proved == {tag_of(P0): Witnessed(1, 8, rounds=1, receipts=1)}


def test_a_micro_batch_counts_once_however_often_it_was_seen_and_not_if_it_was_useless():
    book = SeenBook(SHAPE)
    for index in (3, 3, 4, 5):
        book.add(MicroBatchId(0, index), P1, 1, CALLED)
    book.take_back(MicroBatchId(0, 5), P1, 1, CALLED)
    assert book.of_round(0) == (Seen(1, CALLED, tag_of(P1), 2, 16),)
    assert book.of_round(1) == ()


# ---------------------------------------------------------------------------------- in the ledger


def test_a_forged_receipt_is_refused_and_changes_nothing():
    ledger = taken(Ledger(SHAPE, verify), entry_of(P1, [seen(P0, 0, CALLER, 8)]))
    before = (ledger.witnessed_total(), ledger.digest())
    forged = entry_of(P1, [seen(P0, 0, CALLER, 160)], version=2, signer=P0)
    with pytest.raises(RemoteProtocolError, match="bad_signature"):
        taken(ledger, forged)
    assert (ledger.witnessed_total(), ledger.digest()) == before


def test_a_receipt_altered_on_the_way_is_refused():
    entry = entry_of(P1, [seen(P0, 0, CALLER, 8)])
    assert entry.signed is not None
    body = entry.signed.body.replace(tag_of(P0), tag_of(P2))
    altered = dataclasses.replace(entry, signed=dataclasses.replace(entry.signed, body=body))
    with pytest.raises(RemoteProtocolError, match="bad_signature"):
        taken(Ledger(SHAPE, verify), altered)


def test_a_replayed_receipt_adds_nothing():
    first = entry_of(P1, [seen(P0, 0, CALLER, 8)])
    second = entry_of(P1, [seen(P0, 0, CALLER, 16)], version=2)
    ledger = Ledger(SHAPE, verify)
    for entry in (first, second, first, second, first):
        taken(ledger, entry)
    assert ledger.witnessed_total() == {tag_of(P0): Witnessed(2, 16, rounds=1, receipts=1)}


def test_a_receipt_of_another_run_is_refused():
    other = lease_shape(stages=3, run_id=RunId("cd" * 32))
    with pytest.raises(RemoteProtocolError, match="bad_signature"):
        taken(Ledger(SHAPE, verify), entry_of(P1, [seen(P0, 0, CALLER, 8)], shape=other))


def test_sums_of_rounds_long_ended_keep_what_receipts_proved():
    shape = lease_shape(stages=3, total_steps=60, inner_steps=1)
    old, new = Ledger(shape, verify), Ledger(shape, verify)
    for number in range(30):
        work = OwnWork(P0, 1, shape)
        for index in range(4):
            work.grant(MicroBatchId(number, index))
            work.done(MicroBatchId(number, index), 1.0)
        old.put(sign_entry(work.entry(number), shape, sign_as(P0)))
        told = [seen(P0, 0, CALLER, 32)]
        taken(old, entry_of(P1, told, round_number=number, shape=shape))
    before = old.witnessed_total()
    old.roll_up()
    assert old.base == 22
    assert old.witnessed_total() == before == {tag_of(P0): Witnessed(120, 960, 30, 30)}
    assert new.adopt(wire.decode(wire.encode(old.totals())))
    assert samples_of(new.witnessed_total(), P0) == 22 * 32
    cut = dataclasses.replace(old.totals(), witnessed=old.totals().witnessed[:-1])
    with pytest.raises(RemoteProtocolError, match="malformed"):
        new.adopt(cut)
    assert not new.adopt(old.totals())


# ----------------------------------------------------------------------------------- mixing weights


def test_no_claim_is_believed_beyond_what_neighbours_saw_lately():
    rounds = [
        {tag_of(P1): Witnessed(5, 40)},
        {tag_of(P1): Witnessed(1, 8), tag_of(P2): Witnessed(3, 24)},
    ]
    caps = weight_caps(rounds, [P1, P2, P3])
    assert caps == {P1: CAP_SLACK * 40, P2: CAP_SLACK * 24, P3: 24}
    assert weight_caps(rounds, [P1], scale=0.5) == {P1: CAP_SLACK * 20}


def test_where_nobody_was_seen_every_claim_is_believed():
    assert weight_caps([], [P1, P2]) == {}
    assert Ledger(SHAPE, verify).weight_caps(0, [P1]) == {}


# ------------------------------------------------------------------------------- through the swarm


def test_receipts_are_told_when_their_round_has_ended_and_not_before():
    book = make_book("p0")
    book.set_heads([P0], 0.0)
    book.set_recipients([P1], present=1)
    book.handle(Started(), 0.0)
    for index in range(20):
        micro_batch, _ = book.next_lease(0.0)
        assert micro_batch == MicroBatchId(0, index)
        book.saw(micro_batch, P1, 1, CALLED)
        assert book.ledger.witnessed_total() == {}
        book.done(micro_batch, 8.0, 8, 0.0)
    assert book.ledger.witnessed_total() == {tag_of(P1): Witnessed(20, 160, 1, 1)}
    other = make_book("p1")
    other.handle(Started(), 0.0)
    update = LedgerUpdate(entries=tuple(e.signed for e in book.ledger.entries(0) if e.signed))
    book.give_back_all(0.0)
    update = LedgerUpdate(entries=tuple(e.signed for e in book.ledger.entries(0) if e.signed))
    other.handle(Arrived(P0, wire.decode(wire.encode(update))), 0.0)
    assert other.ledger.witnessed_total() == book.ledger.witnessed_total()


def told_by_all(world: LeaseWorld) -> list[list[object]]:
    return [
        [dataclasses.astuple(found) for found in contributors(host.book.ledger, {})]
        for host in world.living()
    ]


@pytest.mark.parametrize("seed", range(3))
def test_contributions_agree_on_all_peers_after_a_partition_heals(seed):
    world = LeaseWorld(seed, heads=3, others=3, shape=lease_shape(total_steps=60))
    peers = list(world.hosts)
    world.run(4.0)
    world.split(peers[::2], peers[1::2])
    world.run(12.0)
    world.heal()
    world.run_until_complete()
    world.run(world.now_s + 10.0)  # the receipts of the last round
    told = told_by_all(world)
    assert all(one == told[0] for one in told)
    proved = world.hosts[peers[0]].book.ledger.witnessed_total()
    late = 8 * (world.done.total() - len(world.done))  # done again after the round had ended
    for peer in peers[3:]:
        assert 0 < world.seen[peer] - late <= samples_of(proved, peer) <= world.seen[peer]
