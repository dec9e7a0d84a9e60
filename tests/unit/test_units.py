"""Durations, sizes, rates and link shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.units import (
    BadValue,
    LinkShape,
    format_duration,
    format_flops,
    format_rate,
    format_shape,
    format_size,
    parse_duration,
    parse_flops,
    parse_rate,
    parse_shape,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("2m", 120), ("1h", 3600), ("7", 7), ("1.5 h", 5400), ("0", 0)],
)
def test_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("50M", 50_000_000), ("2GiB", 2 << 30), ("1k", 1000), ("3KiB", 3072), ("17", 17), ("4 B", 4)],
)
def test_size_is_read_as_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("20mbit", 2_500_000),
        ("1gbit", 125_000_000),
        ("256KiB/s", 262_144),
        ("8bit/s", 1),
        ("1000", 1000),
        ("2MB/s", 2_000_000),
    ],
)
def test_rate_is_read_as_bytes_per_second(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


def test_shape_is_rate_delay_and_jitter() -> None:
    assert parse_shape("100mbit") == LinkShape(12_500_000)
    assert parse_shape("100mbit,40ms,5ms") == LinkShape(12_500_000, 0.04, 0.005)


@pytest.mark.parametrize("text", ["", "ten", "10 parsecs", "-5s", "1e999", "9999h", "nan", "1..2s"])
def test_unreadable_duration_says_value_fault_and_a_right_one(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)
    assert "a right one: 90s" in str(caught.value)


@pytest.mark.parametrize("text", ["", "2GiX", "i", "5iB", "0x10"])
def test_unreadable_size_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "0mbit", "20zbit", "fast", "1mbit,2"])
def test_unreadable_rate_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1mbit,1s,2s", "1mbit,1s,1s,1s", "1mbit,", ",1s"])
def test_impossible_shape_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_shape(text)


@given(st.integers(0, 10**7).map(lambda n: n / 1000))
def test_formatted_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@given(st.integers(0, 1 << 50))
def test_formatted_size_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(1, 10**12).map(lambda bits: bits / 8))
def test_formatted_rate_reads_back(bytes_per_s: float) -> None:
    assert parse_rate(format_rate(bytes_per_s)) == pytest.approx(bytes_per_s)


def test_formatted_shape_is_as_written() -> None:
    for text in ("100mbit", "20mbit,40ms", "1gbit,100ms,5ms"):
        assert format_shape(parse_shape(text)) == text


def test_operations_per_second_are_read_and_written_alike() -> None:
    for text in ("82.6T", "1P", "91.5G", "7"):
        assert format_flops(parse_flops(text)) == text
    assert parse_flops("1.5t") == 1.5e12
    for unreadable in ("0", "fast", "3 flops", "-1T", ""):
        with pytest.raises(BadValue, match=r"82\.6T"):
            parse_flops(unreadable)
