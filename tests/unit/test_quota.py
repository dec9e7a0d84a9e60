"""What the user allows of the network: a month's traffic is counted, a cap that bites is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from swarmd.health import HealthBook
from swarmd.net.transport import CapHeld
from swarmd.node.caps_shown import hold_caps
from swarmd.node.month_traffic import MonthTraffic
from swarmd.peer_config import PeerConfig
from swarmd.rules import Facts, broken_rule, has_rules

NOVEMBER, DECEMBER = datetime(2026, 11, 29, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
DAY_S = 86_400


@pytest.mark.parametrize(("used", "is_broken"), [(999, False), (1000, True), (10**12, True)])
def test_a_used_up_quota_pauses_until_the_month_is_over(used: int, is_broken: bool) -> None:
    config, facts = PeerConfig(quota_month=1000), Facts(at=NOVEMBER, month_bytes=used)
    assert has_rules(config)
    assert broken_rule(PeerConfig(), facts, None) is None, "no quota, no rule"
    broken = broken_rule(config, facts, None)
    assert (broken is not None) == is_broken
    if broken is not None:
        assert (broken.code, broken.for_s) == ("quota_exhausted", 2 * DAY_S)
        assert "of your 1 kB a month" in broken.text


def test_traffic_is_counted_over_restarts_and_each_month_anew(tmp_path: Path) -> None:
    file, totals, now = tmp_path / "traffic.json", (500, 200), NOVEMBER
    first = MonthTraffic(file, lambda: totals, lambda: now)
    assert first.used_bytes() == 700
    totals = (600, 200)
    first.write()
    totals = (30, 20)
    again = MonthTraffic(file, lambda: totals, lambda: now)
    assert again.used_bytes() == again.used_bytes() == 850
    now = DECEMBER
    assert again.used_bytes() == 0
    totals = (31, 20)
    assert again.used_bytes() == 1


@pytest.mark.parametrize("body", ["", "{", "[1]", '{"month": "2026-11", "bytes": -1}'])
def test_a_spoilt_count_begins_anew_and_ends_nothing(tmp_path: Path, body: str) -> None:
    file = tmp_path / "traffic.json"
    file.write_text(body)
    assert MonthTraffic(file, lambda: (0, 0), lambda: NOVEMBER).used_bytes() == 0


def test_a_cap_that_bites_is_a_health_item_that_says_what_it_costs() -> None:
    book = HealthBook()
    caps = [CapHeld("up", 2.5e6, 0.4), CapHeld("down", 1e7, 0.01)]
    hold_caps(book, caps, round_s=10.0)
    (item,) = book.health().items
    assert (item.code, item.severity) == ("rate_capped", "warn")
    assert item.text == "upload is held at 20 Mbit/s by your limit"
    assert "about 4 s of each round" in str(item.impact)
    assert "`limit_up`" in str(item.fix)
    hold_caps(book, [CapHeld("up", 2.5e6, 0.02)], round_s=None)
    assert book.health().items == []
