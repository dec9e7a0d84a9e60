"""Health items: each is held while its cause is there, says what to do, and goes with its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.health import HealthBook, HealthItem
from swarmd.node import health_watch
from swarmd.node.memory_growth import LOOKS, MemoryGrowth
from swarmd.protocols.greeting import PROTOCOL_MAX
from swarmd.status import LastRound, Missing

PEER = "12D3KooWBzWQAb8p3Cvp1TramLg3pzRkc6euftRSmb9aiPtW3VU1"


@pytest.fixture
def book() -> HealthBook:
    return HealthBook()


def items(book: HealthBook) -> dict[str, HealthItem]:
    found = {item.code: item for item in book.health().items}
    assert all(item.impact and item.fix for item in found.values())
    return found


def test_round_that_ended_without_somebody_names_who_and_why(book: HealthBook) -> None:
    missing = [Missing(peer=PEER, code="late")]
    last = LastRound(round=7, outcome="partial", missing=missing, late_updates=2)
    health_watch.hold_rounds(book, last)
    found = items(book)
    assert found.keys() == {"round_partial", "late_updates"}
    assert found["round_partial"].text == "round 7 ended without ·3VU1 (late)"
    health_watch.hold_rounds(book, LastRound(round=8, outcome="committed", late_updates=0))
    assert items(book) == {}


def test_update_that_was_refused_is_one_warning(book: HealthBook) -> None:
    missing = [Missing(peer=PEER, code="not_finite")]
    last = LastRound(round=7, outcome="committed", missing=missing, rejected_updates=1)
    health_watch.hold_rounds(book, last)
    assert "·3VU1 (not_finite)" in items(book)["updates_rejected"].text


def test_update_of_a_peer_that_has_no_part_in_the_round_is_told_without_a_name(
    book: HealthBook,
) -> None:
    last = LastRound(round=3, outcome="committed", rejected_updates=1)
    health_watch.hold_rounds(book, last)
    text = items(book)["updates_rejected"].text
    assert text == "left out of round 3: 1 update, of peers that have no part in it"


def test_only_who_breaks_rules_misbehaves_not_who_is_slow(book: HealthBook) -> None:
    health_watch.hold_peers(book, {PEER: {"late": 9, "silent": 2, "unknown_lease": 1}})
    assert items(book) == {}
    health_watch.hold_peers(book, {PEER: {"bad_signature": 3, "late": 9}})
    assert items(book)["peer_misbehaving"].text == "·3VU1: 3 bad_signature"
    health_watch.hold_peers(book, {})
    assert items(book) == {}, "it has left"


def test_machine_that_runs_short_is_told_before_it_is_out(
    book: HealthBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch.resource, "getrlimit", lambda kind: (1_000, 1_000))
    health_watch.hold_machine(book, 800, 2 << 30)
    assert items(book) == {}
    health_watch.hold_machine(book, 801, 1 << 29)
    assert items(book)["fd_nearly_full"].text == "801 of 1000 open files are in use"
    assert "0.54 GB are free" in items(book)["disk_nearly_full"].text
    health_watch.hold_machine(book, None, 2 << 30)
    assert items(book) == {}, "unknown is no shortage"


def test_data_folder_that_is_gone_is_told_and_its_disk_still_looked_at(
    book: HealthBook, tmp_path: Path
) -> None:
    data = tmp_path / "home" / "data"
    health_watch.hold_data(book, data)
    assert items(book)["disk_error"].text == f"{data} is gone, and with it this peer's checkpoints"
    assert health_watch.free_bytes(data) > 0
    book.clear("disk_error")
    data.mkdir(parents=True)
    health_watch.hold_data(book, data)
    assert items(book) == {}


def test_newer_protocol_of_others_is_told(book: HealthBook) -> None:
    health_watch.hold_versions(book, [PROTOCOL_MAX, PROTOCOL_MAX])
    health_watch.hold_versions(book, [])
    assert items(book) == {}
    health_watch.hold_versions(book, [PROTOCOL_MAX, PROTOCOL_MAX + 1])
    assert f"protocol {PROTOCOL_MAX + 1}" in items(book)["behind_protocol"].text


def test_loopback_alone_is_told_unless_the_whole_run_is_on_this_machine(book: HealthBook) -> None:
    loopback, outside = "/ip4/127.0.0.1/tcp/4710", "/ip4/203.0.113.7/tcp/4710"
    for addresses, is_local in (([loopback, outside], False), ([loopback], True), ([], False)):
        health_watch.hold_addresses(book, addresses, is_local=is_local)
        assert items(book) == {}
    health_watch.hold_addresses(book, [loopback], is_local=False)
    assert items(book).keys() == {"only_loopback_announced"}


def test_memory_grows_only_if_it_is_never_given_back(book: HealthBook) -> None:
    steady = iter([100 << 20, 180 << 20, 100 << 20] * LOOKS)
    peaks = MemoryGrowth(lambda: next(steady))
    rising = iter(range(100 << 20, 1 << 40, 2 << 20))
    leak = MemoryGrowth(lambda: next(rising))
    for looks in range(LOOKS):
        assert leak.bytes_per_min is None, f"{looks} looks say nothing"
        peaks.note()
        leak.note()
    assert peaks.bytes_per_min == 0
    assert leak.bytes_per_min == pytest.approx(2 << 20)
    health_watch.hold_growth(book, peaks.bytes_per_min)
    health_watch.hold_growth(book, None)
    assert items(book) == {}
    health_watch.hold_growth(book, leak.bytes_per_min)
    assert "2.1 MB more every minute" in items(book)["memory_growing"].text
