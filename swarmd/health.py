"""Named things that are not as they should be: code, severity, text, impact, fix.

Health is a list of items and a level: that of the worst one, or `ok`. Which codes are `bad` is
written here once (docs/cli.md section 11): what stops the work for good, or needs a person. The
daemon raises and clears items by code; `since` is kept while one stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from swarmd.json_record import Time, part, utc
from swarmd.protocols.reasons import STATE_OF_CODE

Severity = Literal["warn", "bad"]
Level = Literal["ok", "warn", "bad"]

BAD = frozenset({"stalled", "isolated", "run_state_lost", "disk_full", "disk_error"}) | frozenset(
    code for code, states in STATE_OF_CODE.items() if states == ("failed",)
)
"""Codes that are bad wherever they appear. Those that are `failed` only sometimes say so then."""

WARNINGS = frozenset(
    {
        "unreachable_from_outside",
        "only_loopback_announced",
        "rate_capped",
        "port_changed",
        "key_mode_repaired",
        "late_updates",
        "updates_rejected",
        "round_partial",
        "peer_misbehaving",
        "behind_protocol",
        "device_stopped",
        "disk_nearly_full",
        "fd_nearly_full",
        "memory_growing",
        "injection_active",
    }
)
"""Health codes that are no reason codes."""

CODES = frozenset(STATE_OF_CODE) | WARNINGS


@part
class HealthItem:
    """One thing that is not as it should be, what it costs, and what would help."""

    code: str
    severity: Severity
    text: str
    since: Time
    impact: str | None = None
    fix: str | None = None


@part
class Health:
    """The level is that of the worst item."""

    level: Level = "ok"
    items: list[HealthItem] = field(default_factory=list)


def severity_of(code: str, *, has_failed: bool = False) -> Severity:
    """`bad` or `warn`. has_failed: the peer is in state `failed` because of it."""
    assert code in CODES, f"unknown health code {code}"
    return "bad" if has_failed or code in BAD else "warn"


def health_of(items: Iterable[HealthItem]) -> Health:
    """Worst first, then in the order in which they began."""
    listed = sorted(items, key=lambda item: (item.severity != "bad", item.since, item.code))
    level: Level = "ok"
    if listed:
        level = "bad" if listed[0].severity == "bad" else "warn"
    return Health(level=level, items=listed)


class HealthBook:
    """The items that hold now, by code."""

    def __init__(self) -> None:
        self._items: dict[str, HealthItem] = {}

    def hold(
        self,
        code: str,
        text: str,
        *,
        impact: str | None = None,
        fix: str | None = None,
        has_failed: bool = False,
    ) -> bool:
        """Say that this holds. True if it did not before."""
        before = self._items.get(code)
        self._items[code] = HealthItem(
            code=code,
            severity=severity_of(code, has_failed=has_failed),
            text=text,
            since=utc() if before is None else before.since,
            impact=impact,
            fix=fix,
        )
        return before is None

    def clear(self, code: str) -> bool:
        """Say that this no longer holds. True if it did."""
        return self._items.pop(code, None) is not None

    def health(self) -> Health:
        return health_of(self._items.values())
