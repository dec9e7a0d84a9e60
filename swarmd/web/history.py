"""Losses and rates of the past for the charts, in bounded memory.

Points are taken at a fixed interval; when there are too many, every other one goes and the interval
doubles. So the whole life of a daemon fits, the newest part no worse than the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

POINTS_MAX = 600
INTERVAL_S = 2.0
"""Of the first twenty minutes."""
FIELDS = {
    "step": ("progress", "inner_step"),
    "round": ("progress", "outer_round"),
    "loss": ("progress", "loss"),
    "loss_heldout": ("progress", "loss_heldout"),
    "tokens_per_s": ("throughput", "tokens_per_s_self"),
    "up_bytes": ("communication", "total", "wire_bytes_sent"),
    "down_bytes": ("communication", "total", "wire_bytes_received"),
}


class History:
    """`add` at any rate; `points` as they are shown."""

    def __init__(self, points_max: int = POINTS_MAX, interval_s: float = INTERVAL_S) -> None:
        assert points_max >= 2, "halving needs two"
        self._points_max = points_max
        self.interval_s = interval_s
        self._points: list[dict[str, Any]] = []

    def add(self, status: Mapping[str, Any], now_s: float) -> bool:
        """A status record, as JSON has it. False: the last point is too young."""
        if self._points and now_s - self._points[-1]["t_s"] < self.interval_s * 0.99:
            return False
        point: dict[str, Any] = {"t_s": round(now_s, 3)}
        for name, path in FIELDS.items():
            value: Any = status
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            point[name] = value
        self._points.append(point)
        if len(self._points) > self._points_max:
            self._points = self._points[::2]
            self.interval_s *= 2
        return True

    def points(self) -> list[dict[str, Any]]:
        """Oldest first. `t_s` counts from the daemon's start."""
        return list(self._points)
