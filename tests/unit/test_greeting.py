"""A link on which no Hello comes is ended, so that its peer can be dialled again."""

from __future__ import annotations

from compute_helpers import small_run
from gossip_helpers import peer_id, record, signed

from swarmd.protocols import effects as fx
from swarmd.protocols.greeting import GREETING_S, Greeting
from swarmd.protocols.messages.control import Hello

OWN, OTHER = signed(record("own")), peer_id("other")
SHAPE = small_run().shape


def greeting() -> Greeting:
    return Greeting(SHAPE, b"", 1, "test")


def hello(run_id: str = SHAPE.run_id) -> Hello:
    return Hello(run_id=run_id, incarnation=1, protocol_min=1, protocol_max=1)


def test_silent_link_is_dropped_at_its_deadline_and_once() -> None:
    ours = greeting()
    (sent,) = ours.linked(OTHER, OWN, 100.0)
    assert isinstance(sent, fx.Send)
    assert isinstance(sent.message, Hello)
    assert ours.review(100.0 + GREETING_S - 0.1) == []
    assert ours.review(100.0 + GREETING_S) == [fx.Drop(OTHER, "no_hello")]
    assert ours.review(100.0 + 2 * GREETING_S) == []


def test_greeted_link_stays() -> None:
    ours = greeting()
    ours.linked(OTHER, OWN, 100.0)
    assert ours.heard_hello(OTHER, hello()) == (True, [])
    assert ours.review(100.0 + GREETING_S) == []


def test_hello_of_another_run_does_not_keep_a_link() -> None:
    ours = greeting()
    ours.linked(OTHER, OWN, 100.0)
    assert not ours.heard_hello(OTHER, hello("b" * 64))[0]
    assert ours.review(100.0 + GREETING_S) == [fx.Drop(OTHER, "no_hello")]


def test_link_that_ended_and_came_back_has_its_whole_time() -> None:
    ours = greeting()
    ours.linked(OTHER, OWN, 100.0)
    ours.lost(OTHER)
    ours.linked(OTHER, OWN, 120.0)
    assert ours.review(100.0 + GREETING_S) == []
    assert ours.review(120.0 + GREETING_S) == [fx.Drop(OTHER, "no_hello")]
