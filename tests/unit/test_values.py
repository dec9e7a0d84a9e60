"""Events, effects and messages are values: compared and hashed by what they say."""

from __future__ import annotations

import pytest

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import gossip


def rumour(verdict: str) -> gossip.Rumour:
    return gossip.Rumour(peer="a", incarnation=1, refutation=0, verdict=verdict, accuser="b")


def test_values_that_say_the_same_are_equal_and_one_key() -> None:
    assert fx.LinkDown(PeerId("a"), "lost") == fx.LinkDown(PeerId("a"), "lost")
    assert fx.LinkDown(PeerId("a"), "lost") != fx.LinkDown(PeerId("a"), "closed")
    assert len({rumour("dead"), rumour("dead"), rumour("suspect")}) == 2


def test_values_have_no_room_for_more_than_they_say() -> None:
    for value in (fx.Started(), fx.TimerFired("tick"), rumour("dead")):
        assert not hasattr(value, "__dict__")
        with pytest.raises(AttributeError):
            value.more = 1
