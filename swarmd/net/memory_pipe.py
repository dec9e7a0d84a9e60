"""Bytes between peers of one process: a direction with its rate and delay, a carrier made of two.

Part of the in-memory twin (memory.py), which says who is silent, frozen or cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from swarmd.net.pump import Wakeup
from swarmd.net.underlay import Buffer, CarrierEnded, Tally
from swarmd.protocols.ids import PeerId

if TYPE_CHECKING:
    from swarmd.net.memory import MemoryNetwork

FRAME_BYTES = 64 << 10
STALL_S = 10.0
IN_FLIGHT_BYTES_MAX = 4 << 20
"""What a direction holds that was sent and not read: the socket buffers of the real thing."""


class Pipe:
    """One direction of a connection: rate, then delay, then the reader."""

    def __init__(
        self, network: MemoryNetwork, source: PeerId, target: PeerId, is_bulk: bool
    ) -> None:
        self.source, self.target, self.is_bulk = source, target, is_bulk
        self.ended = self.abandoned = False
        self._network = network
        self._held: deque[tuple[float, memoryview]] = deque()
        self._held_bytes = 0
        self._free_s = 0.0
        self._last_due_s = 0.0
        self.news = Wakeup()

    async def put(self, data: bytes) -> None:
        latency_s, rate = self._network.path(self.source, self.target)
        self._free_s = max(self._free_s, trio.current_time()) + len(data) / rate
        await trio.sleep_until(self._free_s)
        while True:
            if self.ended or (self.abandoned and not self._is_silent()):
                raise CarrierEnded("lost")
            frozen = self._network.is_silent(self.source, self.source)
            if self._held_bytes <= IN_FLIGHT_BYTES_MAX and not frozen:
                break
            await self.news.wait()
        self._last_due_s = max(self._last_due_s, self._free_s + latency_s)
        self._held.append((self._last_due_s, memoryview(data)))
        self._held_bytes += len(data)
        self.news.set()

    async def get_into(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            due_s = await self._wait_for_data()
            if due_s > trio.current_time():
                await trio.sleep_until(due_s)
                continue
            _, data = self._held[0]
            size = min(len(view) - at, len(data))
            view[at : at + size] = data[:size]
            at += size
            self._held_bytes -= size
            if size == len(data):
                self._held.popleft()
            else:
                self._held[0] = (due_s, data[size:])
            self.news.set()
        await trio.lowlevel.checkpoint()

    async def _wait_for_data(self) -> float:
        """When the first bytes are due. An end travels like data: through no cut."""
        while True:
            if self.abandoned:
                raise CarrierEnded("dropped")
            if not self._is_silent():
                if self._held:
                    return self._held[0][0]
                if self.ended:
                    raise CarrierEnded("lost")
            await self.news.wait()

    def _is_silent(self) -> bool:
        return self._network.is_silent(self.source, self.target)

    def end(self) -> None:
        """The writer closed: the reader gets what was sent before, then the end."""
        self.ended = True
        self._settle()

    def abandon(self) -> None:
        """The reader closed: nothing more is read."""
        self.abandoned = True
        self._settle()

    def _settle(self) -> None:
        if self.ended and self.abandoned:
            self._network.forget(self)
        self.news.set()


class MemoryCarrier:
    """Two pipes. The fallback stream of the real thing is one, too: `kind` tells them apart."""

    def __init__(self, out: Pipe, back: Pipe, wire: Tally) -> None:
        self.kind = "memory"
        self.frame_bytes = FRAME_BYTES
        self.tally = Tally()
        self._out, self._back, self._wire = out, back, wire
        self._closed_here = False

    async def send(self, parts: Sequence[Buffer]) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed_here:
            raise CarrierEnded("dropped")
        data = b"".join(parts)
        with trio.move_on_after(STALL_S, shield=True) as scope:
            await self._out.put(data)
        if scope.cancelled_caught:
            self.close_now()
            raise CarrierEnded("stalled", f"a frame did not leave within {STALL_S:.0f} s")
        self.tally.sent += len(data)
        self._wire.sent += len(data)

    async def receive_into(self, view: memoryview) -> None:
        if self._closed_here:
            raise CarrierEnded("dropped")
        await self._back.get_into(view)
        self.tally.received += len(view)
        self._wire.received += len(view)

    def close_now(self) -> None:
        self._closed_here = True
        self._out.end()
        self._back.abandon()
