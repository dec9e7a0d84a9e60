"""Reading ahead: the same samples in any order, and ready where a head goes its usual way."""

import threading

import numpy as np
import pytest
from corpus_helpers import data_run, write_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.data.corpus import open_corpus
from swarmd.data.read_ahead import AHEAD, ReadAhead
from swarmd.protocols.ids import MicroBatchId

PER_ROUND = 20
LIMIT_S = 60.0


class Numbers:
    """A corpus in which every micro-batch says which one it is; those from `end` on are missing."""

    content_hash = "ab"

    def __init__(self, end: int = 10**6) -> None:
        self.end = end
        self.read_in: dict[MicroBatchId, str] = {}
        self.times = 0
        self.changed = threading.Condition()

    def samples(self, micro_batch: MicroBatchId) -> np.ndarray:
        with self.changed:
            self.read_in[micro_batch] = threading.current_thread().name
            self.times += 1
            self.changed.notify_all()
        number = micro_batch.round * PER_ROUND + micro_batch.index
        if number >= self.end:
            raise ValueError(f"the run has no micro-batch {micro_batch}")
        return np.array([number, micro_batch.held_out])

    def wait_for(self, *micro_batches: MicroBatchId) -> None:
        """Until these have been read, by whomever."""
        with self.changed:
            assert self.changed.wait_for(lambda: set(micro_batches) <= set(self.read_in), LIMIT_S)


@pytest.fixture
def reader():
    made: list[ReadAhead] = []

    def make(corpus: Numbers) -> ReadAhead:
        made.append(ReadAhead(corpus, PER_ROUND))
        return made[-1]

    yield make
    for one in made:
        one.close()


ANY = st.builds(
    MicroBatchId, round=st.integers(0, 3), index=st.integers(0, 19), held_out=st.booleans()
)


@settings(max_examples=50, deadline=None)
@given(st.lists(ANY, max_size=30))
def test_any_order_gives_the_samples_that_were_asked_for(wanted):
    ahead = ReadAhead(Numbers(), PER_ROUND)
    try:
        for one in wanted:
            assert ahead.samples(one).tolist() == [one.round * PER_ROUND + one.index, one.held_out]
        assert len(ahead._coming) <= AHEAD
    finally:
        ahead.close()


def test_the_next_ones_are_read_while_nobody_waits_for_them(reader):
    corpus = Numbers()
    ahead = reader(corpus)
    ahead.samples(MicroBatchId(0, 1))
    ahead.samples(MicroBatchId(0, 4))
    corpus.wait_for(MicroBatchId(0, 7), MicroBatchId(0, 10))  # the device computes
    assert corpus.read_in[MicroBatchId(0, 7)].startswith("samples")
    for index in range(7, 20, 3):
        ahead.samples(MicroBatchId(0, index))
    assert ahead.figures.reads == 7
    assert ahead.figures.ready == 5


def test_a_round_that_ends_does_not_end_the_row(reader):
    ahead = reader(Numbers())
    for number in range(15, 45):
        ahead.samples(MicroBatchId(*divmod(number, PER_ROUND)))
    assert ahead.figures.ready == 29


def test_what_cannot_be_read_is_told_to_whoever_wants_it_and_to_nobody_else(reader):
    ahead = reader(Numbers(end=2))
    ahead.samples(MicroBatchId(0, 0))
    ahead.samples(MicroBatchId(0, 1))
    ahead.samples(MicroBatchId(0, 0))
    ahead.samples(MicroBatchId(0, 1))
    with pytest.raises(ValueError, match=r"no micro-batch m0\.2"):
        ahead.samples(MicroBatchId(0, 2))


def test_samples_of_a_corpus_are_those_that_it_gives_itself(tmp_path):
    run = data_run(write_texts(tmp_path / "in"))
    corpus = open_corpus(run, tmp_path / "cache")
    ahead = ReadAhead(open_corpus(run, tmp_path / "cache"), PER_ROUND)
    for index in range(8):
        one = MicroBatchId(0, index)
        assert (ahead.samples(one) == corpus.samples(one)).all()
    ahead.close()
    assert ahead.content_hash == corpus.content_hash
