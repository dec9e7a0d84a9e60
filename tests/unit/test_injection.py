"""The grammar of faults on purpose."""

from __future__ import annotations

import pytest

from swarmd.injection import KINDS, REQUIRED, parse_injection, parse_injection_of_peer
from swarmd.units import BadValue


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nan_update", ("nan_update", None, "now", 0)),
        ("huge_update", ("huge_update", 1000.0, "now", 0)),
        ("huge_update=7@now", ("huge_update", 7.0, "now", 0)),
        ("drop_forward=0.1@round=3", ("drop_forward", 0.1, "round", 3)),
        ("slow=4@after=10s", ("slow", 4.0, "after", 10)),
        ("cut=k4Qe,Pq0d@step=9", ("cut", ("k4Qe", "Pq0d"), "step", 9)),
        ("clock=-10s", ("clock", -10.0, "now", 0)),
        ("protocol=+1", ("protocol", 1, "now", 0)),
        ("serve_rate=20mbit", ("serve_rate", 2_500_000.0, "now", 0)),
        ("big_message=1MiB", ("big_message", 1 << 20, "now", 0)),
        ("wedge=mix2", ("wedge", "mix2", "now", 0)),
    ],
)
def test_spec_is_kind_parameter_and_time(text: str, expected: tuple[object, ...]) -> None:
    found = parse_injection(text)
    assert (found.kind, found.param, found.trigger, found.at) == expected
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no kind of fault"),
        ("nan_updat", "did you mean nan_update"),
        ("nan_update=3", "does not take"),
        ("cut", "which it needs"),
        ("cut=a,,b", "no list of peers"),
        ("drop_forward=1.5", "not in 0..1"),
        ("slow=x", "no number"),
        ("slow=2@later", "is no time"),
        ("slow=2@round=x", "no whole number"),
        ("slow=2@after=", "no duration"),
        ("protocol=2", "neither"),
    ],
)
def test_wrong_spec_says_what_is_wrong_with_it(text: str, fault: str) -> None:
    with pytest.raises(BadValue, match="a right one") as caught:
        parse_injection(text)
    assert fault in str(caught.value)


def test_every_kind_can_be_written() -> None:
    for kind, (_, default, _) in KINDS.items():
        text = f"{kind}=+1" if default is REQUIRED else kind
        text = "clock=+1s" if kind == "clock" else text
        assert parse_injection(text).kind == kind


def test_local_names_the_peer_in_front() -> None:
    name, found = parse_injection_of_peer("p2:slow=3")
    assert (name, found.kind) == ("p2", "slow")
    for wrong in ("slow=3", "x2:slow", "p:slow", "p2:"):
        with pytest.raises(BadValue):
            parse_injection_of_peer(wrong)
