"""Asks the daemon, with a deadline. Standard library only: reading commands start at once.

Whatever state the daemon is in, the caller learns within its deadline: the answer, that no daemon
runs (with how the last one ended), or that one runs and is silent.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from swarmd import __version__
from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.home_lock import holder_of
from swarmd.local_api.protocol import REPLY_BYTES_MAX
from swarmd.local_api.socket_path import short_path

RETRY_S = 0.05
"""Pause while a starting daemon has taken its home but not yet opened its socket."""

LAST_WORDS_S = 1.0
"""From closing its socket to leaving its home, for a daemon that ends."""


class NoDaemon(UserError):
    """Nobody holds this home."""

    def __init__(self, home: Home, *, was_there: bool = False) -> None:
        self.was_there = was_there
        """It took our request, and ended before it answered."""
        from swarmd.home_files import has_lived, read_last_exit  # slow to load

        last = read_last_exit(home)
        super().__init__(
            "no daemon runs for this home",
            code="no_daemon",
            exit_code=3,
            hint="start it with `swarmd join`",
            details={
                "home": str(home),
                "last_exit": None if last is None else asdict(last),
                "ended_without_a_word": last is None and has_lived(home),
            },
        )


class DaemonSilent(UserError):
    """Somebody holds this home and does not answer."""

    def __init__(self, home: Home, waited_s: float, *, has_request: bool = False) -> None:
        self.has_request = has_request
        """It was handed over, and will be carried out once somebody reads it."""
        holder = holder_of(home)
        pid = holder.pid if holder is not None else None
        who = "the daemon" if pid is None else f"the daemon with pid {pid}"
        super().__init__(
            f"{who} does not answer within {waited_s:.3g} s",
            code="daemon_silent",
            exit_code=1,
            hint="the machine may be busy, or the daemon stopped (Ctrl-Z) or still starting: "
            "`--timeout 10s` waits longer, `swarmd logs` shows what it did last",
            details={"home": str(home), "pid": pid},
        )


class Client:
    """One request a call, each on a connection of its own."""

    def __init__(self, home: Home, *, timeout_s: float) -> None:
        self._home = home
        self._timeout_s = timeout_s
        self.daemon_version: str | None = None
        """Of the daemon that answered last."""

    def ask(
        self, request: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The result. Raises NoDaemon, DaemonSilent, or the UserError that the daemon answered."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        replies = self._replies(request, args or {}, first_within_s=wait_s)
        with contextlib.closing(replies):
            reply = next(replies, None)
        if reply is None:
            raise self._ended(wait_s)
        result = reply.get("result")
        if not isinstance(result, dict):
            raise self._other_version("without a result")
        return result

    def stream(
        self,
        request: str,
        args: Mapping[str, Any] | None = None,
        *,
        every_s: float | None = None,
        silence_s: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Items until the daemon ends the stream or itself. Raises as `ask`.

        every_s: have an answer repeated that often. silence_s: longest wait between two items; None
        waits for ever.
        """
        replies = self._replies(
            request, args or {}, every_s=every_s, first_within_s=silence_s, then_within_s=silence_s
        )
        with contextlib.closing(replies):
            for reply in replies:
                if reply.get("end"):
                    return
                if not isinstance(reply.get("item"), dict):
                    raise self._other_version("with a stream without items")
                yield reply["item"]

    # --------------------------------------------------------------------------------------- inside

    def _replies(
        self,
        request: str,
        args: Mapping[str, Any],
        *,
        every_s: float | None = None,
        first_within_s: float | None,
        then_within_s: float | None = None,
    ) -> Generator[dict[str, Any], None, None]:
        """What the daemon says until it closes the connection. None waits for ever."""
        connect_s = self._timeout_s if first_within_s is None else first_within_s
        deadline_s = time.monotonic() + connect_s
        connection = self._connect(deadline_s, connect_s)
        line = {"request": request, "args": dict(args), "version": __version__, "every_s": every_s}
        within_s, waited_s = first_within_s, connect_s
        if within_s is not None:
            within_s = max(0.0, deadline_s - time.monotonic())
        try:
            connection.sendall(json.dumps(line, allow_nan=False).encode() + b"\n")
            reader = _LineReader(connection)
            while (body := reader.line(within_s)) is not None:
                yield self._checked(body, request)
                within_s, waited_s = then_within_s, then_within_s or connect_s
        except TimeoutError:
            raise DaemonSilent(self._home, waited_s, has_request=True) from None
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            connection.close()

    def _connect(self, deadline_s: float, waited_s: float) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(max(1e-3, deadline_s - time.monotonic()))
                with short_path(self._home.control_socket) as name:
                    connection.connect(name)
                return connection
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if holder_of(self._home) is None:
                    raise NoDaemon(self._home) from None
            except (TimeoutError, BlockingIOError):
                connection.close()
            except PermissionError:
                connection.close()
                raise UserError(
                    f"the daemon of {self._home} belongs to another user",
                    code="refused",
                    exit_code=77,
                ) from None
            if time.monotonic() + RETRY_S >= deadline_s:
                raise DaemonSilent(self._home, waited_s)
            time.sleep(RETRY_S)

    def _checked(self, body: bytes, request: str) -> dict[str, Any]:
        try:
            reply = json.loads(body)
        except ValueError:
            raise self._other_version("with no JSON") from None
        if not isinstance(reply, dict):
            raise self._other_version("with no JSON object")
        version = reply.get("version")
        self.daemon_version = version if isinstance(version, str) else None
        error = reply.get("error")
        if error is None:
            return reply
        if not isinstance(error, dict):
            raise self._other_version("with an error of another form")
        if error.get("code") == "unknown_request" and self.daemon_version != __version__:
            raise self._other_version(f"that it does not know {request!r}")
        raise _remote_error(error)

    def _other_version(self, what: str) -> UserError:
        return UserError(
            f"the daemon answers {what}; it is version {self.daemon_version or 'unknown'}, "
            f"this command is {__version__}",
            code="daemon_version",
            exit_code=1,
            hint="restart the daemon: `swarmd leave`, then `swarmd join`",
            details={"daemon": self.daemon_version, "command": __version__},
        )

    def _ended(self, waited_s: float) -> UserError:
        """The connection closed without an answer: the daemon ended, or had no place for us."""
        deadline_s = time.monotonic() + min(LAST_WORDS_S, waited_s)
        while holder_of(self._home) is not None:
            if time.monotonic() >= deadline_s:
                return DaemonSilent(self._home, waited_s)
            time.sleep(RETRY_S)
        return NoDaemon(self._home, was_there=True)


def ask(
    home: Home, request: str, args: Mapping[str, Any] | None = None, *, timeout_s: float
) -> dict[str, Any]:
    """One answer from the daemon of `home`; raises as Client.ask."""
    return Client(home, timeout_s=timeout_s).ask(request, args)


class _LineReader:
    """Lines of bounded length from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def line(self, within_s: float | None) -> bytes | None:
        """None at the end. Raises TimeoutError if the line is not whole in time."""
        deadline_s = None if within_s is None else time.monotonic() + within_s
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > REPLY_BYTES_MAX:
                raise ConnectionResetError("a reply without end")
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            piece = self._connection.recv(1 << 16)
            if not piece:
                return None
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _remote_error(error: Mapping[str, Any]) -> UserError:
    exit_code = error.get("exit_code")
    details = error.get("details")
    return UserError(
        str(error.get("message", "the daemon refused")),
        code=str(error.get("code", "failed")),
        exit_code=exit_code if isinstance(exit_code, int) and 0 < exit_code < 256 else 1,
        hint=str(error.get("hint") or ""),
        details=details if isinstance(details, dict) else None,
    )
