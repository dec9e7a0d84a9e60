"""A real daemon and its service manager: what it is told, and what its signals do."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import LIMIT_S, Daemons, daemons

from swarmd.events_log import read_events

pytestmark = [pytest.mark.process]


class Manager:
    """Listens as systemd does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.heard: list[str] = []

    def wait_for(self, start: str) -> str:
        """The first message since the last call that begins so."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            self._socket.settimeout(deadline_s - time.monotonic())
            message = self._socket.recv(4096).decode()
            self.heard.append(message)
            if message.startswith(start):
                return message
        pytest.fail(f"never told {start}: {self.heard}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as folder:  # a short name: 107 bytes at most
        made = Manager(Path(folder) / "notify")
        yield made
        made.close()


def reloaded(swarm: Daemons) -> list[dict[str, object]]:
    events = read_events(swarm.peers["p0"].home / "state" / "events.jsonl")
    return [event for event in events if event["event"] == "config_reloaded"]


def test_manager_is_told_and_signals_are_obeyed(tmp_path: Path, manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "2000000"}
    with daemons(tmp_path, stages=1, peers_min=1) as swarm:
        peer = swarm.start("p0", "--observe", first=True, environment=environment)
        manager.wait_for("READY=1")
        manager.wait_for("WATCHDOG=1")
        assert "(waiting_for_stage)" in manager.wait_for("STATUS=waiting")
        manager.wait_for("WATCHDOG=1")

        (peer.home / "config.toml").write_text(
            '[limits]\nlimit_up = "20mbit"\n[net]\nport = 4999\n', encoding="utf-8"
        )
        peer.signal(signal.SIGHUP)
        (event,) = swarm.wait("the settings are read again", lambda: reloaded(swarm))
        assert event["data"]["changed"] == ["limits.limit_up"]
        assert "net.port" in event["data"]["at_next_start"]
        (peer.home / "config.toml").write_text("[limits\n", encoding="utf-8")
        peer.signal(signal.SIGHUP)
        swarm.wait("a broken file is told", lambda: len(reloaded(swarm)) == 2)
        assert reloaded(swarm)[1]["code"] == "bad_config"

        peer.signal(signal.SIGUSR1)
        log = peer.home / "state" / "swarmd.log"
        swarm.wait("a dump is in the log", lambda: " dump {" in log.read_text(encoding="utf-8"))
        (line,) = [line for line in log.read_text().splitlines() if " dump {" in line]
        assert json.loads("{" + line.partition("{")[2])["command"] == "debug dump"

        peer.signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        code, _ = peer.ended()
        assert code == 0
