"""Every command that asks a daemon, where that one is stuck, of another version, or talks rubbish.

Where none runs: test_every_command.py. With real daemons: tests/swarm/test_every_answer.py.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from command_line import NEEDS_DAEMON, FakeDaemon, swarmd

from swarmd.home import Home
from swarmd.home_lock import acquire_lock
from swarmd.local_api import server
from swarmd.local_api.protocol import REQUESTS
from swarmd.local_api.socket_path import short_path

NEEDS_NONE = [
    "events", "logs", "config show", "config validate", "identity show", "run ls", "ps", "paths",
    "schema status", "version", "bugreport",
]  # fmt: skip


ASKED_IF_THERE = {"collect", "netcheck"}
"""Requests of commands that do without a daemon, too."""


@contextmanager
def taken_socket(home: Home, answer: bytes | None) -> Iterator[None]:
    """A home that is held, and a socket that takes connections. answer None: never one."""
    home.create()
    lock = acquire_lock(home, started_at="now", version="1")
    with socket.socket(socket.AF_UNIX) as listener, short_path(home.control_socket) as name:
        listener.bind(name)
        listener.listen(16)

        def reply() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer or b"")

        thread = threading.Thread(target=reply, daemon=True)
        if answer is not None:
            thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    if answer is not None:
        thread.join(10)
    lock.release()


@pytest.mark.parametrize("line", NEEDS_DAEMON)
def test_stuck_daemon_is_4_for_status_and_124_for_all_others(line: str, home: Home) -> None:
    with taken_socket(home, None):
        found = swarmd(*line.split(), "--timeout", "50ms", "--json", home=home)
    expected = 4 if line == "status" else 124
    assert (found.code, found.error["exit_code"]) == (expected, expected)
    assert "Traceback" not in found.err


@pytest.mark.parametrize("line", NEEDS_NONE)
def test_stuck_daemon_stops_no_command_that_needs_none(line: str, home: Home) -> None:
    with taken_socket(home, None):
        found = swarmd(*line.split(), "--timeout", "50ms", home=home)
    assert found.code in (0, 1), found.err
    assert "daemon_silent" not in found.err


@pytest.mark.parametrize("line", NEEDS_DAEMON)
def test_daemon_of_another_version_that_does_not_know_the_word_is_1_and_names_both(
    line: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "__version__", "9.9.9")
    monkeypatch.setattr(FakeDaemon, "handlers", lambda self: server.Handlers({}))
    with FakeDaemon(home).running():
        found = swarmd(*line.split(), "--timeout", "5s", "--json", home=home)
    assert (found.code, found.error["code"]) == (1, "daemon_version")
    assert "9.9.9" in found.error["message"]
    assert "0.1.0" in found.error["message"]


@pytest.mark.parametrize("answer", [b"", b"\xff\xfe\n", b"[]\n", b'{"result": 3}\n', b'{"a": '])
@pytest.mark.parametrize("line", ["status", "peers", "metrics", "pause", "events -f"])
def test_rubbish_on_the_socket_is_one_error_line(line: str, answer: bytes, home: Home) -> None:
    with taken_socket(home, answer):
        found = swarmd(*line.split(), "--timeout", "200ms", "--json", home=home)
    if line == "events -f" and found.code == 0:
        assert found.out == "", "a daemon that closes a stream has ended it"
        return
    assert found.code in (1, 4, 124)
    assert found.error["code"] in ("daemon_version", "daemon_silent", "timed_out")
    assert "Traceback" not in found.err


def test_every_request_there_is_has_a_command_in_the_list() -> None:
    """So that nobody adds a word to the daemon and leaves its failures untested."""
    words = {line.split()[0] for line in NEEDS_DAEMON}
    first = {name.partition("_")[0] for name in REQUESTS} - ASKED_IF_THERE
    aliases = {"audit": "data", "ledger": "data", "inject": "debug", "dump": "debug"}
    assert {aliases.get(name, name) for name in first} <= words
