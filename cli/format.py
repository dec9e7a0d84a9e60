"""Numbers, bytes, times and ids as people read them. Unknown is `-`, everywhere."""

from __future__ import annotations

import time

from swarmd.cli.output import harmless
from swarmd.json_record import unix_s

UNKNOWN = "-"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None) -> str:
    """`1 806`, `14.8 M`: exact below a hundred thousand, three digits above."""
    if value is None:
        return UNKNOWN
    if value < 100_000:
        return f"{value:,.0f}".replace(",", " ")
    return scaled(value)


def scaled(value: float | None, unit: str = "") -> str:
    """Three significant digits and a prefix: `1.84 k`, `402 MB`."""
    if value is None:
        return UNKNOWN
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * 0.9995:
            return f"{_three(value / factor)} {prefix}{unit}"
    return f"{_three(value)} {unit}".rstrip()


def size(value: float | None) -> str:
    """Bytes in decimal units: `1.31 GB`, `512 B`."""
    return f"{value:.0f} B" if value is not None and value < 1000 else scaled(value, "B")


def ratio(value: float | None) -> str:
    """`48x`, `6.1x`."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def mbit(bytes_per_s: float | None) -> str:
    """Megabits a second, without the unit."""
    return UNKNOWN if bytes_per_s is None else f"{bytes_per_s * 8 / 1e6:.1f}"


def number(value: float | None, digits: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """`3.1 s`, `14 s`, `1 m 10 s`, `2 h 14 m`, `3 d 4 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for length, name, smaller, small_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= length:
            return f"{whole // length} {name} {whole % length // smaller} {small_name}"
    raise AssertionError(seconds)


def about(seconds: float | None) -> str:
    """For estimates: `about 25 s`, `about 2 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 55:
        return f"about {max(1, round(seconds))} s"
    if seconds < 5_400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {duration(seconds)}"


def ago(at: str | None) -> str:
    """`3 min ago`, from RFC 3339."""
    if at is None:
        return UNKNOWN
    try:
        seconds = max(0.0, time.time() - unix_s(at))
    except ValueError:
        return at
    if seconds < 90:
        return f"{seconds:.0f} s ago"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min ago"
    return f"{duration(seconds)} ago"


def clock(at: str | None) -> str:
    """Time of day here, `12:00:03`."""
    if at is None:
        return UNKNOWN
    try:
        return time.strftime("%H:%M:%S", time.localtime(unix_s(at)))
    except ValueError:
        return at


def peer(name: str | None, peer_id: str | None) -> str:
    """`alder ·k4Qe`."""
    tail = f"·{peer_id[-4:]}" if peer_id else ""
    return f"{harmless(name or '')} {tail}".strip() or UNKNOWN


def run(name: str | None, run_id: str | None) -> str:
    """`prairie-1b ·7f3a`: of a run the first digits, as one types them."""
    head = f"·{run_id[:4]}" if run_id else ""
    return f"{harmless(name or '')} {head}".strip() or UNKNOWN


def plural(value: int, one: str, many: str | None = None) -> str:
    return f"{value} {one if value == 1 else many or one + 's'}"


def _three(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
