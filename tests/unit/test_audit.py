"""The audit finds what is missing or counted twice, wherever it stands."""

import dataclasses

import pytest
from lease_world import lease_shape, sign_as, verify

from swarmd.protocols.audit import audit
from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import IndexSet
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_entries import Entry, EntryKey, sign_entry

SHAPE = lease_shape(total_steps=100, samples_total=100 * 32 - 3)
END = SHAPE.micro_batches_of_round(0)


def work(ledger: Ledger, number: int, done, lost=(), peer: str = "p1") -> None:
    key = EntryKey(number, PeerId(peer), 1)
    entry = Entry(key, 1, done=IndexSet.of(done), lost=IndexSet.of(lost))
    ledger.put(sign_entry(entry, ledger.shape, sign_as(peer)))


def gaps(ledger: Ledger) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in audit(ledger, 0).gaps]


def test_an_empty_ledger_is_clean_and_covers_nothing():
    found = audit(Ledger(SHAPE, verify), 0)
    assert found.clean
    assert not found.complete
    assert (found.samples_completed, found.covered_until) == (0, 0)
    assert found.samples_total == SHAPE.samples_total


def test_what_the_open_rounds_still_have_to_do_is_no_gap():
    ledger = Ledger(SHAPE, verify)
    work(ledger, 0, range(END))
    work(ledger, 1, range(3, END))
    work(ledger, 2, [0])
    assert gaps(ledger) == []
    assert audit(ledger, 0).covered_until == END * 8


def test_what_the_swarm_has_left_behind_is_a_gap():
    ledger = Ledger(SHAPE, verify)
    work(ledger, 0, range(END))
    work(ledger, 1, range(3, END))
    work(ledger, 3, [0])
    assert gaps(ledger) == [(END * 8, (END + 3) * 8 - 1)]
    assert not audit(ledger, 0).clean


@pytest.mark.parametrize("rounds", [3, 19])
def test_what_was_given_up_stays_a_gap_in_detail_and_in_sum(rounds):
    ledger = Ledger(SHAPE, verify)
    for number in range(rounds):
        lost = [END - 1] if number == 1 else []
        work(ledger, number, range(END - len(lost)), lost)
    ledger.roll_up()
    assert (ledger.base > 1) == (rounds == 19)
    assert gaps(ledger) == [((2 * END - 1) * 8, 2 * END * 8 - 1)]
    found = audit(ledger, 0)
    assert found.samples_completed == (rounds * END - 1) * 8


def test_a_run_done_to_its_short_end_is_complete():
    ledger = Ledger(SHAPE, verify)
    for number in range(SHAPE.rounds):
        work(ledger, number, range(SHAPE.micro_batches_of_round(number)))
        ledger.roll_up()
    found = audit(ledger, 0)
    assert found.complete
    assert found.samples_completed == found.samples_total == found.covered_until == 100 * 32 - 3


def test_what_two_peers_did_is_told_in_samples():
    ledger = Ledger(SHAPE, verify)
    work(ledger, 0, range(END))
    work(ledger, 0, [2, 3], peer="p2")
    assert audit(ledger, 0).processed_twice == 16
    assert audit(ledger, 0).clean


def test_rounds_that_overlap_are_found():
    """The arithmetic of a run whose rounds share samples, which no run may have."""

    class Overlapping(type(SHAPE)):
        def first_micro_batch(self, round_number: int) -> int:
            return round_number * (END - 2)

    wrong = Overlapping(**dataclasses.asdict(dataclasses.replace(SHAPE, samples_total=0)))
    ledger = Ledger(wrong, verify)
    work(ledger, 0, range(END))
    work(ledger, 1, range(END))
    found = audit(ledger, 0)
    assert [(part.first, part.last) for part in found.repeats] == [((END - 2) * 8, END * 8 - 1)]
    assert not found.clean
