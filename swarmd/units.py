"""Durations, sizes and rates as people write them, and back again.

    500ms 10s 2m 1h      a bare number means seconds
    50M 2GiB             K M G T count in 1000, Ki Mi Gi Ti in 1024; a bare number means bytes
    20mbit 256KiB/s      bits or bytes a second; a bare number means bytes a second
    100mbit,40ms,5ms     the shape of a link: rate, delay on the round trip, jitter
    82.6T                operations a second of a device; K M G T P count in 1000

One grammar for flags, environment and files. Inside the program there are only seconds and bytes.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

DURATION_S_MAX = 366 * 86_400.0
"""A longer wait is a typing error."""

_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(.*)", re.DOTALL)
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class BadValue(ValueError):
    """A value that people wrote and nobody can read. One line says value, fault and a right one."""

    def __init__(self, value: object, fault: str, example: str) -> None:
        shown = repr(value) if len(repr(value)) <= 160 else repr(value)[:157] + "..."
        super().__init__(f"{shown} {fault}; a right one: {example}")
        self.value = value
        self.fault = fault
        self.example = example


def parse_duration(text: str) -> float:
    """Seconds. Raises BadValue."""
    example = "90s, 500ms, 2m or 1h"
    number, unit = _split(text, "is no duration", example)
    if unit not in _SECONDS:
        raise BadValue(text, f"has the unknown unit {unit!r}", example)
    seconds = number * _SECONDS[unit]
    if seconds > DURATION_S_MAX:
        raise BadValue(text, "is more than a year", example)
    return seconds


def parse_size(text: str) -> int:
    """Bytes. Raises BadValue."""
    example = "50M or 2GiB"
    number, unit = _split(text, "is no size", example)
    factor = _byte_factor(unit.lower())
    if factor is None:
        raise BadValue(text, f"has the unknown unit {unit!r}", example)
    return round(number * factor)


def parse_rate(text: str) -> float:
    """Bytes a second. Raises BadValue."""
    example = "20mbit or 256KiB/s"
    number, unit = _split(text, "is no rate", example)
    lowered = unit.lower().removesuffix("/s").removesuffix("ps")
    if lowered.endswith("bit"):
        power = _POWERS.get(lowered.removesuffix("bit"))
        factor = None if power is None else 1000.0**power / 8
    else:
        factor = _byte_factor(lowered)
    if factor is None:
        raise BadValue(text, f"has the unknown unit {unit!r}", example)
    if number == 0:
        raise BadValue(text, "would stop everything", example)
    return number * factor


class LinkShape(NamedTuple):
    """What a link is made to behave like."""

    rate_bytes_per_s: float
    """Per link and direction."""
    delay_s: float = 0.0
    """Added to the round trip, half each way."""
    jitter_s: float = 0.0
    """Moves the delay by up to this much, both ways."""


def parse_shape(text: str) -> LinkShape:
    """RATE[,DELAY[,JITTER]]. Raises BadValue."""
    parts = text.split(",")
    if len(parts) > 3:
        raise BadValue(text, "has more than three parts", "100mbit,40ms,5ms")
    times = [parse_duration(part) for part in parts[1:]]
    shape = LinkShape(parse_rate(parts[0]), *times)
    if shape.jitter_s > shape.delay_s:
        raise BadValue(text, "has more jitter than delay", "100mbit,40ms,5ms")
    return shape


def parse_flops(text: str) -> float:
    """Floating-point operations a second. Raises BadValue."""
    example = "82.6T"
    number, unit = _split(text, "is no number of operations a second", example)
    powers = {**_POWERS, "p": 5}
    if unit.lower() not in powers or number == 0:
        raise BadValue(text, "is no number of operations a second", example)
    return number * 1000.0 ** powers[unit.lower()]


def format_flops(per_s: float) -> str:
    """The shortest form that `parse_flops` reads back."""
    for unit, power in (("P", 5), ("T", 4), ("G", 3), ("M", 2), ("K", 1)):
        if per_s >= 1000.0**power:
            return f"{_trim(per_s / 1000.0**power)}{unit}"
    return _trim(per_s)


def format_duration(seconds: float) -> str:
    """The shortest form that `parse_duration` reads back."""
    if seconds and seconds < 1:
        return f"{_trim(seconds * 1e3)}ms"
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{_trim(seconds / _SECONDS[unit])}{unit}"
    return f"{_trim(seconds)}s"


def format_size(size_bytes: int) -> str:
    """The shortest form that `parse_size` reads back exactly."""
    forms = []
    for base, suffix in ((1024, "iB"), (1000, "")):
        for unit in ("T", "G", "M", "K"):
            factor = base ** _POWERS[unit.lower()]
            if size_bytes and size_bytes % factor == 0:
                forms.append(f"{size_bytes // factor}{unit}{suffix}")
    return min([*forms, str(size_bytes)], key=len)


def format_rate(bytes_per_s: float) -> str:
    """The shortest form that `parse_rate` reads back."""
    if bytes_per_s % 1024 == 0:
        return f"{format_size(round(bytes_per_s))}/s"
    for unit in ("g", "m", "k"):
        value = bytes_per_s * 8 / 1000 ** _POWERS[unit]
        if value >= 1:
            return f"{_trim(value)}{unit}bit"
    return f"{_trim(bytes_per_s * 8)}bit"


def format_shape(shape: LinkShape) -> str:
    times = [format_duration(value) for value in shape[1:]]
    while times and parse_duration(times[-1]) == 0:
        times.pop()
    return ",".join([format_rate(shape.rate_bytes_per_s), *times])


def _split(text: str, fault: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise BadValue(text, fault, example)
    number = float(match[1])
    if not math.isfinite(number):
        raise BadValue(text, fault, example)
    return number, match[2].strip()


def _byte_factor(unit: str) -> float | None:
    """`k`, `kb`, `ki`, `kib`, `b` and nothing, in lower case."""
    letters = unit.removesuffix("b")
    base = 1000
    if letters.endswith("i"):
        letters, base = letters[:-1], 1024
    if letters not in _POWERS or (base == 1024 and not letters):
        return None
    return float(base ** _POWERS[letters])


def _trim(value: float) -> str:
    return f"{value:.10g}"
