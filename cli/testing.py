"""A real swarm on loopback for tests of whoever builds on swarmd: separate processes, real sockets.

    swarm = Swarm(folder, peers=2, stages=1)
    swarm.wait("training")
    swarm.kill("p1")
    swarm.wait("round=2", "p0")

Everything is asked as a stranger would: the control socket's answers, and signals. The peers are
named p0, p1 ..., each with a home below `folder`; peer n asks for stage n % stages. Every wait is
for a condition and has a limit, and `close` leaves no process behind. The fixture around it is in
pytest_plugin.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swarmd.cli.conditions import parse_condition
from swarmd.cli.local_swarm import control
from swarmd.cli.local_swarm.processes import PeerProcess, Processes
from swarmd.home import home_at

LIMIT_S = 300.0
"""Of every wait, unless told otherwise."""
LOOK_S = 0.1
STOP_GRACE_S = 30.0
LOG_LINES = 60
RUN_FILE = """\
[run]
name = "test"
preset = "{preset}"
stages = {stages}
total_steps = {steps}
inner_steps = {inner_steps}
peers_min = {peers}
time_scale = "local"

[test]
allow_injection = true
"""


class SwarmFailed(AssertionError):
    """What a test waited for never came, or a peer ended that nobody had ended."""


class Swarm:
    """See the header. run_file: a run of your own instead of the one that the other values make."""

    def __init__(
        self,
        folder: Path,
        *,
        peers: int = 2,
        stages: int = 1,
        preset: str = "tiny",
        steps: int = 1000,
        inner_steps: int = 20,
        run_file: str | None = None,
        flags: Sequence[str] = (),
        limit_s: float = LIMIT_S,
    ) -> None:
        if not 1 <= stages <= peers:
            raise ValueError(f"{peers} peers cannot hold {stages} stages")
        self.folder = folder
        self.limit_s = limit_s
        self._stages, self._flags = stages, tuple(flags)
        self._processes = Processes()
        folder.mkdir(parents=True, exist_ok=True)
        self._run_file = folder / "run.toml"
        text = RUN_FILE.format(
            preset=preset, stages=stages, steps=steps, inner_steps=inner_steps, peers=peers
        )
        self._run_file.write_text(run_file or text, encoding="utf-8")
        try:
            self._processes.start(self._new_peer(), [str(self._run_file), "--first"])
            for _ in range(1, peers):
                self.join()
        except BaseException:
            self.close()
            raise

    # --------------------------------------------------------------------------------- who is there

    @property
    def names(self) -> list[str]:
        return [peer.name for peer in self._processes.peers]

    @property
    def running(self) -> list[str]:
        return [peer.name for peer in self._processes.peers if peer.is_running]

    @property
    def link(self) -> str:
        """A run link with which anybody on this machine can join."""
        found: str = self.wait_for("a run link", self._link)
        return found

    def home(self, name: str) -> Path:
        """For `swarmd --home`."""
        return self._peer(name).home

    def status(self, name: str) -> dict[str, Any]:
        """The swarmd.status object; what the peer left behind, once it has ended."""
        home = self.home(name)
        found = control.status_of(home) or control.last_status_of(home)
        return dict(found) if found is not None else {}

    def log(self, name: str, lines: int = LOG_LINES) -> str:
        """The end of what the peer said and logged."""
        peer = self._peer(name)
        parts = []
        for file in (peer.log, home_at(peer.home).log_file):
            if file.exists():
                text = file.read_text(encoding="utf-8", errors="replace")
                parts.append("\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts)

    # -------------------------------------------------------------------------------------- waiting

    def wait(self, condition: str, *names: str, limit_s: float | None = None) -> None:
        """Until it holds for these peers, or for all that run. As `swarmd wait --for`."""
        parsed = parse_condition(condition)

        def holds() -> bool:
            wanted = names or tuple(self.running)
            statuses = [control.status_of(self.home(name)) for name in wanted]
            return bool(wanted) and all(
                status is not None and parsed.judge(status) == "holds" for status in statuses
            )

        self.wait_for(condition, holds, limit_s=limit_s)

    def wait_for_coverage(self, limit_s: float | None = None) -> None:
        """Until every stage has a peer, in everybody's view."""

        def is_covered() -> bool:
            for name in self.running:
                held = (control.status_of(self.home(name)) or {}).get("stage_map") or []
                if len(held) < self._stages or not all(entry["alive"] for entry in held):
                    return False
            return bool(self.running)

        self.wait_for("every stage has a peer", is_covered, limit_s=limit_s)

    def wait_for(self, what: str, found: Callable[[], Any], *, limit_s: float | None = None) -> Any:
        """The first true answer. Fails early when a peer that nobody ended is gone."""
        deadline_s = time.monotonic() + (limit_s or self.limit_s)
        while time.monotonic() < deadline_s:
            answer = found()
            if answer:
                return answer
            for peer in self._processes.peers:
                code = peer.poll()
                if code not in (None, 0) and not peer.planned_exit:
                    raise SwarmFailed(f"{peer.name} ended with {code} while waiting for: {what}")
            time.sleep(LOOK_S)
        told = {name: (self.status(name).get("reason") or {}).get("text") for name in self.names}
        raise SwarmFailed(f"never: {what}; {told}")

    # --------------------------------------------------------------------------------------- faults

    def kill(self, name: str) -> None:
        """SIGKILL, of the daemon and its worker."""
        peer = self._peer(name)
        peer.planned_exit = True
        control.signal_group(peer, signal.SIGKILL)
        if peer.process is not None:
            peer.process.wait()

    def freeze(self, name: str) -> None:
        """SIGSTOP, of the daemon and its worker."""
        control.signal_group(self._peer(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        control.signal_group(self._peer(name), signal.SIGCONT)

    def stop(self, name: str) -> int:
        """SIGTERM: it drains and leaves. Returns its exit status."""
        peer = self._peer(name)
        peer.planned_exit = True
        peer.signal(signal.SIGTERM)
        assert peer.process is not None, f"{name} was never started"
        return peer.process.wait(self.limit_s)

    def restart(self, name: str) -> None:
        """Start it again, with its home; it finds the others by itself."""
        peer = self._peer(name)
        if peer.is_running:
            raise ValueError(f"{name} is running")
        self._processes.start(peer, [self.link])

    def join(self) -> str:
        """One more peer; returns its name."""
        link = self.link
        peer = self._new_peer()
        self._processes.start(peer, [link])
        return peer.name

    def close(self) -> None:
        """Everybody gone."""
        for peer in self._processes.peers:
            control.signal_group(peer, signal.SIGCONT)
        self._processes.stop_all(STOP_GRACE_S)
        self._processes.close()

    # --------------------------------------------------------------------------------------- inside

    def _new_peer(self) -> PeerProcess:
        number = len(self._processes.peers)
        arguments = ["--name", f"p{number}", "--stage", str(number % self._stages)]
        arguments += ["--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1"]
        arguments += ["--lan-discovery", "off", *self._flags]
        peer = PeerProcess(number, self.folder / f"p{number}", number % self._stages, arguments)
        self._processes.peers.append(peer)
        return peer

    def _peer(self, name: str) -> PeerProcess:
        for peer in self._processes.peers:
            if peer.name == name:
                return peer
        raise KeyError(f"there is no {name}, only {', '.join(self.names)}")

    def _link(self) -> str | None:
        for peer in self._processes.peers:
            if peer.is_running:
                link = control.link_in(control.status_of(peer.home))
                if link is not None:
                    return link
        return None
