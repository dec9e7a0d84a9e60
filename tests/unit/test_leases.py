"""One LeaseBook, or two that talk: grants, returns, gates and what is said about them."""

import pytest
from lease_world import LeaseWorld, lease_shape, make_book

from swarmd.protocols import wire
from swarmd.protocols.effects import Arrived, Effect, Emit, Send, SetTimer, Started, TimerFired
from swarmd.protocols.errors import LocalProtocolError, RemoteProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.lease_limits import local
from swarmd.protocols.leases import DIGEST, LeaseBook
from swarmd.protocols.messages.ledger import LedgerTotals, LedgerUpdate, SignedEntry
from swarmd.protocols.news_pace import FLUSH
from swarmd.protocols.receipts import CALLED

P0, P1, P2 = PeerId("p0"), PeerId("p1"), PeerId("p2")
ROUND = 20
"""Micro-batches of a round of `lease_shape`."""


def lone(peer: str = "p0", **changes) -> LeaseBook:
    """The only head there is."""
    book = make_book(peer, lease_shape(**changes))
    book.set_heads([PeerId(peer)], 0.0)
    book.take_effects()
    return book


def take(book: LeaseBook, count: int, now_s: float = 0.0) -> list[MicroBatchId]:
    taken = []
    for _ in range(count):
        micro_batch, reason = book.next_lease(now_s)
        assert micro_batch is not None, reason
        taken.append(micro_batch)
    return taken


def finish(book: LeaseBook, micro_batches: list[MicroBatchId], now_s: float = 1.0) -> None:
    for micro_batch in micro_batches:
        book.done(micro_batch, 16.0, 8, now_s)


def tell(book: LeaseBook, other: LeaseBook, now_s: float = 1.0) -> None:
    """What `book` owes reaches `other`, over the wire."""
    for effect in book.handle(TimerFired(FLUSH), now_s):
        if isinstance(effect, Send):
            other.handle(
                Arrived(book.own, wire.decode(wire.encode(effect.message))),
                now_s,
            )


def two_heads() -> tuple[LeaseBook, LeaseBook]:
    books = (make_book("p0"), make_book("p1"))
    for book, other in zip(books, (P1, P0), strict=True):
        book.set_heads([P0, P1], 0.0)
        book.set_recipients([other], present=1)
        book.take_effects()
    return books


def emitted(book: LeaseBook) -> list[str]:
    return [effect.name for effect in book.take_effects() if isinstance(effect, Emit)]


# ----------------------------------------------------------------------------------------- leases


def test_who_is_no_head_gets_nothing():
    book = make_book("p0")
    book.set_heads([P1], 0.0)
    assert book.next_lease(0.0) == (None, "not_a_head")
    assert book.next_held_out(0.0) is None


def test_a_lone_head_gets_the_round_in_order_and_then_the_next():
    book = lone()
    assert [one.index for one in take(book, ROUND)] == list(range(ROUND))
    assert book.next_lease(0.0)[0] == MicroBatchId(1, 0)


def test_no_more_than_two_rounds_are_open():
    book = lone()
    take(book, 2 * ROUND)
    assert book.next_lease(0.0) == (None, "round_not_open")


def test_a_round_opens_with_the_last_lease_of_the_one_before():
    book = lone()
    take(book, ROUND - 1)
    assert book.round_open(0.0) == 0
    take(book, 1)
    assert book.round_open(0.0) == 1
    assert book.all_leased(0, 0.0)
    assert not book.is_ended(0)


def test_a_lease_that_expired_closes_no_round_and_is_taken_first():
    book = lone()
    taken = take(book, ROUND)
    book.expired(taken[3], "no_route", 0.5)
    assert book.round_open(0.5) == 1
    assert not book.all_leased(0, 0.5)
    assert book.next_lease(0.5) == (taken[3], "returned")


def test_what_is_given_back_is_free_at_once():
    book = lone()
    taken = take(book, 3)
    assert book.give_back_all(1.0) == taken
    assert book.held() == []
    assert book.next_lease(1.0) == (taken[0], "returned")
    assert book.counters["given_back"] == 3


def test_a_lease_ends_once():
    book = lone()
    (one,) = take(book, 1)
    book.done(one, 16.0, 8, 1.0)
    for again in (
        lambda: book.done(one, 16.0, 8, 1.0),
        lambda: book.expired(one, "late", 1.0),
        lambda: book.lost(one, "late", 1.0),
        lambda: book.done(MicroBatchId(3, 3), 16.0, 8, 1.0),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            again()
        assert caught.value.code == "unknown_lease"
    assert book.counters["done"] == 1


@pytest.mark.parametrize(("loss_sum", "samples"), [(float("nan"), 8), (16.0, 7), (16.0, 0)])
def test_figures_that_cannot_be_are_our_own_bug(loss_sum, samples):
    book = lone()
    (one,) = take(book, 1)
    with pytest.raises(LocalProtocolError):
        book.done(one, loss_sum, samples, 1.0)
    assert book.held() == [one]


def test_a_micro_batch_that_nobody_can_do_is_a_gap_that_stops_nothing():
    book = lone(total_steps=5)
    taken = take(book, ROUND)
    finish(book, taken[1:])
    book.lost(taken[0], "not_finite", 2.0)
    assert book.next_lease(2.0) == (None, "run_complete")
    audit = book.audit(2.0)
    assert not audit.clean
    assert [(gap.first, gap.last) for gap in audit.gaps] == [(0, 7)]
    assert audit.samples_completed == audit.samples_total - 8


def test_the_run_is_complete_when_every_index_of_every_round_has_ended():
    book = lone(total_steps=10)
    book.take_effects()
    first = take(book, ROUND)
    second = take(book, ROUND)
    finish(book, second)
    finish(book, first[:-1])
    assert book.next_lease(2.0) == (None, "waiting_for_heads")
    assert not book.is_complete
    finish(book, first[-1:])
    assert book.is_complete
    assert book.next_lease(2.0) == (None, "run_complete")
    names = emitted(book)
    assert names.count("round_ended") == 2
    assert names.count("run_complete") == 1
    assert book.audit(2.0).complete


def test_a_round_past_its_deadline_keeps_the_next_one_shut_no_longer():
    limit_s = local().round_s_first
    watcher = make_book("p2")
    watcher.set_heads([P0, P1], 0.0)
    assert watcher.round_open(limit_s - 1.0) < 1
    assert watcher.round_open(limit_s + 1.0) == 1


# -------------------------------------------------------------------------------------- two heads


def test_two_heads_take_different_ones_without_a_word():
    books = two_heads()
    taken = [one for book in books for one in take(book, 10)]
    assert len(set(taken)) == len(taken) == ROUND


def test_others_know_what_is_held_and_done():
    book, other = two_heads()
    taken = take(book, 10)
    finish(book, taken[:4])
    tell(book, other)
    assert len(other.ledger.done(0)) == 4
    assert other.audit(1.0).open_leases == 6
    take(other, 10)
    assert other.all_leased(0, 1.0)
    assert other.round_open(1.0) == 1


def test_leases_of_a_dead_head_are_free():
    book, other = two_heads()
    taken = take(book, 10)
    tell(book, other)
    take(other, 10)
    other.set_heads([P1], 2.0)
    assert not other.all_leased(0, 2.0)
    assert other.next_lease(2.0) == (taken[0], "granted")


def test_leases_of_a_former_life_are_free():
    book, other = two_heads()
    taken = take(book, 10)
    tell(book, other)
    again = make_book("p0", incarnation=2)
    again.set_heads([P0, P1], 2.0)
    again.set_recipients([P1], present=1)
    (first,) = take(again, 1, 2.0)
    tell(again, other, 2.0)
    assert first == taken[0]
    assert other.audit(2.0).open_leases == 1


def test_a_lease_held_for_too_long_is_free_though_its_holder_lives():
    book, other = two_heads()
    taken = take(book, 10)
    tell(book, other)
    take(other, 10)
    lease_s = local().lease_s_first
    assert other.all_leased(0, lease_s)
    later_s = lease_s + 2.0
    micro_batch, reason = other.next_lease(later_s)
    if micro_batch is None:  # the second in the line waits for a turn
        micro_batch, reason = other.next_lease(later_s + 5.0)
    assert (micro_batch, reason) == (taken[0], "stolen")


def test_what_two_did_counts_once_and_is_told():
    book, other = two_heads()
    taken = take(book, 2)
    tell(book, other)
    other.set_heads([P1], 2.0)  # it believes that p0 is dead
    assert take(other, 2, 2.0) == [taken[0], MicroBatchId(0, 1)]
    finish(other, [taken[0]], 3.0)
    finish(book, taken, 3.0)
    tell(other, book, 3.0)
    audit = book.audit(3.0)
    assert audit.samples_completed == 2 * 8
    assert audit.processed_twice == 8
    assert audit.clean


def test_news_goes_out_soon_and_bursts_together():
    book, _ = two_heads()
    take(book, 5)
    timers = [one for one in book.take_effects() if isinstance(one, SetTimer)]
    assert [(one.name, one.delay_s <= local().flush_s) for one in timers] == [(FLUSH, True)]
    sends = [one for one in book.handle(TimerFired(FLUSH), 0.02) if isinstance(one, Send)]
    assert len(sends) == 1
    take(book, 1, 0.03)
    (again,) = [one for one in book.take_effects() if isinstance(one, SetTimer)]
    assert again.delay_s == pytest.approx(local().flush_s - 0.01)


def test_a_digest_repairs_what_was_lost():
    book, other = two_heads()
    finish(book, take(book, 10))
    book.handle(TimerFired(FLUSH), 1.0)  # lost on the way
    converse(book, other, other.handle(TimerFired(DIGEST), 2.0))
    assert other.ledger.digest() == book.ledger.digest()


def converse(book: LeaseBook, other: LeaseBook, effects: list[Effect]) -> None:
    """What `other` wants sent reaches `book`, its answers `other`, and so on."""
    sides = {book.own: book, other.own: other}
    waiting = [(other.own, effect) for effect in effects if isinstance(effect, Send)]
    while waiting:
        sender, sent = waiting.pop(0)
        answers = sides[sent.peer].handle(Arrived(sender, sent.message), 2.0)
        waiting += [(sent.peer, answer) for answer in answers if isinstance(answer, Send)]


# ---------------------------------------------------------------------------------------- strangers


def _entries_of(book: LeaseBook) -> tuple[SignedEntry, ...]:
    sent = [one.message for one in book.handle(TimerFired(FLUSH), 1.0) if isinstance(one, Send)]
    return next(message.entries for message in sent if isinstance(message, LedgerUpdate))


def test_a_forged_entry_is_refused_with_its_whole_message():
    book, other = two_heads()
    finish(book, take(book, 3))
    (real,) = _entries_of(book)
    forged = SignedEntry(body=real.body[:-1] + b"\1", signature=real.signature)
    before = other.ledger.digest()
    with pytest.raises(RemoteProtocolError):
        other.handle(Arrived(P2, LedgerUpdate(entries=(real, forged))), 1.0)
    assert other.ledger.digest() == before


def test_nobody_tells_us_what_we_ourselves_have_done():
    book, _ = two_heads()
    stranger = make_book("p0", incarnation=1)  # the same key, elsewhere
    stranger.set_heads([P0], 0.0)
    stranger.set_recipients([P1], present=1)
    finish(stranger, take(stranger, 5))
    book.handle(Arrived(P1, LedgerUpdate(entries=_entries_of(stranger))), 1.0)
    assert len(book.ledger.done(0)) == 0


def test_one_neighbours_word_does_not_skip_rounds_where_there_are_two():
    book = make_book("p0", lease_shape(total_steps=500))
    book.set_recipients([P1, P2], present=2)
    skip = LedgerTotals(rounds=50, processed_twice=0)
    book.handle(Arrived(P1, skip), 1.0)
    book.handle(Arrived(PeerId("p9"), skip), 1.0)  # no neighbour of ours
    assert book.ledger.settled == 0
    book.handle(Arrived(P2, LedgerTotals(rounds=40, processed_twice=0)), 1.0)
    assert book.ledger.settled == 40


def test_one_neighbours_word_is_enough_when_nobody_knows_of_our_rounds_any_more():
    skip = LedgerTotals(rounds=50, processed_twice=0)
    offers_s = local().offers_s
    for hears_of_its_round, settled in ((False, 50), (True, 0)):
        book = make_book("p0", lease_shape(total_steps=500))
        book.handle(Started(), 0.0)
        book.set_heads([P0], 0.0)
        book.set_recipients([P1, P2], present=2)
        book.handle(Arrived(P1, skip), 1.0)
        if hears_of_its_round:
            take(book, 1, offers_s)
        book.handle(TimerFired(DIGEST), offers_s + 1.0)
        assert book.ledger.settled == settled


def test_who_works_on_its_round_skips_none_on_the_word_of_others():
    book = make_book("p0", lease_shape(total_steps=500))
    book.set_heads([P0], 0.0)
    book.set_recipients([P1, P2], present=2)
    finish(book, take(book, 1))
    for neighbour in (P1, P2):
        book.handle(Arrived(neighbour, LedgerTotals(rounds=50, processed_twice=0)), 1.0)
    assert book.ledger.settled == 0


def test_a_strangers_word_does_not_count_beside_that_of_one_who_was_seen_to_work():
    offers_s = local().offers_s
    for teller, settled in ((P2, 0), (P1, 50)):
        book = make_book("p0", lease_shape(total_steps=500))
        book.handle(Started(), 0.0)
        book.set_heads([P0], 0.0)
        book.set_recipients([P1, P2], present=2)
        for micro_batch in take(book, ROUND):
            book.saw(micro_batch, P1, 1, CALLED)
            book.done(micro_batch, 8.0, 8, 1.0)
        later_s = 2.0 * offers_s
        book.handle(Arrived(teller, LedgerTotals(rounds=50, processed_twice=0)), later_s)
        book.handle(TimerFired(DIGEST), later_s)
        assert book.ledger.settled == (settled or 1)


# --------------------------------------------------------------------------------------- held out


def test_held_out_ones_come_when_the_round_has_ended_and_are_not_counted():
    book = lone(total_steps=10)
    taken = take(book, ROUND)
    assert book.next_held_out(0.0) is None
    finish(book, taken)
    held_out = [book.next_held_out(1.0) for _ in range(4)]
    assert held_out[:3] == [MicroBatchId(0, index, True) for index in range(3)]
    assert held_out[3] is None
    for one in held_out[:3]:
        assert one is not None
        book.done(one, 24.0, 8, 2.0)
    assert book.held_out_is_scored(0)
    assert book.held_out_loss(0) == 3.0
    assert book.audit(2.0).samples_completed == ROUND * 8
    assert book.counters["done"] == ROUND


def test_a_held_out_one_that_failed_is_looked_at_again():
    book = lone()
    finish(book, take(book, ROUND))
    first = book.next_held_out(1.0)
    assert first is not None
    book.expired(first, "no_route", 1.5)
    assert book.next_held_out(1.5) == first


def test_a_held_out_one_that_takes_long_is_not_begun_a_second_time():
    """A machine with more to do than it can: the first pass is still under way."""
    book = lone()
    finish(book, take(book, ROUND))
    begun = {book.next_held_out(1.0) for _ in range(3)}
    assert len(begun) == 3
    assert book.next_held_out(10_000.0) is None


def test_held_out_ones_of_a_silent_head_are_taken_over():
    book, other = two_heads()
    finish(book, take(book, 10))
    finish(other, take(other, 10))
    tell(book, other)
    assert other.next_held_out(1.0) == MicroBatchId(0, 1, True)
    assert other.next_held_out(1.0) is None
    late_s = 1.0 + local().lease_s_first + 5.0
    again = {other.next_held_out(late_s) for _ in range(3)}
    assert {MicroBatchId(0, 0, True), MicroBatchId(0, 2, True)} <= again


# ---------------------------------------------------------------------------------------- on disk


def test_a_saved_ledger_is_taken_up_as_far_as_it_is_wanted():
    book = lone(total_steps=100)
    for _ in range(12):
        finish(book, take(book, ROUND))
    saved = [wire.decode(wire.encode(message)) for message in book.save()]
    again = make_book("p0", lease_shape(total_steps=100), incarnation=2)
    again.restore(saved, 11)
    again.set_heads([P0], 0.0)
    again.handle(Started(), 0.0)
    assert again.ledger.settled == 11
    assert again.next_lease(0.0)[0] == MicroBatchId(11, 0)
    assert again.ledger.contributions()[P0].micro_batches == 11 * ROUND


def test_a_ledger_of_later_rounds_is_not_taken_for_an_earlier_checkpoint():
    book = lone(total_steps=100)
    for _ in range(12):
        finish(book, take(book, ROUND))
    again = make_book("p0", lease_shape(total_steps=100), incarnation=2)
    with pytest.raises(LocalProtocolError):
        again.restore(book.save(), 3)


def test_a_whole_swarm_resumes_from_what_one_peer_saved():
    shape = lease_shape(total_steps=60)
    world = LeaseWorld(20, heads=2, others=0, shape=shape)
    while world.hosts[PeerId("p000")].book.ledger.settled < 6:
        world.run(world.now_s + 0.2)
    saved = world.hosts[PeerId("p000")].book.save()
    after = LeaseWorld(21, heads=2, others=0, shape=shape)
    for host in after.hosts.values():
        host.book.restore(saved, 6)
    after.run_until_complete()
    for host in after.living():
        assert host.book.audit(after.now_s).complete
    assert min(one.round for one in after.done) == 6
