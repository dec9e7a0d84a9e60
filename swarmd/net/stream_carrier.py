"""A libp2p stream as a carrier: guarded writes, large reads. It knows the stream by its shape only.

Cancelling a write of the library ruins the connection, all streams of it: part of an encrypted
record stays on the wire. So a write is shielded, short enough, and has a deadline of its own: to a
frozen peer it would never return, and then the task could not be cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from swarmd.net.underlay import Buffer, CarrierEnded, Tally

log = logging.getLogger("swarmd.net")

WRITE_BYTES = 32 << 10
"""A larger write may arrive in more than 101 pieces, at which the library gives the connection up;
and a write is the unit of cancellation."""
STALL_S = 10.0
PAUSE_S = 3.0


class Stream(Protocol):
    """What we use of a libp2p stream."""

    async def read(self, n: int | None = None) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def reset(self) -> None: ...


class Socket(Protocol):
    """What we use of what is below the library: a socket, or a circuit through a relay."""

    tally: Tally
    closed: bool

    async def ready(self, *, capped: bool | None = None) -> None: ...

    async def pause_down(self, most_s: float) -> None: ...

    def close_now(self) -> None: ...


class StreamCarrier:
    """A libp2p stream as a carrier. Slow and hungry: 57-94 MB/s at 9-11 CPU s/GB were measured."""

    kind = "stream"
    frame_bytes = WRITE_BYTES

    def __init__(self, stream: Stream, raw: Socket, *, owns_socket: bool) -> None:
        self.stream = stream
        self._raw = raw
        self._owns_socket = owns_socket
        self._held = bytearray()
        self._closed = False
        self.tally = raw.tally if owns_socket else Tally()
        """The connection's bytes are counted once: with the control stream."""

    async def send(self, parts: Sequence[Buffer]) -> None:
        # Taking cancellation here, and nowhere below, keeps half a record off the wire.
        await trio.lowlevel.checkpoint()
        data = b"".join(parts)
        for at in range(0, len(data), WRITE_BYTES):
            await self._raw.ready(capped=not self._owns_socket)
            # A write on a connection that is closed may return without an error.
            if self._raw.closed:
                raise CarrierEnded(self._end_cause())
            failure = None
            with trio.move_on_after(STALL_S, shield=True) as scope:
                try:
                    await self.stream.write(data[at : at + WRITE_BYTES])
                except Exception as error:
                    failure = CarrierEnded(self._end_cause(), repr(error))
            if failure is not None:
                raise failure
            if scope.cancelled_caught:  # no await between here and the raise
                self._raw.close_now()
                raise CarrierEnded("stalled", f"nothing was taken for {STALL_S:.0f} s")

    async def receive_into(self, view: memoryview) -> None:
        while len(self._held) < len(view):
            self._held += await self._read()
        view[:] = self._held[: len(view)]
        del self._held[: len(view)]

    async def receive_some(self, bytes_max: int) -> bytes:
        """At least one byte. Raises CarrierEnded at the end."""
        data = bytes(self._held) or await self._read()
        self._held[:] = data[bytes_max:]
        return data[:bytes_max]

    async def _read(self) -> bytes:
        """What there is."""
        try:
            # Large reads: the library sends a window update for each.
            data = await self.stream.read(65_536)
        except Exception as error:
            raise CarrierEnded(self._end_cause(), repr(error)) from None
        if not data:
            raise CarrierEnded("lost", "end of stream")
        if not self._owns_socket:
            # The library ends a stream whose reader pauses for 5 s.
            await self._raw.pause_down(PAUSE_S)
        return data

    def _end_cause(self) -> str:
        """The library closes the socket at its end, too; so a closed socket says nothing."""
        return "dropped" if self._closed else "lost"

    def close_now(self) -> None:
        self._closed = True
        if self._owns_socket:
            self._raw.close_now()
        else:
            _forget_stream(self.stream)


def _forget_stream(stream: Stream) -> None:
    """End a stream without ending its connection. A reset may hang, so it gets a task and 2 s."""

    async def reset() -> None:
        with trio.move_on_after(2.0):
            try:
                await stream.reset()
            except Exception as error:
                log.debug("stream_reset_failed error=%r", error)

    trio.lowlevel.spawn_system_task(reset)
