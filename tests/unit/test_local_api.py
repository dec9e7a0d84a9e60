"""The control socket: what a client gets in every state of the daemon, and what it cannot do."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from swarmd import __version__
from swarmd.errors import UserError
from swarmd.events_log import EventLog
from swarmd.home import Home, find_home
from swarmd.home_files import LastExit, write_last_exit
from swarmd.home_lock import acquire_lock
from swarmd.local_api import server
from swarmd.local_api.client import Client, DaemonSilent, NoDaemon
from swarmd.local_api.event_feed import EventFeed
from swarmd.local_api.server import Handlers, serve
from swarmd.local_api.socket_path import NAME_BYTES_MAX, short_path
from swarmd.records import Done


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = find_home(str(tmp_path / "home"))
    found.create()
    return found


async def status(args: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "swarmd.status", "args": args}


@asynccontextmanager
async def serving(home: Home, handlers: Handlers | None = None) -> AsyncIterator[None]:
    lock = acquire_lock(home, started_at="now", version="1")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, home, handlers or Handlers({"status": status}))
            yield
            nursery.cancel_scope.cancel()
    finally:
        lock.release()


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """The client blocks, as it does in a command; the server goes on meanwhile."""
    return await trio.to_thread.run_sync(call, *args)


def ask(home: Home, request: str = "status", args: Any = None, timeout_s: float = 2.0) -> Any:
    return Client(home, timeout_s=timeout_s).ask(request, args)


def raw(home: Home, body: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as plain, short_path(home.control_socket) as name:
        plain.settimeout(2)
        plain.connect(name)
        plain.sendall(body)
        plain.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := plain.recv(4096):
            answer += piece
        return answer


# -------------------------------------------------------------------------------- the daemon's side


async def test_answer_reaches_the_client(home: Home) -> None:
    async with serving(home):
        assert await in_thread(ask, home, "status", {"all": True}) == {
            "schema": "swarmd.status",
            "args": {"all": True},
        }


async def test_record_is_rendered(home: Home) -> None:
    async def drain(args: dict[str, Any]) -> Done:
        return Done(command="pause")

    async with serving(home, Handlers({"pause": drain})):
        found = await in_thread(ask, home, "pause")
    assert (found["schema"], found["swarmd_version"]) == ("swarmd.done", __version__)


async def test_sec_03_socket_is_private_and_gone_afterwards(home: Home) -> None:
    async with serving(home):
        mode = stat.S_IMODE(home.control_socket.stat().st_mode)
        assert mode == 0o600
        assert stat.S_IMODE(home.runtime.stat().st_mode) == 0o700
    assert list(home.runtime.iterdir()) == []


async def test_socket_of_a_killed_daemon_is_replaced(home: Home) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind, short_path(home.control_socket) as name:
        left_behind.bind(name)
    async with serving(home):
        assert await in_thread(ask, home)


@pytest.mark.parametrize("depth", [0, 3])
async def test_home_may_lie_deeper_than_a_socket_name_is_long(tmp_path: Path, depth: int) -> None:
    home = find_home(str(tmp_path.joinpath(*["x" * 60 + " ü"] * depth)))
    home.create()
    assert (len(str(home.control_socket)) > NAME_BYTES_MAX) == (depth > 0)
    async with serving(home):
        assert await in_thread(ask, home)
        assert home.control_socket.is_socket()


async def test_error_of_a_handler_reaches_the_client_whole(home: Home) -> None:
    async def pin(args: dict[str, Any]) -> dict[str, Any]:
        raise UserError("no such stage", code="usage", exit_code=2, hint="0..3", details={"n": 4})

    async with serving(home, Handlers({"pin": pin})):
        with pytest.raises(UserError, match="no such stage") as caught:
            await in_thread(ask, home, "pin")
    error = caught.value
    assert (error.code, error.exit_code, error.hint) == ("usage", 2, "0..3")
    assert error.details == {"n": 4}


async def test_bug_in_a_handler_answers_that_client_and_nobody_else_notices(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(args: dict[str, Any]) -> dict[str, Any]:
        raise trio.TooSlowError("inside")

    async with serving(home, Handlers({"peers": broken, "status": status})):
        with pytest.raises(UserError) as caught:
            await in_thread(ask, home, "peers")
        assert (caught.value.code, caught.value.exit_code) == ("internal_error", 1)
        assert await in_thread(ask, home)
    assert "control_request_failed" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        b"\n", b"{}\n", b"[]\n", b"7\n", b'{"request": 7}\n', b'{"request": "status", "args": 7}\n',
        b"[" * 50_000 + b"\n",
    ],
)  # fmt: skip
async def test_nonsense_is_answered_as_malformed(home: Home, body: bytes) -> None:
    async with serving(home):
        answer = json.loads(await in_thread(raw, home, body))
        assert answer["error"]["code"] == "malformed"


@pytest.mark.parametrize("body", [b"", b"no newline", b"x" * (server.REQUEST_BYTES_MAX + 10)])
async def test_what_never_becomes_a_request_is_closed(home: Home, body: bytes) -> None:
    def send() -> bytes:
        try:
            return raw(home, body)
        except ConnectionError:
            return b""

    async with serving(home):
        assert await in_thread(send) == b""
        assert await in_thread(ask, home)


async def test_client_that_goes_away_cancels_its_handler(home: Home) -> None:
    was_cancelled = trio.Event()

    async def slow(args: dict[str, Any]) -> dict[str, Any]:
        try:
            await trio.sleep_forever()
        finally:
            was_cancelled.set()
        raise AssertionError

    def ask_and_leave() -> None:
        with socket.socket(socket.AF_UNIX) as plain, short_path(home.control_socket) as name:
            plain.connect(name)
            plain.sendall(b'{"request": "drain"}\n')

    async with serving(home, Handlers({"drain": slow})):
        with trio.fail_after(20):
            await in_thread(ask_and_leave)
            await was_cancelled.wait()


async def test_client_that_reads_nothing_is_dropped(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SEND_S", 0.05)
    ended = trio.Event()

    async def flood(args: dict[str, Any], emit: server.Emit) -> None:
        try:
            while True:
                await emit({"data": "x" * 100_000})
        finally:
            ended.set()

    async with serving(home, Handlers({"status": status}, {"events": flood})):
        with socket.socket(socket.AF_UNIX) as plain, short_path(home.control_socket) as name:
            plain.connect(name)
            plain.sendall(b'{"request": "events"}\n')
            with trio.fail_after(20):
                await ended.wait()
        assert await in_thread(ask, home)


async def test_more_clients_than_places_do_not_harm_the_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    async with serving(home):
        idle = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        with short_path(home.control_socket) as name:
            for plain in idle:
                plain.connect(name)
        with pytest.raises(DaemonSilent):
            await in_thread(ask, home)
        for plain in idle:
            plain.close()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await in_thread(ask, home)


def test_handlers_answer_only_what_the_protocol_knows() -> None:
    with pytest.raises(AssertionError, match="no request"):
        Handlers({"dance": status})
    with pytest.raises(AssertionError, match="a stream"):
        Handlers({"events": status})


# -------------------------------------------------------------------------------- the client's side


def test_no_daemon_is_told_at_once_with_how_the_last_one_ended(home: Home) -> None:
    write_last_exit(home, LastExit(code="drained", exit_code=0, text="", at="now"))
    with pytest.raises(NoDaemon) as caught:
        ask(home)
    assert (caught.value.code, caught.value.exit_code) == ("no_daemon", 3)
    assert caught.value.details["last_exit"]["code"] == "drained"


def test_home_that_does_not_exist_has_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(NoDaemon):
        ask(find_home(str(tmp_path / "none")))
    assert list(tmp_path.iterdir()) == []


def test_daemon_that_holds_the_home_without_a_socket_is_silent(home: Home) -> None:
    lock = acquire_lock(home, started_at="now", version="1")
    with pytest.raises(DaemonSilent) as caught:
        ask(home, timeout_s=0.2)
    assert caught.value.details["pid"] is not None
    lock.release()


def test_daemon_that_accepts_and_says_nothing_is_silent(home: Home) -> None:
    lock = acquire_lock(home, started_at="now", version="1")
    with socket.socket(socket.AF_UNIX) as stuck, short_path(home.control_socket) as name:
        stuck.bind(name)
        stuck.listen()
        with pytest.raises(DaemonSilent):
            ask(home, timeout_s=0.2)
    lock.release()


async def test_answer_of_another_version_is_told_apart(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "__version__", "9.9.9")
    client = Client(home, timeout_s=2)
    async with serving(home):
        await in_thread(client.ask, "status")
        assert client.daemon_version == "9.9.9"
        with pytest.raises(UserError, match=r"9\.9\.9") as caught:
            await in_thread(client.ask, "plan")
    assert (caught.value.code, caught.value.exit_code) == ("daemon_version", 1)


@pytest.mark.parametrize("answer", [b"hello\n", b"[]\n", b'{"result": 7}\n', b'{"error": 7}\n'])
async def test_answer_that_cannot_be_read_is_daemon_version(home: Home, answer: bytes) -> None:
    async def speak(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)

    lock = acquire_lock(home, started_at="now", version="1")
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, speak, [server._listen(home)])
        with pytest.raises(UserError) as caught:
            await in_thread(ask, home)
        nursery.cancel_scope.cancel()
    lock.release()
    assert (caught.value.code, caught.value.exit_code) == ("daemon_version", 1)


async def test_answer_can_be_had_again_and_again(home: Home) -> None:
    def three() -> list[dict[str, Any]]:
        stream = Client(home, timeout_s=2).stream("status", every_s=0.1, silence_s=2)
        found = [next(stream) for _ in range(3)]
        stream.close()  # type: ignore[attr-defined]
        return found

    async with serving(home):
        assert len(await in_thread(three)) == 3


async def test_stream_ends_where_the_daemon_ends_it(home: Home) -> None:
    async def two(args: dict[str, Any], emit: server.Emit) -> None:
        await emit({"seq": 1})
        await emit({"seq": 2})

    async with serving(home, Handlers({}, {"events": two})):
        found = await in_thread(lambda: list(Client(home, timeout_s=2).stream("events")))
    assert found == [{"seq": 1}, {"seq": 2}]


# ------------------------------------------------------------------------------------------- events


async def test_follower_gets_what_it_missed_and_then_what_comes(home: Home) -> None:
    feed = EventFeed(EventLog(home.events_file))
    feed.publish("started")
    feed.publish("peer_joined", peer="p1")
    seen: list[dict[str, Any]] = []
    third = trio.Event()

    async def emit(event: Any) -> None:
        seen.append(event)
        if len(seen) == 3:
            third.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.follow, {"after_seq": 0}, emit)
        await trio.testing.wait_all_tasks_blocked()
        assert [event["event"] for event in seen] == ["started", "peer_joined"]
        feed.publish("peer_left", peer="p1")
        with trio.fail_after(20):
            await third.wait()
        nursery.cancel_scope.cancel()
    assert [event["seq"] for event in seen] == [1, 2, 3]


async def test_follower_that_fell_behind_catches_up_from_the_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.local_api.event_feed.RING", 4)
    feed = EventFeed(EventLog(home.events_file))
    for _ in range(20):
        feed.publish("state_changed")
    seen: list[int] = []

    async def emit(event: Any) -> None:
        seen.append(event["seq"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.follow, {"after_seq": 0}, emit)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == list(range(1, 21))


async def test_follower_without_a_number_gets_only_what_comes(home: Home) -> None:
    feed = EventFeed(EventLog(home.events_file))
    feed.publish("started")
    seen: list[int] = []

    async def emit(event: Any) -> None:
        seen.append(event["seq"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.follow, {}, emit)
        await trio.testing.wait_all_tasks_blocked()
        feed.publish("stopped")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == [2]
