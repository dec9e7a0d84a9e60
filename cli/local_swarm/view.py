"""What the parent sees of its swarm: the peers' own status records, put side by side.

Only fields of docs/cli.md section 12 are read. The record of a peer that has ended is the one it
left behind (state/last_status.json), so that its totals still count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

StatusDict = Mapping[str, Any]


def dig(status: StatusDict | None, path: str) -> Any:
    """`a.b.c` of a record, None where anything on the way is missing."""
    value: Any = status
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


@dataclass(slots=True)
class PeerView:
    """One peer as its newest status shows it."""

    name: str
    stage: int | None
    status: StatusDict | None = None
    is_running: bool = False
    silent_since_s: float | None = None
    """It runs, and has not answered since."""

    def get(self, path: str) -> Any:
        return dig(self.status, path)

    @property
    def step(self) -> int:
        return self.get("progress.inner_step") or 0


@dataclass(slots=True)
class SwarmView:
    """All peers, and the figures that only make sense of the whole."""

    stages: int
    peers: list[PeerView] = field(default_factory=list)

    def of_stage(self, stage: int) -> list[PeerView]:
        return [peer for peer in self.peers if peer.stage == stage]

    def stage_step(self, stage: int) -> int:
        """The furthest committed step of a stage's peers."""
        return max((peer.step for peer in self.of_stage(stage)), default=0)

    @property
    def step(self) -> int:
        """What every stage has reached."""
        return min((self.stage_step(stage) for stage in range(self.stages)), default=0)

    @property
    def round(self) -> int:
        return max((peer.get("progress.outer_round") or 0 for peer in self.peers), default=0)

    def sum(self, path: str) -> int | None:
        return _none_or(sum, self._values(path))

    def maximum(self, path: str) -> float | None:
        return _none_or(max, self._values(path))

    def mean(self, path: str) -> float | None:
        values = self._values(path)
        return sum(values) / len(values) if values else None

    def heads_mean(self, path: str) -> float | None:
        """Over the first stage's peers, weighted by the tokens each has led."""
        pairs = [
            (value, peer.get("contribution.tokens") or 1)
            for peer in self.of_stage(0)
            if (value := peer.get(path)) is not None
        ]
        total = sum(weight for _, weight in pairs)
        return sum(value * weight for value, weight in pairs) / total if pairs else None

    @property
    def tokens_per_s(self) -> float | None:
        """Of the swarm: what its heads feed into it."""
        values = [
            value
            for peer in self.of_stage(0)
            if peer.is_running and (value := peer.get("throughput.tokens_per_s_self")) is not None
        ]
        return sum(values) if values else None

    def compression_ratio(self, of: str) -> float | None:
        """Of the `total` traffic, or of what crosses each `boundary`."""
        raw = self.sum(f"communication.{of}.raw_bytes_sent")
        wire = self.sum(f"communication.{of}.wire_bytes_sent")
        return raw / wire if raw and wire else None

    def _values(self, path: str) -> list[Any]:
        return [value for peer in self.peers if (value := peer.get(path)) is not None]


def _none_or(function: Any, values: Iterable[Any]) -> Any:
    listed = list(values)
    return function(listed) if listed else None
