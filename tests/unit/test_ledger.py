"""The ledger joins: order, repeats and paths change nothing; claims are tied to their keys."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_world import lease_shape, sign_as, verify

from swarmd.protocols import wire
from swarmd.protocols.effects import Send
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import EMPTY, IndexSet
from swarmd.protocols.ledger import ROUNDS_AHEAD_MAX, Ledger
from swarmd.protocols.ledger_entries import Entry, EntryKey, sign_entry, what_is_signed
from swarmd.protocols.ledger_gossip import LedgerGossip, choose_audience
from swarmd.protocols.messages.ledger import (
    HeldOutScore,
    LedgerDigest,
    LedgerEntry,
    LedgerHeld,
    LedgerTotals,
    LedgerUpdate,
    LedgerWanted,
    LostRange,
    SignedEntry,
)

SHAPE = lease_shape()
END = SHAPE.micro_batches_of_round(0)


def ledger(shape=SHAPE) -> Ledger:
    return Ledger(shape, verify)


def entry(
    peer: str = "p1",
    number: int = 0,
    *,
    version: int = 1,
    life: int = 1,
    leased=(),
    done=(),
    lost=(),
    loss_sum: float = 0.0,
    held_out=(),
    shape=SHAPE,
) -> Entry:
    """A signed entry."""
    key = EntryKey(number, PeerId(peer), life)
    sets = (IndexSet.of(leased), IndexSet.of(done), IndexSet.of(lost))
    return sign_entry(Entry(key, version, *sets, loss_sum, held_out), shape, sign_as(peer))


def put(one: Ledger, *entries: Entry) -> Ledger:
    for each in entries:
        assert each.signed is not None
        checked = one.check(each.signed)
        if checked is not None:
            one.put(checked)
    return one


def state(one: Ledger) -> tuple:
    """All that a ledger answers."""
    rounds = range(SHAPE.rounds)
    return (
        one.digest(),
        [one.done(number) for number in rounds],
        [one.ended(number) for number in rounds],
        [one.loss(number) for number in rounds],
        [one.held_out_scores(number) for number in rounds],
        one.samples_twice_total(),
        one.contributions(),
        one.lost(),
        one.settled,
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Some lives of some peers, each of which does more and more of a round."""
    entries = []
    for peer, life, number in itertools.product(("p1", "p2", "p3"), (1, 2), (0, 1)):
        order = draw(st.permutations(range(END)))
        done = draw(st.lists(st.integers(0, END), max_size=3).map(sorted))
        for version, count in enumerate(done):
            lost = order[count : count + draw(st.integers(0, 2))]
            scores = tuple(
                HeldOutScore(index=index, samples=8, loss_sum=float(version))
                for index in range(draw(st.integers(0, 3)))
            )
            entries.append(
                entry(
                    peer,
                    number,
                    version=version,
                    life=life,
                    done=order[:count],
                    lost=lost,
                    loss_sum=float(count),
                    held_out=scores,
                )
            )
    return entries


@settings(max_examples=40, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_any_order_and_any_repeats_give_the_same_ledger(entries, rng):
    in_order = put(ledger(), *entries)
    shuffled = entries + rng.sample(entries, len(entries) // 2)
    rng.shuffle(shuffled)
    assert state(put(ledger(), *shuffled)) == state(in_order)


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(0, 2**32))
def test_ledgers_that_have_compared_are_equal_whatever_each_had(entries, seed):
    rng = random.Random(seed)
    one = put(ledger(), *rng.sample(entries, rng.randint(0, len(entries))))
    other = put(ledger(), *rng.sample(entries, rng.randint(0, len(entries))))
    crossed = compare(one, other)
    assert state(one) == state(other)
    assert len(crossed) == len(set(crossed))
    assert compare(one, other) == []


def compare(one: Ledger, other: Ledger) -> list[SignedEntry]:
    """As two neighbours do it, over the wire. Returns the entries that crossed."""
    names = (PeerId("one"), PeerId("other"))
    sides = {
        name: LedgerGossip(ledger, name, 1)
        for name, ledger in zip(names, (one, other), strict=True)
    }
    for name in names:
        sides[name].set_audience(choose_audience(name, names, (), 1))
    asked = LedgerDigest(settled=one.settled, rounds=one.digest().rounds)
    waiting = [(names[0], Send(names[1], asked))]
    crossed = []
    while waiting:
        sender, sent = waiting.pop(0)
        side, message = sides[sent.peer], wire.decode(wire.encode(sent.message))
        match message:
            case LedgerDigest():
                effects = side.on_digest(sender, message)
            case LedgerHeld():
                effects = side.on_held(sender, message)
            case LedgerWanted():
                effects = side.on_wanted(sender, message)
            case LedgerTotals():
                effects = side.on_totals(sender, message)
            case LedgerUpdate():
                crossed += message.entries
                side.on_update(sender, message)
                effects = []
        waiting += [(sent.peer, effect) for effect in effects if isinstance(effect, Send)]
    return crossed


def test_an_index_done_by_two_counts_once_and_as_twice_worked_on():
    one = put(ledger(), entry("p1", done=[0, 1, 2]), entry("p2", done=[2, 3]))
    assert one.done(0) == IndexSet.of([0, 1, 2, 3])
    assert one.samples_twice(0) == SHAPE.micro_batch_samples
    assert sum(peer.micro_batches for peer in one.contributions().values()) == 5


def test_work_of_an_earlier_life_still_counts():
    one = put(ledger(), entry("p1", life=1, done=[0]), entry("p1", life=2, done=[1]))
    assert one.done(0) == IndexSet.of([0, 1])
    assert one.contributions()[PeerId("p1")].micro_batches == 2


def test_an_older_version_changes_nothing():
    one = put(ledger(), entry(version=3, done=[0, 1]))
    before = state(one)
    assert state(put(one, entry(version=2, done=[0]))) == before


def test_of_two_entries_with_one_version_all_keep_the_same():
    a, b = entry(version=1, done=[0]), entry(version=1, done=[1])
    assert state(put(ledger(), a, b)) == state(put(ledger(), b, a))


def test_lost_micro_batches_end_a_round_and_are_named_until_somebody_does_them():
    one = put(ledger(), entry("p1", done=range(0, END - 3), lost=range(END - 3, END)))
    assert one.is_ended(0)
    assert one.lost() == [LostRange(round=0, first=END - 3, last=END - 1)]
    put(one, entry("p2", done=range(END - 3, END)))
    assert one.lost() == []


def test_the_smaller_key_scores_a_held_out_micro_batch():
    mine = HeldOutScore(index=1, samples=8, loss_sum=8.0)
    theirs = HeldOutScore(index=1, samples=8, loss_sum=80.0)
    for order in itertools.permutations(
        [entry("p1", held_out=(mine,)), entry("p2", held_out=(theirs,))]
    ):
        one = put(ledger(), *order)
        assert one.held_out_loss(0) == 1.0
        assert not one.held_out_is_scored(0)


# ------------------------------------------------------------------------------ what is not taken


def _altered(**changes) -> SignedEntry:
    """An entry with values that only a liar or a stranger would send, rightly signed by p1."""
    values = {
        "peer": "p1",
        "incarnation": 1,
        "version": 1,
        "round": 0,
        "leased": b"\0",
        "done": b"\0",
    }
    body = wire.encode(LedgerEntry(**{**values, **changes}))
    return SignedEntry(body=body, signature=sign_as("p1")(what_is_signed(body, SHAPE)))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"round": SHAPE.rounds}, "wrong_round"),
        ({"peer": "p2"}, "bad_signature"),
        ({"peer": ""}, "wrong_round"),
        ({"done": IndexSet.of([END]).to_bytes()}, "malformed"),
        ({"leased": b"\7"}, "malformed"),
        ({"leased": b"\0\1\1\1", "done": b"\0\1\1\1"}, "malformed"),
        ({"lost": b"\0\1\1\1", "done": b"\0\1\1\1"}, "malformed"),
        ({"held_out": (HeldOutScore(index=3, samples=8, loss_sum=1.0),)}, "malformed"),
        ({"held_out": (HeldOutScore(index=0, samples=9, loss_sum=1.0),)}, "malformed"),
        ({"held_out": (HeldOutScore(index=0, samples=8, loss_sum=1.0),) * 2}, "malformed"),
    ],
)
def test_what_the_run_cannot_have_is_refused_with_its_code(changes, code):
    one = put(ledger(), entry("p1", done=[0]))
    before = state(one)
    with pytest.raises(RemoteProtocolError) as caught:
        one.check(_altered(version=9, **changes))
    assert caught.value.code == code
    assert state(one) == before


def test_a_message_that_is_no_entry_is_refused():
    body = wire.encode(LedgerDigest(settled=0))
    with pytest.raises(RemoteProtocolError):
        ledger().check(SignedEntry(body=body, signature=sign_as("p1")(body)))


@given(st.binary(max_size=60))
def test_any_bytes_for_an_entry_cause_a_protocol_error_only(body):
    with pytest.raises(RemoteProtocolError):
        ledger().check(SignedEntry(body=body, signature=sign_as("p1")(body)))


def test_entries_far_ahead_are_not_held():
    shape = lease_shape(total_steps=5 * 2 * ROUNDS_AHEAD_MAX)
    one = ledger(shape)
    far = entry(number=ROUNDS_AHEAD_MAX, done=[0], shape=shape)
    assert one.check(far.signed) is None
    assert one.counters["too_far_ahead"] == 1
    assert list(one.rounds_in_detail()) == []


# ---------------------------------------------------------------------------------------- summing


def _worked(rounds: int, shape, heads: int = 3) -> Ledger:
    """A ledger in which `heads` heads have done `rounds` rounds."""
    one = ledger(shape)
    for number in range(rounds):
        end = shape.micro_batches_of_round(number)
        for rank in range(heads):
            put(one, entry(f"p{rank}", number, done=range(rank, end, heads), shape=shape))
        one.roll_up()
    return one


LONG = lease_shape(inner_steps=2, total_steps=200)


def test_rounds_long_settled_are_kept_in_sum_only():
    one = _worked(30, LONG)
    assert one.settled == 30
    assert one.base == 22
    assert list(one.rounds_in_detail()) == list(range(22, 30))
    assert one.is_ended(3)
    assert one.contributions()[PeerId("p0")].rounds == 30
    assert sum(peer.micro_batches for peer in one.contributions().values()) == 30 * 8


def test_a_newcomer_that_adopts_the_sums_and_compares_knows_as_much():
    old, new = _worked(30, LONG), ledger(LONG)
    assert new.adopt(wire.decode(wire.encode(old.totals())))
    compare(new, old)
    assert new.settled == old.settled
    assert new.contributions() == old.contributions()
    assert new.digest() == old.digest()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(9, 40), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_sums_join_in_any_order(rounds, rng):
    sums = [_worked(count, LONG).totals() for count in rounds]
    results = set()
    for _ in range(3):
        rng.shuffle(sums)
        one = ledger(LONG)
        for totals in sums:
            one.adopt(totals)
        results.add((one.base, one.totals()))
    assert len(results) == 1
    assert results.pop()[0] == max(rounds) - 8


def test_lost_micro_batches_are_remembered_in_the_sums():
    one = ledger(LONG)
    put(one, entry("p0", 0, done=range(7), lost=[7], shape=LONG))
    for number in range(1, 30):
        put(one, entry("p0", number, done=range(8), shape=LONG))
    one.roll_up()
    new = ledger(LONG)
    new.adopt(one.totals())
    assert one.lost() == new.lost() == [LostRange(round=0, first=7, last=7)]


@pytest.mark.parametrize(
    "totals",
    [
        LedgerTotals(rounds=101, processed_twice=0),
        LedgerTotals(rounds=9, processed_twice=0, lost=(LostRange(round=200, first=0, last=0),)),
        LedgerTotals(rounds=9, processed_twice=0, lost=(LostRange(round=0, first=3, last=2),)),
        LedgerTotals(rounds=9, processed_twice=0, lost=(LostRange(round=0, first=3, last=8),)),
    ],
)
def test_sums_that_the_run_cannot_have_are_refused(totals):
    one = _worked(9, LONG)
    before = one.totals()
    with pytest.raises(RemoteProtocolError):
        one.adopt(totals)
    assert one.totals() == before


# ------------------------------------------------------------------------------------------- size


def test_a_billion_sequences_fit_in_a_few_kilobytes():
    """2,000 rounds of 50,000 micro-batches of 10 sequences, 50 heads: 10^9 sequences."""
    shape = lease_shape(
        inner_steps=500, total_steps=1_000_000, micro_batches_per_step=100, micro_batch_samples=10
    )
    heads, end = 50, shape.micro_batches_of_round(0)
    assert shape.rounds * end * shape.micro_batch_samples == 10**9
    one = _worked(12, shape, heads)
    entries = one.signed_entries()
    update = wire.encode(LedgerUpdate(entries=tuple(entries[:heads])))
    assert len(update) / heads < 400
    assert len(wire.encode(one.totals())) / heads < 100
    assert len(entries) == 8 * heads  # what is kept does not grow with the rounds


def test_the_worst_round_still_fits_in_a_message():
    """The largest round there may be, done in an order without any rule."""
    shape = lease_shape(inner_steps=1, total_steps=1, micro_batches_per_step=1 << 20)
    bits = random.Random(1).getrandbits(1 << 20)
    key = EntryKey(0, PeerId("p1"), 1)
    full = Entry(key, 1, EMPTY, IndexSet(bits))
    signed = sign_entry(full, shape, sign_as("p1")).signed
    assert signed is not None
    wire.encode(LedgerUpdate(entries=(signed,)))
    one = ledger(shape)
    checked = one.check(signed)
    assert checked is not None
    assert checked.done == IndexSet(bits)
