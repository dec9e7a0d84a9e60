"""Runs the command line in this process, against a daemon that speaks the real protocol.

FakeDaemon holds a real home with a real lock and answers over a real Unix socket, in a thread of
its own; only what it answers is made up.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from json_schema_check import assert_valid
from status_samples import rendered_peers, rendered_status

from swarmd.cli.main import run
from swarmd.cli.output import Printer
from swarmd.home import Home
from swarmd.home_files import LastExit, write_last_exit
from swarmd.home_lock import acquire_lock
from swarmd.json_record import utc
from swarmd.local_api.server import Answer, Emit, Handlers, serve

NEEDS_DAEMON = [
    "status", "peers", "peers ping x", "peers forget x", "plan", "contributions", "data audit",
    "data ledger x", "metrics", "events -f", "wait --for joined", "leave", "drain", "finish",
    "pause", "resume", "cordon", "uncordon", "pin 1", "unpin", "run link", "debug inject oom",
    "debug dump",
]  # fmt: skip
"""Every command line that has to ask a daemon."""

UTF8 = {"LANG": "en_US.UTF-8"}


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object on standard output, checked against its own schema."""
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        assert_valid(found)
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The `swarmd.error` on standard output; its exit code is the process status."""
        found = self.object
        assert found["schema"] == "swarmd.error"
        assert found["error"]["exit_code"] == self.code
        error: dict[str, Any] = found["error"]
        return error


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def swarmd(
    *argv: object,
    home: Home | None = None,
    env: Mapping[str, str] | None = None,
    width: int | None = None,
) -> Result:
    """One command line. width: standard output is a terminal that wide."""
    out, err = (io.StringIO() if width is None else _Terminal()), io.StringIO()
    environ = {**UTF8, **(env or {}), **({} if width is None else {"COLUMNS": str(width)})}
    words = [str(word) for word in argv]
    if home is not None:
        words = ["--home", str(home.root), *words]
    code = run(words, Printer(out, err, environ))
    return Result(code, out.getvalue(), err.getvalue())


@dataclass
class FakeDaemon:
    """Made-up answers; every request that came is in `asked`."""

    home: Home
    status: dict[str, Any] = field(default_factory=rendered_status)
    peers: dict[str, Any] = field(default_factory=rendered_peers)
    answers: dict[str, Answer] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _token: Any = None

    def handlers(self) -> Handlers:
        def noted(name: str, answer: Answer) -> Answer:
            async def call(args: dict[str, Any]) -> Any:
                self.asked.append((name, args))
                return await answer(args)

            return call

        async def status(args: dict[str, Any]) -> Any:
            return self.status

        async def peers(args: dict[str, Any]) -> Any:
            return self.peers

        async def events(args: dict[str, Any], emit: Emit) -> None:
            for event in self.events:
                if event["seq"] > args["after_seq"]:
                    await emit(event)

        answers = {"status": status, "peers": peers, **self.answers}
        return Handlers(
            {name: noted(name, answer) for name, answer in answers.items()}, {"events": events}
        )

    def replies(self, request: str, reply: Any) -> None:
        """Answer `request` with that; raise it if it is an error."""

        async def answer(args: dict[str, Any]) -> Any:
            if isinstance(reply, Exception):
                raise reply
            return reply

        self.answers[request] = answer

    def end(self, code: str = "drained", exit_code: int = 0, text: str = "") -> None:
        """As a daemon ends: last words, then nobody holds the home. From any thread."""
        write_last_exit(self.home, LastExit(code=code, exit_code=exit_code, text=text, at=utc()))
        self.stop()

    def stop(self) -> None:
        """Without last words. From any thread."""
        with contextlib.suppress(trio.RunFinishedError):  # it ended by itself
            self._token.run_sync_soon(self._scope.cancel)

    @contextmanager
    def running(self) -> Iterator[FakeDaemon]:
        self.home.create()
        ready, trouble = threading.Event(), []

        async def live() -> None:
            self._token = trio.lowlevel.current_trio_token()
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(serve, self.home, self.handlers())
                    ready.set()

        def thread() -> None:
            lock = acquire_lock(self.home, started_at=utc(), version="0.1.0")
            try:
                trio.run(live)
            except BaseException as error:
                trouble.append(error)
            finally:
                lock.release()
                ready.set()

        runner = threading.Thread(target=thread)
        runner.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            self.stop()
            runner.join(10)
            assert not runner.is_alive()
            assert not trouble, trouble
