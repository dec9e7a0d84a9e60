"""The user's word and the user's rules: which is shown, and when each ends."""

from __future__ import annotations

import pytest

from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.pauses import Pauses


def test_word_goes_before_rule_and_the_rule_stays_after_it() -> None:
    pauses = Pauses()
    pauses.obey({"code": "on_battery", "text": "on battery"}, 1.0)
    pauses.say({}, 2.0)
    assert pauses.current is not None
    assert pauses.current.code == "paused"
    pauses.word = None
    assert pauses.current.code == "on_battery"
    pauses.obey({"code": None}, 3.0)
    assert pauses.current is None


def test_word_with_an_end_holds_until_then_and_shows_it() -> None:
    pauses = Pauses()
    pauses.say({"for_s": 60.0}, 100.0)
    assert pauses.current is not None
    assert (pauses.current.eta_at_s, pauses.current.eta_basis) == (160.0, "schedule")
    assert not pauses.is_over(159.9)
    assert pauses.is_over(160.0)
    assert pauses.current is None
    assert not pauses.is_over(161.0)


def test_word_without_an_end_never_ends_by_itself() -> None:
    pauses = Pauses()
    pauses.say({"for_s": None}, 0.0)
    assert not pauses.is_over(1e9)


@pytest.mark.parametrize("code", ["training", "no_such_code", "draining"])
def test_only_codes_of_a_pause_are_rules(code: str) -> None:
    pauses = Pauses()
    with pytest.raises(LocalProtocolError):
        pauses.obey({"code": code}, 0.0)
    assert pauses.current is None
