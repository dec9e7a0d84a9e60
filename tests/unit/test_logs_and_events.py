"""The event file, the log, the pipe nobody reads, and the Prometheus text."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from json_schema_check import assert_valid
from status_samples import rendered_peers, rendered_status

from swarmd.drop_writer import DropWriter
from swarmd.events_log import EventLog, read_events
from swarmd.home import Home, find_home
from swarmd.logs import JsonFormatter, RepeatFilter, start_logging, stop_logging
from swarmd.metrics_text import metrics_text

AT = "2026-11-30T12:00:00.000Z"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = find_home(str(tmp_path / "home"))
    found.create()
    return found


# ------------------------------------------------------------------------------------------- events


def test_numbers_go_on_across_restarts(home: Home) -> None:
    for _ in range(3):
        log = EventLog(home.events_file)
        log.append("started", at=AT)
        log.close()
    assert [event["seq"] for event in read_events(home.events_file)] == [1, 2, 3]
    assert [event["seq"] for event in read_events(home.events_file, after_seq=2)] == [3]


def test_event_in_the_file_is_a_valid_object(home: Home) -> None:
    log = EventLog(home.events_file)
    found = log.append("peer_dead", at=AT, level="warning", peer="p", stage=1, data={"x": 1})
    log.close()
    assert_valid(found)
    assert list(read_events(home.events_file)) == [found]
    assert stat.S_IMODE(home.events_file.stat().st_mode) == 0o600


def test_half_a_line_of_a_crash_is_skipped_and_numbers_go_on(home: Home) -> None:
    log = EventLog(home.events_file)
    log.append("started", at=AT)
    log.close()
    with home.events_file.open("ab") as file:
        file.write(b'{"seq": 2, "eve')
    log = EventLog(home.events_file)
    log.append("stopped", at=AT)
    log.close()
    assert [event["event"] for event in read_events(home.events_file)] == ["started", "stopped"]


def test_file_is_rotated_and_older_ones_are_read_first(home: Home) -> None:
    log = EventLog(home.events_file, bytes_max=600, keep=2)
    for _ in range(20):
        log.append("state_changed", at=AT)
    log.close()
    files = sorted(file.name for file in home.state.glob("events.jsonl*"))
    assert files == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    seqs = [event["seq"] for event in read_events(home.events_file)]
    assert seqs == list(range(seqs[0], 21))
    log = EventLog(home.events_file, bytes_max=600, keep=2)
    assert log.append("started", at=AT)["seq"] == 21
    log.close()


def test_no_file_has_no_events(home: Home) -> None:
    assert list(read_events(home.events_file)) == []


# ---------------------------------------------------------------------------------------------- log


@pytest.fixture
def clean_root() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)
    logging.raiseExceptions = True


def test_same_line_is_written_once_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("swarmd.logs.time.monotonic", lambda: clock[0])
    repeats = RepeatFilter(60.0)

    def write(text: str) -> str | None:
        record = logging.LogRecord("x", logging.INFO, "", 0, "line %s", (text,), None)
        return record.getMessage() if repeats.filter(record) else None

    assert write("a") == "line a"
    assert [write("a"), write("a")] == [None, None]
    assert write("b") == "line b"
    clock[0] = 61.0
    assert write("a") == "line a (repeated 2 times)"
    assert write("a") is None


def test_filter_remembers_a_bounded_number_of_lines() -> None:
    repeats = RepeatFilter(60.0)
    for number in range(2000):
        repeats.filter(logging.LogRecord("x", logging.INFO, "", 0, str(number), None, None))
    assert len(repeats._lines) <= 512


@pytest.mark.usefixtures("clean_root")
def test_log_goes_to_a_private_file_as_text_or_json(home: Home) -> None:
    for log_format in ("text", "json"):
        handler = start_logging(home, log_format=log_format, repeat_s=60.0, to_stderr=False)
        logging.getLogger("swarmd.x").warning("link_lost peer=%s", "k4Qe")
        stop_logging(handler)
    text, line = home.log_file.read_text().splitlines()
    assert text.endswith(" WARNING swarmd.x link_lost peer=k4Qe")
    assert json.loads(line)["message"] == "link_lost peer=k4Qe"
    assert stat.S_IMODE(home.log_file.stat().st_mode) == 0o600


def test_traceback_is_part_of_the_json_line() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "m", None, info)
    assert "ValueError: x" in json.loads(JsonFormatter().format(record))["traceback"]


# --------------------------------------------------------------------------------------------- pipe


def test_lines_reach_a_reader_in_order() -> None:
    reader, writer = os.pipe()
    lines = DropWriter(writer)
    for number in range(10):
        lines.write_line(f"line {number} ü")
    lines.close()
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read().splitlines() == [f"line {number} ü" for number in range(10)]


def test_full_pipe_drops_and_never_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmd.drop_writer.CLOSE_S", 0.05)
    reader, writer = os.pipe()
    lines = DropWriter(writer, lines_max=4)
    for _ in range(100):
        lines.write_line("x" * 10_000)
    assert lines.dropped > 0
    lines.close()
    os.close(reader)  # frees the thread, which then finds nobody there
    lines._thread.join(2)
    assert not lines._thread.is_alive()
    os.close(writer)


def test_closed_pipe_drops_everything() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = DropWriter(writer)
    lines.write_line("first")
    lines._thread.join(2)
    lines.write_line("second")
    assert lines.dropped == 1
    lines.close()
    os.close(writer)


# ------------------------------------------------------------------------------------------ metrics


def test_metric_names_follow_from_the_fields() -> None:
    status = {
        "schema_version": 1,
        "swarmd_version": "0.1.0",
        "state": "training",
        "reason": {"code": "mixing", "for_s": 2.5},
        "health": {"level": "warn", "items": [{"code": "rate_capped", "severity": "warn"}]},
        "progress": {"loss": 3.5, "loss_ema": None, "inner_step": 7},
        "peers": {"known": 3},
        "slots": [{"device": "cpu", "stage": 1, "tokens_per_s": 10.0, "state": "training"}],
        "time": {"uptime_s": 9.0, "by_reason": {"mixing": 4.0, "training": 5.0}},
    }
    peers = {"peers": [{"id": 'a"b', "stage": 2, "rtt_ms": 31.0, "rejected": {"late": 2}}]}
    text = metrics_text(status, peers)
    for line in (
        "swarmd_progress_loss 3.5",
        "swarmd_progress_inner_step 7",
        "swarmd_peers_known 3",
        'swarmd_slots_tokens_per_s{device="cpu",stage="1"} 10',
        'swarmd_peers_rtt_ms{peer="a\\"b",stage="2"} 31',
        'swarmd_peers_rejected{peer="a\\"b",stage="2",code="late"} 2',
        'swarmd_seconds_total{reason="mixing"} 4',
        "# TYPE swarmd_seconds_total counter",
        'swarmd_state{state="training"} 1',
        'swarmd_reason{code="mixing"} 1',
        'swarmd_health_item{code="rate_capped",severity="warn"} 1',
        'swarmd_info{version="0.1.0"} 1',
    ):
        assert line in text.splitlines(), line
    assert "loss_ema" not in text
    assert "schema" not in text


def test_no_metric_is_written_twice() -> None:
    lines = metrics_text(rendered_status(), rendered_peers()).splitlines()
    names = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(names) == len(set(names))
