"""Slower on purpose: caps on what all links use together, and links made to behave like worse ones.

Caps (`--limit-up`, `--limit-down`): one token bucket a direction for the whole daemon. What is sent
or received is taken off exactly, framing and encryption included; bulk transfers wait while the
bucket is overdrawn, control messages never do, so probes do not feel a cap.

Shapes (`--shape RATE[,DELAY[,JITTER]]`): every link of ours gets that rate in each direction, both
planes together, and that delay on its round trip. Where both ends are shaped, each shapes what it
sends, with the worse of the two, so the delay is half each way and counts once. Where only we are,
what we send bears the whole delay and what we receive is slowed to the rate: the round trip and the
rates are the same, only the halves are not. It works where the kernel's netem is missing.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

import trio

from swarmd.net.transport import CapHeld, Way
from swarmd.net.underlay import Buffer, Tally
from swarmd.units import LinkShape

BURST_S = 0.1
"""A bucket holds this much of its rate: enough to wake late, too little to show over a second."""

HELD_WINDOW_S = 30.0

LATE_S_MAX = 0.5
"""A path makes up for so much of our own lateness, at most."""


class TokenBucket:
    """Bytes a second. May be overdrawn; who cares waits until it is not."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._level = bytes_per_s * BURST_S
        self._at_s = trio.current_time()
        self._waiting = 0
        self._held_s = 0.0
        self._held_at_s = self._at_s

    @property
    def held_share(self) -> float:
        """Of the time, how much somebody waits here: over the last half minute or so."""
        self._book()
        return min(1.0, self._held_s / HELD_WINDOW_S)

    def debit(self, size: int) -> None:
        self._refill()
        self._level -= size

    async def wait(self) -> None:
        """Until nothing is owed. Others may owe again by then: they were first."""
        self._refill()
        while self._level < 0:
            self._book()
            self._waiting += 1
            try:
                # A little longer, or rounding may leave a debt too small to sleep for.
                await trio.sleep(-self._level / self.bytes_per_s + 1e-4)
            finally:
                self._book()
                self._waiting -= 1
            self._refill()

    def _book(self) -> None:
        """Seconds in which anybody waited, older ones fading."""
        now_s = trio.current_time()
        passed_s, self._held_at_s = now_s - self._held_at_s, now_s
        fades = math.exp(-passed_s / HELD_WINDOW_S)
        self._held_s *= fades
        if self._waiting:
            self._held_s += HELD_WINDOW_S * (1.0 - fades)

    def _refill(self) -> None:
        now_s = trio.current_time()
        most = self.bytes_per_s * BURST_S
        self._level = min(most, self._level + (now_s - self._at_s) * self.bytes_per_s)
        self._at_s = now_s


class Caps:
    """The daemon's own limits. None: no limit. They can be changed while it runs.

    `wire` counts what all sockets together moved.
    """

    def __init__(self) -> None:
        self.wire = Tally()
        self.up: TokenBucket | None = None
        self.down: TokenBucket | None = None

    def set(self, up_bytes_per_s: float | None, down_bytes_per_s: float | None) -> None:
        self.up = TokenBucket(up_bytes_per_s) if up_bytes_per_s else None
        self.down = TokenBucket(down_bytes_per_s) if down_bytes_per_s else None

    def held(self) -> list[CapHeld]:
        """The caps there are."""
        both: tuple[tuple[Way, TokenBucket | None], ...] = (("up", self.up), ("down", self.down))
        return [CapHeld(way, b.bytes_per_s, b.held_share) for way, b in both if b is not None]


@dataclass(frozen=True, slots=True)
class Bend:
    """What one end does to a link: rates in bytes/s (0: none), delay of what it sends in s."""

    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


def bend_of(ours: LinkShape | None, theirs: LinkShape | None) -> Bend:
    """What we do to a link whose ends are to behave like these."""
    if ours is None:
        return Bend()
    if theirs is None:
        return Bend(ours.rate_bytes_per_s, ours.rate_bytes_per_s, ours.delay_s, ours.jitter_s)
    return Bend(
        up_bytes_per_s=min(ours.rate_bytes_per_s, theirs.rate_bytes_per_s),
        delay_s=max(ours.delay_s, theirs.delay_s) / 2,
        jitter_s=max(ours.jitter_s, theirs.jitter_s) / 2,
    )


class _Line:
    """One direction of a path: when it has carried what was put on it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def occupy(self, size: int, *, follows: bool) -> tuple[float, float]:
        """(seconds that `size` bytes take, when their last one is through).

        `follows`: they waited for the line, so they come right after what was there before, though
        we are late to say so. Else a busy machine would make the line slower than it is to be.
        """
        now_s = trio.current_time()
        takes_s = size / self._bytes_per_s if self._bytes_per_s else 0.0
        starts_s = max(self._free_s, now_s - LATE_S_MAX if follows else now_s)
        self._free_s = starts_s + takes_s
        return takes_s, self._free_s

    async def wait(self) -> bool:
        """Until it is free. False if it was."""
        waited = False
        while trio.current_time() < self._free_s:
            waited = True
            await trio.sleep_until(self._free_s)
        return waited


class Path:
    """One link as it is bent: both planes of it share the rates.

    The control plane goes past what the bulk plane has queued, as it would on a real link, where
    two connections share the line packet by packet; the bulk plane makes room for it.
    """

    def __init__(self, bend: Bend, rng: random.Random) -> None:
        self.bend = bend
        self._rng = rng
        self._up, self._down = _Line(bend.up_bytes_per_s), _Line(bend.down_bytes_per_s)
        self._urgent_up = _Line(bend.up_bytes_per_s)
        self._waited = {self._up: False, self._urgent_up: False}

    async def wait_up(self, *, urgent: bool = False) -> None:
        """Until what was sent before has gone; what is urgent waits for nothing else."""
        line = self._urgent_up if urgent else self._up
        self._waited[line] = await line.wait()

    def sent(self, size: int, *, urgent: bool) -> float:
        """When the last of `size` bytes, sent now, is to leave."""
        line = self._urgent_up if urgent else self._up
        _, through_s = line.occupy(size, follows=self._waited[line])
        self._waited[line] = False
        if urgent:
            self._up.occupy(size, follows=False)
        delay_s = self.bend.delay_s
        if self.bend.jitter_s:
            delay_s += self._rng.uniform(-self.bend.jitter_s, self.bend.jitter_s)
        return through_s + max(0.0, delay_s)

    async def received(self, size: int, *, urgent: bool, waited: bool) -> None:
        """Until `size` bytes could have come at the link's rate. `waited`: they did, for us."""
        if not self.bend.down_bytes_per_s:
            return
        takes_s, _ = self._down.occupy(size, follows=waited)
        if urgent:
            await trio.sleep(takes_s)
        else:
            await self._down.wait()


class DelayLine:
    """Bytes on their way out, each with its time. In order, whatever the jitter."""

    def __init__(self) -> None:
        self._held: deque[tuple[float, Buffer]] = deque()
        self._last_due_s = 0.0
        self._came = trio.lowlevel.ParkingLot()

    def put(self, due_s: float, data: Buffer) -> None:
        self._last_due_s = max(self._last_due_s, due_s)
        self._held.append((self._last_due_s, data))
        self._came.unpark_all()

    async def get(self) -> Buffer:
        while not self._held:
            await self._came.park()
        due_s, data = self._held.popleft()
        await trio.sleep_until(due_s)
        return data
