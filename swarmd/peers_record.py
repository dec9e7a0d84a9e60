"""What `swarmd peers --json` shows: one row for each known peer (docs/cli.md section 12)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from swarmd.json_record import Ratio, Record, part, record
from swarmd.status import State

Liveness = Literal["alive", "suspect", "dead", "left"]
LinkPath = Literal["direct", "relay", "none"]


@part
class PeerRow:
    """What this peer knows of one peer (itself included), and of the link to it."""

    id: str
    name: str | None = None
    incarnation: int | None = None
    self: bool = False
    state: State | None = None
    reason_code: str | None = None
    stage: int | None = None
    observer: bool | None = None
    liveness: Liveness = "alive"
    last_seen_s: float | None = None
    path: LinkPath | None = None
    rtt_ms: float | None = None
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    tokens_per_s: float | None = None
    raw_bytes_sent: int | None = None
    wire_bytes_sent: int | None = None
    raw_bytes_received: int | None = None
    wire_bytes_received: int | None = None
    compression_ratio: float | None = None
    traffic_share: Ratio | None = None
    score: float | None = None
    rejected: dict[str, int] = field(default_factory=dict)
    contribution: int | None = None
    contributing: bool | None = None
    address: str | None = None
    protocol: int | None = None


@record("peers")
class Peers(Record):
    """By peer id. `contribution`: tokens counted. `contributing`: work of it was counted in the
    last finished round. `rejected`: counts by rejection code."""

    peers: list[PeerRow] = field(default_factory=list)
