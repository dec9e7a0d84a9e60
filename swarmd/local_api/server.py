"""The daemon's side of run/control.sock, on trio.

Nothing that a client does may hurt the daemon: requests are bounded, connections are counted, a
client that does not read is dropped after SEND_S, one that leaves cancels its handler, and an
exception in a handler answers that client and goes to the log. The socket is 0600 in a directory of
0700; on Linux the caller's user is checked as well.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from swarmd import __version__
from swarmd.errors import SwarmdError, UserError
from swarmd.home import Home
from swarmd.json_record import Record, render, to_json
from swarmd.local_api.protocol import REQUEST_BYTES_MAX, REQUESTS
from swarmd.local_api.socket_path import short_path

log = logging.getLogger("swarmd.local_api")

CONNECTIONS_MAX = 64
REQUEST_S = 5.0
"""A client that has not said what it wants by then is closed."""
SEND_S = 5.0
"""A client that takes nothing for so long is closed: what nobody reads is dropped."""
EVERY_S_MIN = 0.1

Result = Record | Mapping[str, Any]
Args = dict[str, Any]
Emit = Callable[[Result], Awaitable[None]]
Answer = Callable[[Args], Awaitable[Result]]
Stream = Callable[[Args, Emit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """What the daemon can answer, by the names in protocol.REQUESTS.

    A handler may raise UserError: the client gets its code, exit code, message and hint. It is
    cancelled when its client goes away, so it must not itself carry out what has to be finished.
    """

    answers: Mapping[str, Answer]
    streams: Mapping[str, Stream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.answers:
            assert name in REQUESTS, f"{name} is no request"
            assert not REQUESTS[name].is_stream, f"{name} is a stream"
        for name in self.streams:
            assert name in REQUESTS, f"{name} is no request"
            assert REQUESTS[name].is_stream, f"{name} is no stream"


class ClientGone(Exception):
    """It closed its end, or takes nothing."""


async def serve(
    home: Home, handlers: Handlers, *, task_status: Any = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer until cancelled; started once the socket takes connections. Holds the home's lock."""
    path = home.control_socket
    path.unlink(missing_ok=True)  # of a daemon that was killed: the lock says that it is gone
    listener = _listen(home)
    places = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def one(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                places.acquire_nowait()
            except trio.WouldBlock:
                return  # the client retries or tells that the daemon is silent
            try:
                await _serve_one(stream, handlers)
            finally:
                places.release()

    try:
        await trio.serve_listeners(one, [listener], task_status=_once(task_status))
    finally:
        path.unlink(missing_ok=True)


def _once(task_status: Any) -> Any:
    """serve_listeners tells its listeners; our caller wants only to know that it is time."""

    class Started:
        def started(self, value: object = None) -> None:
            task_status.started()

    return Started()


def _listen(home: Home) -> trio.SocketListener:
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(home.control_socket) as name:
            plain.bind(name)  # nobody else can enter the directory before the mode is right
        home.control_socket.chmod(0o600)
        plain.listen(CONNECTIONS_MAX)
        return trio.SocketListener(trio.socket.from_stdlib_socket(plain))
    except OSError:
        plain.close()
        raise


async def _serve_one(stream: trio.SocketStream, handlers: Handlers) -> None:
    try:
        if not _is_our_user(stream):
            return
        with trio.fail_after(REQUEST_S):
            line = await _read_line(stream)
    except (trio.BrokenResourceError, trio.TooSlowError):
        return
    if line is None:
        return
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, stream, nursery.cancel_scope)
            await _answer(stream, handlers, line)
            nursery.cancel_scope.cancel()
    except* (ClientGone, trio.BrokenResourceError):
        log.debug("control_client_gone")


async def _cancel_when_gone(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    while await stream.receive_some(4096):
        pass  # one request a connection; whatever follows is ignored
    scope.cancel()


async def _answer(stream: trio.SocketStream, handlers: Handlers, line: bytes) -> None:
    try:
        name, args, every_s = _parse(line)
        if name in handlers.answers:
            handler = handlers.answers[name]
            if every_s is None:
                await _send(stream, "result", _plain(await handler(args)))
                return
            while True:
                await _send(stream, "item", _plain(await handler(args)))
                await trio.sleep(max(EVERY_S_MIN, every_s))
        if name in handlers.streams:

            async def emit(item: Result) -> None:
                await _send(stream, "item", _plain(item))

            await handlers.streams[name](args, emit)
            await _send(stream, "end", True)
            return
        raise UserError(f"this daemon does not know {name!r}", code="unknown_request", exit_code=1)
    except UserError as error:
        await _send(stream, "error", _error(error.code, error.exit_code, error))
    except ClientGone:
        raise
    except Exception as error:
        log.exception("control_request_failed line=%.200r", line)
        code = getattr(error, "code", "internal_error") if isinstance(error, SwarmdError) else None
        await _send(stream, "error", _error(str(code or "internal_error"), 1, error))


def _parse(line: bytes) -> tuple[str, Args, float | None]:
    """Raises UserError: another program speaks to us, or another version."""
    try:
        found = json.loads(line)
        name, args, every_s = found["request"], found.get("args") or {}, found.get("every_s")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError("not a request", code="malformed", exit_code=1) from None
    if type(name) is not str or type(args) is not dict:
        raise UserError("not a request", code="malformed", exit_code=1)
    if every_s is not None and type(every_s) not in (int, float):
        raise UserError("every_s is no number", code="malformed", exit_code=1)
    return name, args, every_s


def _plain(result: Result) -> Mapping[str, Any]:
    return render(result) if isinstance(result, Record) else result


def _error(code: str, exit_code: int, error: Exception) -> dict[str, Any]:
    return {
        "code": code,
        "exit_code": exit_code,
        "message": str(error) or type(error).__name__,
        "hint": getattr(error, "hint", "") or None,
        "details": getattr(error, "details", {}),
    }


async def _send(stream: trio.SocketStream, kind: str, value: Any) -> None:
    body = to_json({"version": __version__, kind: value}).encode() + b"\n"
    try:
        with trio.fail_after(SEND_S):
            await stream.send_all(body)
    except (trio.BrokenResourceError, trio.TooSlowError) as error:
        raise ClientGone from error


async def _read_line(stream: trio.SocketStream) -> bytes | None:
    buffer = bytearray()
    while b"\n" not in buffer:
        if len(buffer) > REQUEST_BYTES_MAX:
            return None
        piece = await stream.receive_some(1 << 16)
        if not piece:
            return None
        buffer += piece
    return bytes(buffer.partition(b"\n")[0])


def _is_our_user(stream: trio.SocketStream) -> bool:
    """The directory's mode keeps others out; this is the second lock on the same door."""
    if sys.platform != "linux":
        return True
    size = struct.calcsize("3i")
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", raw)
    return user in (0, os.geteuid())
