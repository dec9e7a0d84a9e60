"""Real daemons on loopback, as strangers would start them: `swarmd join`, run links, no fixed map.

    with daemons(tmp_path, stages=3) as swarm:
        swarm.start("p0", first=True)
        swarm.start("p1", via="p0")
        swarm.wait("both see each other", lambda: swarm.sees("p0", "p1"))

What a test looks at is what anybody can look at: the control socket's answers. The run begins to
train at `peers_min` peers; above what a test starts, the swarm is manned and idles, so that eight
daemons fit on two busy cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swarmd.daemon_spawn import LIFELINE_VARIABLE
from swarmd.errors import SwarmdError
from swarmd.home import home_at
from swarmd.local_api.client import Client

LIMIT_S = 120.0
"""For anything. Nothing takes so long on a free machine; a hang must end some time."""


def run_text(stages: int, peers_min: int, **run: Any) -> str:
    """A run file: small; on the local time scale unless told otherwise."""
    lines = ["[run]", 'name = "few"', 'preset = "tiny"']
    values = {"time_scale": "local", "stages": stages, "peers_min": peers_min}
    values |= {"total_steps": 2000, **run}
    lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join([*lines, "", "[test]", "allow_injection = true", ""])


class Daemon:
    """One home, and the process on it, if one runs."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """To the daemon and its worker."""
        assert self.process is not None, f"{self.name} was never started"
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def ask(self, what: str, args: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """What the control socket answers; None while it does not."""
        try:
            found: dict[str, Any] = Client(home_at(self.home), timeout_s=5.0).ask(what, args or {})
        except (SwarmdError, OSError):
            return None
        return found

    def said(self) -> str:
        """What it has written so far, on both streams."""
        return (self.home / "output.log").read_text(encoding="utf-8")

    def ended(self) -> tuple[int, str]:
        """(exit code, output) of a process that ends by itself."""
        assert self.process is not None
        return self.process.wait(LIMIT_S), self.said()


def answer_of(*words: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The last JSON object of `swarmd WORDS --json` in a process of its own, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "swarmd", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Daemons:
    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run_file = folder / "run.toml"
        self.run_file.write_text(run, encoding="utf-8")
        self.peers: dict[str, Daemon] = {}
        self._lifeline_read, self._lifeline_write = os.pipe()

    # --------------------------------------------------------------------------------- processes

    def start(
        self,
        name: str,
        *flags: str,
        first: bool = False,
        via: str | None = None,
        run: str = "",
        environment: dict[str, str] | None = None,
    ) -> Daemon:
        """`via`: the peer whose run link is used. `run`: another RUN; else what the home knows."""
        peer = self.peers.setdefault(name, Daemon(name, self.folder / name))
        peer.home.mkdir(mode=0o700, exist_ok=True)
        words = [run] if run else []
        if first:
            words = [str(self.run_file), "--first"]
        elif via is not None:
            words = [self.link(via)]
        command = [sys.executable, "-m", "swarmd", "--home", str(peer.home), "join", *words]
        command += ["--name", name, "--listen", "127.0.0.1:0", "--device", "cpu"]
        command += ["--threads", "1", "--lan-discovery", "off", "--no-input", *flags]
        with (peer.home / "output.log").open("a") as log:
            peer.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    LIFELINE_VARIABLE: str(self._lifeline_read),
                    **(environment or {}),
                },
                pass_fds=(self._lifeline_read,),
                start_new_session=True,
            )
        return peer

    def kill(self, name: str) -> None:
        """SIGKILL of the daemon and its worker."""
        peer = self.peers[name]
        peer.signal(signal.SIGKILL)
        assert peer.process is not None
        peer.process.wait()

    def close(self) -> None:
        """Everybody gone, in no good order."""
        for peer in self.peers.values():
            if peer.is_running:
                peer.signal(signal.SIGKILL)
        for peer in self.peers.values():
            if peer.process is not None:
                peer.process.wait()
        os.close(self._lifeline_read)
        os.close(self._lifeline_write)

    # ------------------------------------------------------------------------------------- looking

    def status(self, name: str) -> dict[str, Any]:
        return self.peers[name].ask("status") or {}

    def link(self, name: str) -> str:
        """The run link that this peer prints."""

        def found() -> str | None:
            link = (self.status(name).get("run") or {}).get("link")
            return link if isinstance(link, str) and "peer=" in link else None

        link: str = self.wait(f"{name} has a link", found)
        return link

    def id(self, name: str) -> str:
        found: str = self.wait(f"{name} has an id", lambda: self.status(name)["peer"]["id"])
        return found

    def running(self) -> list[str]:
        return sorted(name for name, peer in self.peers.items() if peer.is_running)

    def entries(self, name: str) -> dict[str, dict[str, Any]]:
        """What `swarmd peers --all` of this peer has, by id."""
        found = self.peers[name].ask("peers") or {}
        return {entry["id"]: entry for entry in found.get("peers", [])}

    def map_of(self, name: str) -> list[list[str]]:
        """The present stage map, as `swarmd plan` has it."""
        found = self.peers[name].ask("plan") or {}
        return [stage["peers"] for stage in found.get("map", [])]

    def agree(self, names: list[str]) -> bool:
        """All of these have one map with just them in it, and every stage is manned."""
        maps = [self.map_of(name) for name in names]
        ids = sorted(self.id(name) for name in names)
        is_manned = all(maps[0]) and bool(maps[0])
        return is_manned and all(
            found == maps[0] and sorted(peer for stage in found for peer in stage) == ids
            for found in maps
        )

    def tell(self, name: str, *words: str) -> None:
        """A command, as an operator gives it."""
        home = str(self.peers[name].home)
        command = [sys.executable, "-m", "swarmd", "--home", home, *words]
        subprocess.run(command, check=True, timeout=60)

    def wait(self, what: str, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        """Until it holds; returns what it returned. KeyError and TypeError: not yet."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            try:
                found = condition()
            except (KeyError, TypeError):
                found = None
            if found:
                return found
            time.sleep(0.1)
        told = {name: self.status(name).get("reason") for name in self.running()}
        pytest.fail(f"never: {what}; {told}")


@contextmanager
def daemons(folder: Path, stages: int, peers_min: int = 99, **run: Any) -> Iterator[Daemons]:
    swarm = Daemons(folder, run_text(stages, peers_min, **run))
    try:
        yield swarm
    finally:
        swarm.close()
