"""A home of its own for every test, and nothing of this machine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import FakeDaemon

from swarmd.home import Home, find_home


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SWARMD_HOME", "STATE_DIRECTORY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr("swarmd.peer_config.SYSTEM_CONFIG", tmp_path / "no-system-config.toml")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return find_home(str(tmp_path / "home"))


@pytest.fixture
def daemon(home: Home) -> Iterator[FakeDaemon]:
    """Running, with the imagined swarm of docs/cli.md."""
    with FakeDaemon(home).running() as found:
        yield found
