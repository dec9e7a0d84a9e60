"""The network between simulated peers: streams with delay, bandwidth, and every way to go wrong.

It keeps the promises of swarmd/net/transport.py and nothing more: on one link messages of one
priority arrive whole and in order until the link ends, its end is told once to each side, and a
dial ends as a link or as a failure. Else anything may overtake anything; control messages never
wait behind tensors.

What can be done to it: any path slowed, cut (in one direction or both), clogged (nothing passes
for a while, then all at once, as behind a full pipe), or its link broken. A cut path is silent:
like TCP it holds what was sent, delivers it when the cut heals soon, and ends the link as `stalled`
when not. Peers are numbers here; who they are is cluster.py's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarmd.protocols.effects import Priority
from swarmd.sim.clock import World

Pair = tuple[int, int]
"""(from, to)."""

FRAME_BYTES = 100
"""Headers of frames, encryption and TCP/IP around one message, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """How links behave when nothing is wrong. Drawn per run (faults.py), or given."""

    delay_s: float
    """One way, of the median path; each path draws its own within a factor of two."""
    jitter: float
    """Share by which single messages are later, at most."""
    bandwidth_bytes_per_s: float
    """Of each peer's upload, shared by its links."""
    dial_timeout_s: float = 5.0
    stall_s: float = 10.0
    """How long a link bears silence below it."""


@dataclass(slots=True)
class _SimLink:
    """What both directions share."""

    delay_s: float
    """One way, without jitter."""
    ends: set[int]
    """Peers that still have their end. Who lost the other does not know it at once."""


@dataclass(slots=True)
class _Way:
    """One direction of a link."""

    link: _SimLink
    source: int
    target: int
    free_at_s: list[float] = field(default_factory=lambda: [0.0] * len(Priority))
    """By priority: no message may arrive before the one sent ahead of it."""
    held: list[tuple[Any, int, int]] = field(default_factory=list)
    """(item, size_bytes, priority) sent while the path was cut or clogged."""


class Network:
    """Carries items between peers.

    `hand_over(peer, other, item)`: an item from `other` has arrived.
    `tell(peer, what, other, cause)` reports what becomes of links: what = "up", "down",
    "dial_failed".
    """

    def __init__(
        self,
        world: World,
        profile: NetworkProfile,
        hand_over: Callable[[int, int, Any], None],
        tell: Callable[[int, str, int, str], None],
    ) -> None:
        self._world = world
        self._profile = profile
        self._hand_over = hand_over
        self._tell = tell
        self._rng = world.rng_for("network")
        self._ways: dict[Pair, _Way] = {}
        self._delays: dict[Pair, float] = {}
        self._slowed: dict[Pair, float] = {}
        self._cut: set[Pair] = set()
        self._clogged_until_s: dict[Pair, float] = {}
        self._closed_since_s: dict[Pair, float] = {}
        self._upload_free_s: dict[int, float] = {}
        self._dialling: set[Pair] = set()
        self.is_reachable: Callable[[int], str] = lambda peer: ""
        """Set by the cluster: "" if the peer's process would answer a dial, else why not
        (refused: no process there; timeout: it does not answer)."""
        self.sent_messages = 0
        self.sent_bytes = 0

    # ---------------------------------------------------------------------------------- messages

    def send(self, source: int, target: int, item: Any, size_bytes: int, priority: int = 1) -> bool:
        """False if there is no link. Into a link whose other end is gone it vanishes.

        priority: 0, control, does not wait for the upload; the others share it.
        """
        path = (source, target)
        way = self._ways.get(path)
        if way is None or source not in way.link.ends:
            return False
        self.sent_messages += 1
        self.sent_bytes += size_bytes + FRAME_BYTES
        if way.held or not self._is_open(path):
            way.held.append((item, size_bytes, priority))
        else:
            self._carry(way, item, size_bytes, priority)
        return True

    def _carry(self, way: _Way, item: Any, size_bytes: int, priority: int) -> None:
        profile = self._profile
        upload_s = (size_bytes + FRAME_BYTES) / profile.bandwidth_bytes_per_s
        left_s = self._world.now_s + upload_s
        if priority:
            left_s = max(left_s, self._upload_free_s.get(way.source, 0.0) + upload_s)
            self._upload_free_s[way.source] = left_s
        delay_s = way.link.delay_s * (1.0 + profile.jitter * self._rng.random())
        arrives_s = max(left_s + delay_s, way.free_at_s[priority])
        way.free_at_s[priority] = arrives_s
        self._world.at(arrives_s, self._arrive, way, item)

    def _arrive(self, way: _Way, item: Any) -> None:
        if way.target in way.link.ends:
            self._hand_over(way.target, way.source, item)

    def delay_s(self, source: int, target: int) -> float:
        """One way, without jitter."""
        pair = _pair(source, target)
        delay_s = self._delays.get(pair)
        if delay_s is None:
            delay_s = self._profile.delay_s * self._rng.uniform(0.5, 2.0)
            self._delays[pair] = delay_s
        return delay_s + self._slowed.get(pair, 0.0)

    # ------------------------------------------------------------------------------------- links

    def has_link(self, peer: int, other: int) -> bool:
        """As `peer` sees it."""
        way = self._ways.get((peer, other))
        return way is not None and peer in way.link.ends

    def links_of(self, peer: int) -> list[int]:
        """With whom it has one, in order."""
        return sorted(
            way.target
            for way in self._ways.values()
            if way.source == peer and peer in way.link.ends
        )

    def dial(self, source: int, target: int) -> None:
        """Ends as "up" on both sides or "dial_failed" here; nothing if a link or dial exists."""
        if (source, target) in self._dialling or self.has_link(source, target):
            return
        self._dialling.add((source, target))
        why_not = self.is_reachable(target)
        if not self._is_open((source, target)) or not self._is_open((target, source)):
            why_not = "timeout"
        delay_s = 3.0 * self.delay_s(source, target)
        if why_not == "timeout":
            delay_s = self._profile.dial_timeout_s
        self._world.after(delay_s, self._dialled, source, target, why_not)

    def _dialled(self, source: int, target: int, why_not: str) -> None:
        self._dialling.discard((source, target))
        if self.has_link(source, target):
            return
        if self.is_reachable(source):
            why_not = "timeout"  # who is paused hears of it when it goes on; who is gone, never
        why_not = why_not or self.is_reachable(target)
        if why_not:
            self._tell(source, "dial_failed", target, why_not)
            return
        if target in self._end_link(source, target):
            self._tell(target, "down", source, "lost")
        link = _SimLink(self.delay_s(source, target), {source, target})
        self._ways[source, target] = _Way(link, source, target)
        self._ways[target, source] = _Way(link, target, source)
        self._tell(source, "up", target, "")
        self._tell(target, "up", source, "")

    def drop(self, peer: int, other: int) -> None:
        """`peer` ends the link; the other side notices later."""
        if self.has_link(peer, other):
            self._give_up_end(self._ways[peer, other], silently=False)
            self._tell(peer, "down", other, "dropped")

    def end_process(self, peer: int, *, silently: bool) -> None:
        """The process is gone. silently: its host too, so nothing is closed."""
        for other in self.links_of(peer):
            self._give_up_end(self._ways[peer, other], silently=silently)
        self._dialling = {pair for pair in self._dialling if pair[0] != peer}

    def break_link(self, a: int, b: int) -> None:
        """A reset in the middle: both sides lose it."""
        self._end_both(a, b, "lost")

    def _give_up_end(self, way: _Way, *, silently: bool) -> None:
        """What was sent before still arrives; then the other side sees the end."""
        peer, other = way.source, way.target
        way.link.ends.discard(peer)
        noticed_s = max(self._world.now_s + way.link.delay_s, *way.free_at_s)
        cause = "lost"
        if silently or not self._is_open((peer, other)):
            noticed_s, cause = self._world.now_s + self._profile.stall_s, "stalled"
        self._world.at(noticed_s, self._notice_end, way, cause)

    def _notice_end(self, way: _Way, cause: str) -> None:
        peer, other = way.target, way.source
        if self._ways.get((other, peer)) is way and peer in self._end_link(peer, other):
            self._tell(peer, "down", other, cause)

    def _end_both(self, a: int, b: int, cause: str) -> None:
        ends = self._end_link(a, b)
        for peer, other in ((a, b), (b, a)):
            if peer in ends:
                self._tell(peer, "down", other, cause)

    def _end_link(self, a: int, b: int) -> set[int]:
        """Nothing more arrives by it. Who still had an end of it."""
        way = self._ways.pop((a, b), None)
        if way is None:
            return set()
        del self._ways[b, a]
        ends, way.link.ends = way.link.ends, set()
        return ends

    # ------------------------------------------------------------------------------------ faults

    def slow(self, a: int, b: int, extra_s: float) -> None:
        """Make a path longer (0: as before)."""
        self._slowed[_pair(a, b)] = extra_s
        if (a, b) in self._ways:
            self._ways[a, b].link.delay_s = self.delay_s(a, b)

    def cut(self, source: int, target: int) -> None:
        """Nothing passes in this direction until healed."""
        self._close(source, target)
        self._cut.add((source, target))

    def heal(self, source: int, target: int) -> None:
        self._cut.discard((source, target))
        self._release(source, target)

    def clog(self, source: int, target: int, duration_s: float) -> None:
        """Hold what is sent this way for so long, then let it all through."""
        self._close(source, target)
        until_s = self._world.now_s + duration_s
        self._clogged_until_s[source, target] = max(
            until_s, self._clogged_until_s.get((source, target), 0.0)
        )
        self._world.at(until_s, self._release, source, target)

    def _close(self, source: int, target: int) -> None:
        if self._is_open((source, target)):
            self._closed_since_s[source, target] = self._world.now_s
        self._world.after(self._profile.stall_s, self._stall, source, target)

    def _is_open(self, path: Pair) -> bool:
        if path in self._cut:
            return False
        return self._clogged_until_s.get(path, 0.0) <= self._world.now_s

    def _release(self, source: int, target: int) -> None:
        way = self._ways.get((source, target))
        if way is None or not self._is_open((source, target)):
            return
        held, way.held = way.held, []
        for item, size_bytes, priority in held:
            self._carry(way, item, size_bytes, priority)

    def _stall(self, source: int, target: int) -> None:
        """A path closed all through stall_s: what lies below gives the link up."""
        closed_s = self._world.now_s - self._closed_since_s[source, target]
        if not self._is_open((source, target)) and closed_s >= self._profile.stall_s:
            self._end_both(source, target, "stalled")


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
