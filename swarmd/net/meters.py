"""Rates from real traffic: what a link has delivered, not what it might.

Up: as BBR does it (Cardwell and others, 2016): when a message is acknowledged, the bytes delivered
since it began to leave, over the time since the delivery before that. Small messages say nothing
about a link and are left out; the largest of the last few samples is shown, since every error
(idle time, a late reader) only lowers one.
Down: bytes from the beginning of a message to its end.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarmd.net.outbox import Message

SAMPLE_BYTES_MIN = 64 << 10
SAMPLES = 8
BURST_S = 0.25


class DeliveryMeter:
    """Goodput of one direction of one link."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._delivered_bytes = 0
        self._delivered_at_s = 0.0
        self._on_the_way = 0
        self._burst_bytes = 0
        self._burst_since_s: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        return max(self._samples) if self._samples else None

    def began(self, message: Message, now_s: float) -> None:
        """Bytes of `message` begin to leave. Only the first call for a message counts."""
        if message.delivered_before >= 0:
            return
        if self._on_the_way == 0:
            self._delivered_at_s = now_s
        self._on_the_way += 1
        message.delivered_before, message.since_s = self._delivered_bytes, self._delivered_at_s

    def delivered(self, message: Message, now_s: float) -> None:
        self._delivered_bytes += message.size
        self._delivered_at_s = now_s
        if message.delivered_before < 0:
            return
        self._on_the_way -= 1
        size = self._delivered_bytes - message.delivered_before
        if size >= SAMPLE_BYTES_MIN and now_s > message.since_s:
            self._samples.append(size / (now_s - message.since_s))

    def arrived(self, size: int, now_s: float) -> None:
        """A frame of a message came whole."""
        since_s = self._burst_since_s
        if since_s is None:
            self._burst_bytes, self._burst_since_s = 0, now_s
            return
        self._burst_bytes += size
        if now_s - since_s >= BURST_S:
            if self._burst_bytes >= SAMPLE_BYTES_MIN:
                self._samples.append(self._burst_bytes / (now_s - since_s))
            self._burst_since_s = None
