"""What is told to whom: nothing twice, nothing to those whom it does not concern."""

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_world import lease_shape, make_book, sign_as, verify

from swarmd.protocols import wire
from swarmd.protocols.effects import Arrived, Send, SetTimer, Started, TimerFired
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.intervals import IndexSet
from swarmd.protocols.lease_limits import wan
from swarmd.protocols.leases import DIGEST, LeaseBook
from swarmd.protocols.ledger import KEPT_BYTES_MAX, ROUNDS_KEPT, ROUNDS_KEPT_MIN, Ledger
from swarmd.protocols.ledger_compare import compare_held, pack_held, wanted_entries
from swarmd.protocols.ledger_entries import Entry, EntryKey, sign_entry
from swarmd.protocols.ledger_gossip import RECIPIENTS_MAX
from swarmd.protocols.messages.ledger import (
    EVERYBODY,
    HEADS,
    NOBODY,
    LedgerDigest,
    LedgerHeld,
    LedgerUpdate,
    LedgerWanted,
)
from swarmd.protocols.news_pace import FLUSH
from swarmd.protocols.receipts import CALLED, CALLER, Seen, tag_of

SHAPE = lease_shape(total_steps=100)
HEADS_THERE = [PeerId(f"h{number}") for number in range(3)]
OTHERS = [PeerId(f"o{number:02d}") for number in range(20)]


def ledger_of(*entries: Entry) -> Ledger:
    ledger = Ledger(SHAPE, verify)
    for entry in entries:
        ledger.put(entry)
    return ledger


def entry(peer: str, version: int = 1, done=(), number: int = 0, seen=()) -> Entry:
    key = EntryKey(number, PeerId(peer), 1)
    made = Entry(key, version, done=IndexSet.of(done), witnessed=tuple(sorted(seen)))
    return sign_entry(made, SHAPE, sign_as(peer))


# -------------------------------------------------------------------------------------- comparing


def test_each_side_learns_what_it_lacks_and_nothing_else():
    shared, newer, older = entry("a"), entry("b", 2, [1]), entry("b", 1)
    mine, theirs = entry("c"), entry("d")
    here, there = ledger_of(shared, newer, mine), ledger_of(shared, older, theirs)
    they_lack, we_lack = compare_held(here, 0, pack_held(there, 0))
    assert they_lack == [newer.signed, mine.signed]
    assert wanted_entries(there, 0, b"".join(we_lack)) == [theirs.signed]
    assert compare_held(here, 0, pack_held(here, 0)) == ([], [])


def test_of_one_version_with_two_contents_both_sides_are_told():
    here, there = ledger_of(entry("a", 1, [1])), ledger_of(entry("a", 1, [2]))
    they_lack, we_lack = compare_held(here, 0, pack_held(there, 0))
    assert len(they_lack) == len(we_lack) == 1


def test_a_list_costs_some_ten_bytes_an_entry():
    ledger = ledger_of(*(entry(f"p{number}", 300) for number in range(100)))
    assert len(pack_held(ledger, 0)) <= 10 * 100


@given(st.binary(max_size=60))
def test_any_bytes_for_a_list_cause_a_protocol_error_only(body):
    for read in (compare_held, wanted_entries):
        with suppress(RemoteProtocolError):
            read(ledger_of(entry("a")), 0, body)


def test_lists_out_of_order_cut_short_or_of_no_round_are_refused():
    ledger = ledger_of(entry("a"), entry("b"))
    body = pack_held(ledger, 0)
    half = len(body) // 2
    for bad in (body[half:] + body[:half], body[:-1], body[:half] * 2):
        with pytest.raises(RemoteProtocolError, match="malformed"):
            compare_held(ledger, 0, bad)
    book = make_book("p0", SHAPE)
    for message in (LedgerHeld(round=20, held=b""), LedgerWanted(round=20, wanted=b"")):
        with pytest.raises(RemoteProtocolError, match="wrong_round"):
            book.handle(Arrived(PeerId("p1"), message), 1.0)


# ---------------------------------------------------------------------------------- a large swarm


def head(others: int = 20, linked: int = 3) -> LeaseBook:
    """h0, one of three heads, with links to some of them and to all others."""
    book = make_book("h0", SHAPE, limits=wan())
    book.set_heads(HEADS_THERE, 0.0)
    book.set_recipients([*HEADS_THERE[:linked], *OTHERS[:others]], present=others + 2)
    book.handle(Started(), 0.0)
    return book


def take(book: LeaseBook, count: int) -> list[MicroBatchId]:
    taken = [book.next_lease(0.0)[0] for _ in range(count)]
    return [one for one in taken if one is not None]


def told(book: LeaseBook, now_s: float = 5.0) -> dict[PeerId, int]:
    """Who is sent entries, and how far these shall go."""
    sends = [one for one in book.handle(TimerFired(FLUSH), now_s) if isinstance(one, Send)]
    updates = [(one.peer, one.message) for one in sends]
    return {peer: sent.reach for peer, sent in updates if isinstance(sent, LedgerUpdate)}


def test_what_a_head_holds_in_an_open_round_is_told_to_the_heads_alone():
    book = head()
    take(book, 3)
    assert told(book) == dict.fromkeys(HEADS_THERE[1:], NOBODY)


def test_heads_without_a_link_hear_it_from_other_heads():
    book = head(linked=2)
    take(book, 3)
    assert told(book) == {HEADS_THERE[1]: HEADS}


def test_that_all_of_a_round_is_leased_and_that_nothing_is_held_is_told_to_everybody():
    book = head()
    book.set_heads(HEADS_THERE[:1], 0.0)
    book.set_recipients(OTHERS, present=20)
    taken = take(book, 20)
    assert set(told(book).values()) == {EVERYBODY}
    for one in taken[:-1]:
        book.done(one, 16.0, 8, 6.0)
    assert told(book, 7.0) == {}
    book.done(taken[-1], 16.0, 8, 8.0)
    assert set(told(book, 9.0).values()) == {EVERYBODY}


def test_receipts_of_a_large_swarm_wait_to_be_asked_for_unless_their_peer_leaves():
    book = make_book("o00", SHAPE, limits=wan())
    book.set_heads(HEADS_THERE, 0.0)
    book.set_recipients(OTHERS[1:], present=22)
    book.saw(MicroBatchId(0, 0), HEADS_THERE[0], 0, CALLER)
    ending = entry("h0", 1, range(20)).signed
    book.handle(Arrived(HEADS_THERE[0], LedgerUpdate(entries=(ending,), reach=NOBODY)), 1.0)
    assert book.ledger.get(EntryKey(0, PeerId("o00"), 1)).witnessed
    assert told(book) == {}
    book.give_back_all(6.0)
    sent = [one.message for one in book.take_effects() if isinstance(one, Send)]
    assert {update.reach for update in sent} == {EVERYBODY}
    assert len(sent) == RECIPIENTS_MAX


def member(name: str) -> LeaseBook:
    """One of a later stage, with links to all others."""
    book = make_book(name, SHAPE, limits=wan())
    book.set_heads(HEADS_THERE, 0.0)
    book.set_recipients([peer for peer in OTHERS if peer != name], present=22)
    book.handle(Started(), 0.0)
    return book


def sent(effects: list) -> list[tuple[PeerId, object]]:
    return [(one.peer, one.message) for one in effects if isinstance(one, Send)]


def test_news_is_passed_on_by_name_and_comes_whole_to_who_asks():
    first, second = member("o00"), member("o01")
    ending = entry("h0", 3, range(20)).signed
    first.handle(Arrived(HEADS_THERE[0], LedgerUpdate(entries=(ending,))), 1.0)
    told_of = dict(sent(first.handle(TimerFired(FLUSH), 2.0)))
    assert len(told_of) == RECIPIENTS_MAX
    assert {type(message) for message in told_of.values()} == {LedgerHeld}
    (held,) = {message for message in told_of.values()}
    assert held.news
    assert len(held.held) < 12
    (answer,) = sent(second.handle(Arrived(OTHERS[0], held), 2.1))
    assert answer[0] == OTHERS[0]
    assert sent(second.handle(Arrived(OTHERS[2], held), 2.2)) == [], "it was asked for"
    (given,) = sent(first.handle(Arrived(OTHERS[1], answer[1]), 2.2))
    assert given == (OTHERS[1], LedgerUpdate(entries=(ending,), reach=EVERYBODY))
    second.handle(Arrived(OTHERS[0], given[1]), 2.3)
    assert second.ledger.is_ended(0)
    assert sent(second.handle(Arrived(OTHERS[3], held), 2.4)) == [], "it is known"
    passed_on = dict(sent(second.handle(TimerFired(FLUSH), 3.0)))
    assert set(passed_on).isdisjoint({OTHERS[0], OTHERS[3]}), "they have it"
    assert passed_on


def test_news_that_was_asked_for_in_vain_is_asked_for_again():
    book = member("o01")
    ledger = ledger_of(entry("h0", 3, range(20)))
    news = LedgerHeld(round=0, held=pack_held(ledger, 0), news=True)
    asked = [bool(sent(book.handle(Arrived(OTHERS[0], news), 1.0)))]
    asked.append(bool(sent(book.handle(Arrived(OTHERS[2], news), 1.1))))
    book.handle(TimerFired(FLUSH), 2.0)
    asked.append(bool(sent(book.handle(Arrived(OTHERS[3], news), 2.1))))
    assert asked == [True, False, True]


def test_how_a_round_ended_is_told_before_its_receipts_are():
    book = head()
    book.set_heads(HEADS_THERE[:1], 0.0)
    for one in take(book, 20):
        book.saw(one, OTHERS[0], 1, CALLED)
        book.done(one, 16.0, 8, 1.0)
    first = [one for _, one in sent(book.handle(TimerFired(FLUSH), 2.0))]
    assert {type(one) for one in first} == {LedgerUpdate}
    bodies = {wire.decode(each.body) for one in first for each in one.entries}
    assert {(body.round, body.witnessed) for body in bodies} == {(0, b"")}
    assert book.ledger.get(EntryKey(0, HEADS_THERE[0], 1)).witnessed
    assert told(book, 3.0) == {}, "who lacks them asks"


def test_comparisons_of_a_large_swarm_leave_most_open_rounds_alone():
    book = head()
    take(book, 3)
    digests = []
    for number in range(8):
        effects = book.handle(TimerFired(DIGEST), 30.0 + 20.0 * number)
        digests += [one.message for one in effects if isinstance(one, Send)]
    assert [digest.whole for digest in digests if isinstance(digest, LedgerDigest)] == [
        *[False, False, False, True] * 2
    ]
    assert [len(digest.rounds) for digest in digests if digest.whole] == [1, 1]


# -------------------------------------------------------------------------------------- how often


def test_news_is_rare_in_the_middle_of_a_round_and_quick_at_its_end():
    limits = wan()
    waits = [limits.news_after_s(47, left_s) for left_s in (1600.0, 300.0, 60.0, 5.0, 0.0)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == limits.calm_after_s(47) == pytest.approx(28.2)
    assert waits[-1] == limits.flush_after_s(47) == limits.news_after_s(47, None)


def test_news_from_others_makes_ours_no_more_urgent_but_what_all_wait_for_does():
    book = make_book("h0", lease_shape(inner_steps=50, total_steps=50), limits=wan())
    heads = [PeerId(f"h{number}") for number in range(10)]
    book.set_heads(heads, 0.0)
    book.set_recipients([*heads, *OTHERS], present=29)
    book.handle(Started(), 0.0)
    (one,) = take(book, 1)
    told(book, 0.1)
    book.done(one, 16.0, 8, 100.0)  # the first of two hundred took 100 s
    told(book, 100.1)
    assert book.next_lease(100.2)[0] is not None
    assert 3.0 < flush_in_s(book.take_effects())
    update = LedgerUpdate(entries=(entry_of_another(1),), reach=NOBODY)
    assert flush_in_s(book.handle(Arrived(heads[1], update), 100.3)) is None
    update = LedgerUpdate(entries=(entry_of_another(2),), reach=EVERYBODY)
    assert flush_in_s(book.handle(Arrived(heads[1], update), 100.3)) < 0.5


def flush_in_s(effects):
    timers = [one for one in effects if isinstance(one, SetTimer) and one.name == FLUSH]
    return timers[-1].delay_s if timers else None


def entry_of_another(version):
    shape = lease_shape(inner_steps=50, total_steps=50)
    made = Entry(EntryKey(0, PeerId("h1"), 1), version, leased=IndexSet.of([version]))
    return sign_entry(made, shape, sign_as("h1")).signed


# -------------------------------------------------------------------------------------- what stays


@pytest.mark.parametrize("receipts", [1, 1_000])
def test_of_small_rounds_eight_stay_in_detail_and_of_large_ones_two(receipts):
    rng = random.Random(5)
    told_of = [
        Seen(1, CALLED, tag_of(PeerId(f"{rng.random()}")), 1, 8) for number in range(receipts)
    ]
    ledger = Ledger(SHAPE, verify)
    for number in range(12):
        ledger.put(entry("p0", 1, range(20), number, told_of))
        for witness in range(40):
            ledger.put(entry(f"w{witness}", 1, (), number, told_of))
        ledger.roll_up()
        kept = sum(map(len, (signed.body for signed in ledger.signed_entries())))
        assert kept <= KEPT_BYTES_MAX + ROUNDS_KEPT_MIN * 41 * 9_200
    assert ledger.base == 12 - (ROUNDS_KEPT if receipts == 1 else ROUNDS_KEPT_MIN)
    proved = ledger.witnessed_total()
    assert {found.rounds for found in proved.values()} == {12}
