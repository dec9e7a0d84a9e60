"""The seconds of a start are booked on what it was at, and their sum is the time that passed."""

from __future__ import annotations

from swarmd.node.start_book import StartBook
from swarmd.protocols.reasons import Reason


def test_every_second_before_the_machine_has_a_reason() -> None:
    now_s = 10.0
    book = StartBook(lambda: now_s)
    assert book.by_reason(now_s) == {}
    book.is_at(2, "reading the run and its data")
    now_s = 14.0
    assert book.seconds().current.text == "step 2 of 4: reading the run and its data"
    book.explains = lambda now_s: Reason(code="connecting", text="asks")
    book.seconds()
    now_s = 17.0
    assert book.seconds().since_s == 14.0
    book.explains = None
    book.is_at(4, "looking at this machine")
    assert book.by_reason(18.0) == {"connecting": 3.0, "starting": 5.0}
    assert book.by_reason(18.0) == {"connecting": 3.0, "starting": 5.0}, "asked again, the same"
