"""When this peer may compute: hours, power, quiet, heat, traffic. Pure: facts in, reason out.

A rule that does not hold pauses the peer with a code of its own (`outside_schedule`, `on_battery`,
`not_idle`, `over_temperature`, `quota_exhausted`); when none is broken any more, it goes on. What
flickers has two thresholds, so that a peer does not load and unload its stage every few seconds.

What cannot be measured breaks no rule: a machine without a battery is not on battery.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from swarmd.peer_config import PeerConfig

BUSY_SHARE = 0.3
"""Of all cores, used by other programs: above it somebody works here."""
QUIET_SHARE = 0.15
COOLER_BY_C = 5.0
"""Below the limit before it goes on."""
QUIET_FOR_S = 60.0
"""It has to be quiet for so long before an interrupted peer begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """None: cannot be known here."""

    at: datetime
    """Local time: hours are the user's."""
    is_on_battery: bool | None = None
    others_share: float | None = None
    """Of all cores, used by programs that are not this peer."""
    quiet_for_s: float = 0.0
    """Since `others_share` was last above QUIET_SHARE."""
    temperature_c: float | None = None
    month_bytes: int = 0
    """Sent and received in this month."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Why the peer must pause. for_s: until when, where the clock decides."""

    code: str
    text: str
    for_s: float | None = None


def broken_rule(config: PeerConfig, facts: Facts, held: str | None) -> Broken | None:
    """The first rule that is broken now. held: the code that pauses the peer already."""
    return (
        _hours(config, facts)
        or _battery(config, facts)
        or _idle(config, facts, held)
        or _temperature(config, facts, held)
        or _quota(config, facts)
    )


def _hours(config: PeerConfig, facts: Facts) -> Broken | None:
    if config.hours is None:
        return None
    first, last = config.hours
    hour = facts.at.hour
    is_inside = first <= hour < last if first < last else hour >= first or hour < last
    if is_inside:
        return None
    begins = facts.at.replace(hour=first, minute=0, second=0, microsecond=0)
    if begins <= facts.at:
        begins += timedelta(days=1)
    text = f"computes from {first:02} to {last:02} h only"
    return Broken("outside_schedule", text, (begins - facts.at).total_seconds())


def _battery(config: PeerConfig, facts: Facts) -> Broken | None:
    if config.on_battery or not facts.is_on_battery:
        return None
    return Broken("on_battery", "this machine runs on its battery")


def _idle(config: PeerConfig, facts: Facts, held: str | None) -> Broken | None:
    share = facts.others_share
    if not config.only_idle or share is None:
        return None
    if held == "not_idle":
        if facts.quiet_for_s >= QUIET_FOR_S:
            return None
        return Broken("not_idle", f"goes on when it has been quiet for {QUIET_FOR_S:.0f} s")
    if share <= BUSY_SHARE:
        return None
    return Broken("not_idle", f"other programs use {share:.0%} of the processor")


def _temperature(config: PeerConfig, facts: Facts, held: str | None) -> Broken | None:
    limit, found = config.temp_limit, facts.temperature_c
    if limit is None or found is None:
        return None
    allowed = limit - COOLER_BY_C if held == "over_temperature" else float(limit)
    if found <= allowed:
        return None
    return Broken("over_temperature", f"{found:.0f} °C, the limit is {limit} °C")


def _quota(config: PeerConfig, facts: Facts) -> Broken | None:
    """A paused peer stays a member, so a little more goes through: gossip, not tensors."""
    quota = config.quota_month
    if quota is None or facts.month_bytes < quota:
        return None
    first = facts.at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ends = (first + timedelta(days=32)).replace(day=1)
    text = f"{_size(facts.month_bytes)} of your {_size(quota)} a month are used up"
    return Broken("quota_exhausted", text, (ends - facts.at).total_seconds())


def _size(size_bytes: int) -> str:
    for factor, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes} B"


def has_rules(config: PeerConfig) -> bool:
    """Whether anything has to be watched at all."""
    return (
        config.hours is not None
        or not config.on_battery
        or config.only_idle
        or config.temp_limit is not None
        or config.quota_month is not None
    )
