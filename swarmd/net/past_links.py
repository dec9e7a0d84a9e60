"""What a transport remembers of links that are over: their counts, and who may not come again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import trio

from swarmd.net.link import Link
from swarmd.net.transport import LinkStatistics
from swarmd.protocols.ids import PeerId

REMEMBERED_MAX = 4096
DENIED_MAX = 4096
"""Of each as many; more would be churn made on purpose."""


class PastLinks:
    """Counts of former neighbours. A new link to one of them counts on from there."""

    def __init__(self) -> None:
        self.sent_by_purpose: Counter[str] = Counter()
        self._figures: dict[PeerId, LinkStatistics] = {}
        self._ended_s: dict[PeerId, float] = {}

    def remember(self, link: Link) -> None:
        """It has ended."""
        figures = self.counted_on(link)
        self.sent_by_purpose += link.sent_by_purpose()
        self._figures.pop(link.peer, None)
        self._figures[link.peer] = figures
        self._ended_s[link.peer] = trio.current_time()
        while len(self._figures) > REMEMBERED_MAX:
            oldest = next(iter(self._figures))
            del self._figures[oldest], self._ended_s[oldest]

    def counted_on(self, link: Link) -> LinkStatistics:
        """Of a link and of those to the same peer before it."""
        past, now = self._figures.get(link.peer), link.statistics()
        return now if past is None else added(past, now)

    def lately(self, within_s: float) -> dict[PeerId, LinkStatistics]:
        """Of links that ended since then."""
        since_s = trio.current_time() - within_s
        return {peer: f for peer, f in self._figures.items() if self._ended_s[peer] > since_s}


def added(past: LinkStatistics, now: LinkStatistics) -> LinkStatistics:
    """Figures of a link, counted on from those of former links to the same peer."""
    before = past.bytes_by_purpose
    return replace(
        now,
        wire_bytes_sent=past.wire_bytes_sent + now.wire_bytes_sent,
        wire_bytes_received=past.wire_bytes_received + now.wire_bytes_received,
        bytes_by_purpose={
            purpose: (before[purpose][0] + out, before[purpose][1] + back)
            for purpose, (out, back) in now.bytes_by_purpose.items()
        },
    )


class Denied:
    """Peers that are turned away, each for its time."""

    def __init__(self) -> None:
        self._until_s: dict[PeerId, float] = {}

    def add(self, peer: PeerId, for_s: float) -> None:
        self._until_s.pop(peer, None)
        self._until_s[peer] = trio.current_time() + for_s
        while len(self._until_s) > DENIED_MAX:
            del self._until_s[next(iter(self._until_s))]

    def __contains__(self, peer: PeerId) -> bool:
        until_s = self._until_s.get(peer)
        if until_s is None:
            return False
        if trio.current_time() < until_s:
            return True
        del self._until_s[peer]
        return False
