"""TCP as both planes use it: counted, cut off by the kernel when dead, closed at a word.

A `RawStream` counts what goes through the socket, so `wire_bytes` is a measurement and not an
estimate. Its errors are CarrierEnded only. Closing is synchronous: a task that waits inside gets
its error at once, which is the one way to get rid of a frozen peer (docs: a reset or a goodbye
would wait for it).
"""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import trio

from swarmd.net.addresses import Address
from swarmd.net.shaping import Caps, DelayLine, Path
from swarmd.net.underlay import Buffer, CarrierEnded, DialFailed, Tally

USER_TIMEOUT_S = 15
READ_BYTES = 256 << 10
TURN_BYTES = 1 << 20
"""So much goes through a socket that is always ready before the other tasks get their turn: a
millisecond or two. A turn of the scheduler costs as much as 50 KiB of encryption."""
BENT_READ_BYTES = 16 << 10
"""On a link made slow: what arrives in larger lumps would be late and then all at once."""
_SCRATCH = memoryview(bytearray(READ_BYTES))


class RawStream:
    """A connected TCP socket.

    `is_bulk`: what goes over it waits for the daemon's caps; else it is only counted against them.
    """

    def __init__(self, stream: trio.SocketStream, caps: Caps, *, is_bulk: bool) -> None:
        self._stream = stream
        self._caps = caps
        self._is_bulk = is_bulk
        self._path: Path | None = None
        self._line: DelayLine | None = None
        self._turn_bytes = 0
        self.tally = Tally()
        self.closed = False
        self.on_close = trio.CancelScope()
        """Cancelled when the socket is closed, by either side's doing."""
        self.on_late_close = trio.CancelScope()
        """The same for the task that sends with a delay."""
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            timeout_ms = USER_TIMEOUT_S * 1000
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)

    @property
    def remote(self) -> tuple[str, int] | None:
        return _end(self._stream.socket.getpeername)

    @property
    def local(self) -> tuple[str, int] | None:
        return _end(self._stream.socket.getsockname)

    def follow(self, path: Path, nursery: trio.Nursery) -> None:
        """From now on this connection is part of `path`, bent as it is."""
        self._path = path
        if path.bend.delay_s and self._line is None:
            self._line = DelayLine()
            nursery.start_soon(self._send_late, self._line)

    async def ready(self, *, capped: bool | None = None) -> None:
        """Until something may be sent: what was sent before has gone, and no cap is overdrawn.

        Apart from `send_all`, so that the deadline of a frame does not run meanwhile.
        """
        if self._path is not None:
            await self._path.wait_up(urgent=not self._is_bulk)
        if self._caps.up is not None and (self._is_bulk if capped is None else capped):
            await self._caps.up.wait()

    async def send_all(self, data: Buffer) -> None:
        """Raises CarrierEnded. Not cancellable in the middle without harm: callers shield."""
        if self.closed:
            raise CarrierEnded("dropped")
        if self._caps.up is not None:
            self._caps.up.debit(len(data))
        if self._path is not None:
            due_s = self._path.sent(len(data), urgent=not self._is_bulk)
            if self._line is not None:
                self._line.put(due_s, data)
                await trio.lowlevel.checkpoint()
                return
        await self._send_now(data)

    def send_nowait(self, data: bytes) -> memoryview:
        """What the kernel did not take at once; all of it where a cap or a shape has a say.

        Asking the socket first spares the scheduler a round for nearly every frame.
        Raises CarrierEnded.
        """
        rest = memoryview(data)
        if self.closed or self._path is not None or self._caps.up is not None:
            return rest
        return rest[self._write_nowait(rest) :]

    async def take_turns(self) -> None:
        """Let others run now and then, however ready the socket is. Not cancellable."""
        if self._turn_bytes > TURN_BYTES:
            self._turn_bytes = 0
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _send_now(self, data: Buffer) -> None:
        rest = memoryview(data)
        while rest := rest[self._write_nowait(rest) :]:
            try:
                await trio.lowlevel.wait_writable(self._stream.socket)
            except (trio.ClosedResourceError, OSError) as error:
                raise self._ended(error) from None
        await self.take_turns()

    def _write_nowait(self, data: memoryview) -> int:
        try:
            sent = os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._ended(error) from None
        self.tally.sent += sent
        self._caps.wire.sent += sent
        self._turn_bytes += sent
        return sent

    async def _send_late(self, line: DelayLine) -> None:
        with self.on_late_close:
            while True:
                try:
                    await self._send_now(await line.get())
                except CarrierEnded:
                    self.close_now()
                    return

    async def receive(self, take: Callable[[memoryview], object], bytes_max: int) -> None:
        """Read once and hand on at least one byte. Raises CarrierEnded at the end.

        What `take` gets is overwritten by the next read, of any connection: one piece of memory
        that stays in the processor's cache is filled and emptied, whoever reads.
        """
        if self._path is not None and self._path.bend.down_bytes_per_s:
            bytes_max = min(bytes_max, BENT_READ_BYTES)
        await self.take_turns()
        view, waited = _SCRATCH[:bytes_max], True
        try:
            while (size := self._read_nowait(view)) is None:
                waited = False
                await trio.lowlevel.wait_readable(self._stream.socket)
        except (trio.ClosedResourceError, OSError) as error:
            raise self._ended(error) from None
        if not size:
            raise CarrierEnded("lost", "end of stream")
        take(view[:size])
        self.tally.received += size
        self._caps.wire.received += size
        self._turn_bytes += size
        if self._path is not None:
            await self._path.received(size, urgent=not self._is_bulk, waited=waited)
        if self._caps.down is not None:
            self._caps.down.debit(size)
            if self._is_bulk:
                await self._caps.down.wait()

    def _read_nowait(self, view: memoryview) -> int | None:
        """How many bytes there were, 0 at the end, None if nothing is there yet."""
        try:
            return os.readv(self._stream.socket.fileno(), [view])
        except BlockingIOError:
            return None

    async def receive_some(self, bytes_max: int = READ_BYTES) -> bytes:
        """At least one byte. Raises CarrierEnded at the end."""
        data: list[bytes] = []
        await self.receive(lambda view: data.append(bytes(view)), bytes_max)
        return data[0]

    def _ended(self, error: Exception) -> CarrierEnded:
        return CarrierEnded("dropped" if self.closed else "lost", str(error))

    async def pause_down(self, most_s: float) -> None:
        """For bulk on a shared connection: wait for the cap on what comes in, but not long."""
        if self._caps.down is not None:
            with trio.move_on_after(most_s):
                await self._caps.down.wait()

    def close_now(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.socket.close()
            self.on_close.cancel()
            self.on_late_close.cancel()


def _end(ask: Callable[[], Any]) -> tuple[str, int] | None:
    """(host, port) of one end of a socket; None once it is closed."""
    try:
        host, port = ask()[:2]
    except OSError:
        return None
    return str(host), int(port)


class Closable(Protocol):
    def close_now(self) -> None: ...


class Doorway:
    """Connections that have not proved who they are: few, and the oldest makes room.

    A flood of silent strangers thus costs them their own connections, and an honest peer, who is
    through in a few round trips, nothing.
    """

    def __init__(self, counts: Counter[str], most: int = 64) -> None:
        self._counts = counts
        self._most = most
        self._waiting: dict[Closable, None] = {}

    def enter(self, raw: Closable) -> None:
        self._waiting[raw] = None
        while len(self._waiting) > self._most:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._counts["half_open_evicted"] += 1
            oldest.close_now()

    def leave(self, raw: Closable) -> bool:
        """It proved who it is, or it is gone. False if it had left before."""
        if raw not in self._waiting:
            return False
        del self._waiting[raw]
        return True


async def connect(address: Address, caps: Caps, *, is_bulk: bool) -> RawStream:
    """Raises DialFailed. The caller sets the deadline."""
    if address.is_circuit:
        raise DialFailed("error", "a circuit is no socket")
    try:
        family = address.family
        if address.kind.startswith("dns"):
            found = await trio.socket.getaddrinfo(
                address.host, address.port, family, socket.SOCK_STREAM
            )
        else:
            found = [(family, socket.SOCK_STREAM, 0, "", (address.host, address.port))]
    except OSError as error:
        raise DialFailed("name_not_found", str(error)) from None
    failure = DialFailed("error", "no address")
    for family, kind, protocol, _, target in found:
        raw = trio.socket.socket(family, kind, protocol)
        try:
            await raw.connect(target)
            return RawStream(trio.SocketStream(raw), caps, is_bulk=is_bulk)
        except OSError as error:
            raw.close()
            failure = DialFailed(cause_of(error), str(error))
        except BaseException:
            raw.close()
            raise
    raise failure


_CAUSES = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ENETUNREACH: "no_route",
    errno.EHOSTUNREACH: "no_route",
    errno.ENETDOWN: "no_route",
    errno.EADDRNOTAVAIL: "no_route",
    errno.EAFNOSUPPORT: "no_route",
    errno.EINVAL: "no_route",
}


def cause_of(error: OSError) -> str:
    """The dial cause that an OS error means."""
    return _CAUSES.get(error.errno or 0, "error")


async def listen(host: str, port: int) -> tuple[trio.SocketListener, int]:
    """A listener on the port, or on a free one if it is taken. Returns it with its real port.

    Raises OSError if the host cannot be listened on at all. No SO_REUSEPORT: two daemons on one
    port would each get half of the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port, 0):
        raw = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            await raw.bind((host, wanted))
            raw.listen(512)
            return trio.SocketListener(raw), int(raw.getsockname()[1])
        except OSError as error:
            raw.close()
            taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            if not taken or not wanted:
                raise
        except BaseException:
            raw.close()
            raise
    raise AssertionError("unreachable")


def double_of(listener: trio.SocketListener) -> trio.SocketListener:
    """The same listening socket once more: closing one leaves the other open."""
    raw = socket.socket(fileno=os.dup(listener.socket.fileno()))
    return trio.SocketListener(trio.socket.from_stdlib_socket(raw))
