"""The user's rules: which pauses the peer when, and that nothing flickers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from swarmd.node.rule_watch import RuleWatch
from swarmd.peer_config import PeerConfig
from swarmd.protocols import effects as fx
from swarmd.rules import QUIET_FOR_S, Facts, broken_rule, has_rules

NOON = datetime(2026, 11, 30, 12, 0, 0)
CALM = Facts(at=NOON, is_on_battery=False, others_share=0.02, temperature_c=50.0)


def code_of(config: PeerConfig, facts: Facts, held: str | None = None) -> str | None:
    broken = broken_rule(config, facts, held)
    return broken.code if broken else None


@pytest.mark.parametrize(
    ("hours", "hour", "may", "for_h"),
    [
        ((22, 7), 21, False, 1), ((22, 7), 22, True, None), ((22, 7), 3, True, None),
        ((22, 7), 7, False, 15), ((9, 17), 9, True, None), ((9, 17), 17, False, 16),
        ((9, 17), 8, False, 1), ((0, 12), 0, True, None), ((0, 12), 12, False, 12),
    ],
)  # fmt: skip
def test_hours_go_over_midnight_and_tell_when_they_begin(
    hours: tuple[int, int], hour: int, may: bool, for_h: int | None
) -> None:
    broken = broken_rule(PeerConfig(hours=hours), replace(CALM, at=NOON.replace(hour=hour)), None)
    assert (broken is None) == may
    if broken is not None and for_h is not None:
        assert (broken.code, broken.for_s) == ("outside_schedule", for_h * 3600)


@pytest.mark.parametrize(
    ("config", "facts", "code"),
    [
        ({}, {"is_on_battery": True, "others_share": 1.0, "temperature_c": 99.0}, None),
        ({"on_battery": False}, {"is_on_battery": True}, "on_battery"),
        ({"on_battery": False}, {"is_on_battery": None}, None),
        ({"only_idle": True}, {"others_share": 0.5}, "not_idle"),
        ({"only_idle": True}, {"others_share": 0.2}, None),
        ({"only_idle": True}, {"others_share": None}, None),
        ({"temp_limit": 80}, {"temperature_c": 81.0}, "over_temperature"),
        ({"temp_limit": 80}, {"temperature_c": 80.0}, None),
        ({"temp_limit": 80}, {"temperature_c": None}, None),
    ],
)
def test_rule_is_broken_by_what_it_is_about_and_by_nothing_unknown(
    config: dict[str, Any], facts: dict[str, Any], code: str | None
) -> None:
    assert code_of(PeerConfig(**config), replace(CALM, **facts)) == code


def test_what_is_paused_for_heat_or_work_waits_until_it_is_clearly_over() -> None:
    hot = PeerConfig(temp_limit=80)
    assert code_of(hot, replace(CALM, temperature_c=78.0), "over_temperature") == "over_temperature"
    assert code_of(hot, replace(CALM, temperature_c=75.0), "over_temperature") is None
    idle = PeerConfig(only_idle=True)
    for quiet_for_s, code in (
        (0.0, "not_idle"),
        (QUIET_FOR_S - 1, "not_idle"),
        (QUIET_FOR_S, None),
    ):
        facts = replace(CALM, others_share=0.1, quiet_for_s=quiet_for_s)
        assert code_of(idle, facts, "not_idle") == code


def test_machine_is_told_once_when_a_rule_is_broken_and_once_when_none_is() -> None:
    told: list[fx.Command] = []
    settings = PeerConfig(on_battery=False)
    watch = RuleWatch(lambda: settings, told.append, lambda: 0, is_on_gpu=False, facts=lambda: CALM)  # type: ignore[arg-type]
    for on_battery in (False, True, True, False, False):
        watch.note(replace(CALM, is_on_battery=on_battery))
    assert [command.args["code"] for command in told] == ["on_battery", None]
    watch.note(replace(CALM, is_on_battery=True))
    settings = PeerConfig()
    watch.note(replace(CALM, is_on_battery=True))
    assert [command.args["code"] for command in told[2:]] == ["on_battery", None], "a reload"


def test_without_rules_nothing_is_looked_at() -> None:
    assert not has_rules(PeerConfig())
    for config in (PeerConfig(hours=(1, 2)), PeerConfig(only_idle=True), PeerConfig(temp_limit=1)):
        assert has_rules(config)


def test_the_machine_can_be_looked_at() -> None:
    """Whatever this one is: no exception, shares within 0 and 1."""
    from swarmd.node.rule_watch import _Look

    look = _Look(is_on_gpu=False)
    first, second = look.facts(), look.facts()
    assert first.others_share is None
    assert second.others_share is None or 0.0 <= second.others_share <= 1.0
