"""The peers of a local swarm as processes: started, told, stopped, and never left behind.

Each peer is `swarmd join` with a home of its own, on a lifeline of ours (daemon_spawn.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swarmd.daemon_spawn import spawn_daemon


@dataclass(slots=True)
class PeerProcess:
    """One peer. `exit_code` of the last life; negative: the signal that ended it."""

    number: int
    home: Path
    stage: int | None
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    planned_exit: bool = False
    """Somebody was told to end it: then how it ended is no failure."""
    starts: int = 0
    frozen_until_s: float | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.home / "output.log"

    @property
    def name(self) -> str:
        return f"p{self.number}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.poll() is None

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        if self.process is None:
            return self.exit_code
        code = self.process.poll()
        if code is not None:
            self.exit_code = code
        return code

    def signal(self, number: int) -> None:
        """Only ever sent to a child that has not been waited for, so never to a stranger."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class Processes:
    """All peers of one command, and the lifeline that ends them with us."""

    def __init__(self) -> None:
        self._lifeline_read, self._lifeline_write = os.pipe()
        self.peers: list[PeerProcess] = []

    def start(self, peer: PeerProcess, run: Sequence[str]) -> None:
        """Run `swarmd join` for this peer. `run`: the run file or link, and flags like --first."""
        peer.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = ["--home", str(peer.home), "join", *run, *peer.arguments]
        lifeline = self._lifeline_read
        peer.process = spawn_daemon(words, os.environ, lifeline=lifeline, output=peer.log)
        peer.exit_code, peer.planned_exit = None, False
        peer.starts += 1

    def stop_all(self, grace_s: float) -> None:
        """Everybody gone: SIGCONT, SIGTERM, the grace, then SIGKILL. Waits for each."""
        running = [peer for peer in self.peers if peer.is_running]
        for peer in running:
            peer.signal(signal.SIGCONT)
            peer.signal(signal.SIGTERM)
        for peer in running:
            assert peer.process is not None
            try:
                peer.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                grace_s = 0.1  # it was the same grace for all of them
                peer.signal(signal.SIGKILL)
                peer.process.wait()
            peer.poll()

    def kill_all(self) -> None:
        """At once, and with all that they started: a worker ends with its daemon."""
        for peer in self.peers:
            peer.signal(signal.SIGKILL)
        for peer in self.peers:
            if peer.process is not None:
                peer.process.wait()
                peer.poll()

    def close(self) -> None:
        os.close(self._lifeline_read)
        os.close(self._lifeline_write)
