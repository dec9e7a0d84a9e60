"""A swarm of real daemons on a run file of one's own: for what `swarmd local` has no flag for.

Processes, homes and signals are those of swarmd/cli/local_swarm; here is only how a test talks to
them. Run files may leave `time_scale` at its default: peers then allow each other the times of the
internet, and a busy machine does not make them suspect each other.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmd.cli.local_swarm import control
from swarmd.cli.local_swarm.processes import PeerProcess, Processes
from swarmd.home import home_at

LIMIT_S = 900.0
"""Of every wait: a hang must end some time, a slow machine is no fault."""
STOP_GRACE_S = 60.0
ROUND_EVENTS = ("round_committed", "round_partial", "round_skipped")


class RealSwarm:
    """Peer n is `pN` on stage n % stages."""

    def __init__(self, folder: Path, run_file: str, *, limit_s: float = LIMIT_S) -> None:
        self.folder = folder
        self.processes = Processes()
        self._limit_s = limit_s
        folder.mkdir(parents=True, exist_ok=True)
        self._run_file = folder / "run.toml"
        self._run_file.write_text(run_file, encoding="utf-8")

    def start(self, peers: int, stages: int, *flags: str) -> None:
        """Found the swarm with the first peer and join it with the others."""
        first = self._add(stages, flags)
        self.processes.start(first, [str(self._run_file), "--first"])
        link = self.wait_for(lambda: control.link_in(self.status(0)), "a run link")
        for _ in range(1, peers):
            self.processes.start(self._add(stages, flags), [link])

    def _add(self, stages: int, flags: Sequence[str]) -> PeerProcess:
        number = len(self.processes.peers)
        arguments = ["--name", f"p{number}", "--stage", str(number % stages)]
        arguments += ["--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1"]
        arguments += ["--lan-discovery", "off", *flags]
        peer = PeerProcess(number, self.folder / f"p{number}", number % stages, arguments)
        self.processes.peers.append(peer)
        return peer

    # ------------------------------------------------------------------------------------- looking

    def status(self, number: int) -> dict[str, Any] | None:
        return control.status_of(self.processes.peers[number].home)

    def last_status(self, number: int) -> dict[str, Any]:
        """What it left behind, once it has ended."""
        found = control.last_status_of(self.processes.peers[number].home)
        assert found is not None, f"p{number} left no status"
        return found

    def id_of(self, number: int) -> str:
        told = self.wait_for(lambda: self.status(number), f"the status of p{number}")
        identity: str = told["peer"]["id"]
        return identity

    def events(self, number: int, *names: str) -> list[dict[str, Any]]:
        """From its own log: whole, and there without the daemon too."""
        path = home_at(self.processes.peers[number].home).events_file
        if not path.exists():
            return []
        found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return [event for event in found if not names or event["event"] in names]

    def rounds(self, number: int) -> list[dict[str, Any]]:
        """The `data` of every round that has ended there, with `round` and `at`."""
        ended = self.events(number, *ROUND_EVENTS)
        return [event["data"] | {"round": event["round"], "at": event["at"]} for event in ended]

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true answer. Ends too when a peer that nobody ended is gone."""
        deadline_s = time.monotonic() + self._limit_s
        while time.monotonic() < deadline_s:
            found = condition()
            if found:
                return found
            for peer in self.processes.peers:
                code = peer.poll()
                assert peer.planned_exit or code in (None, 0), f"{peer.name} ended with {code}"
            time.sleep(0.1)
        raise AssertionError(f"never: {what}")

    def wait_until_ended(self, *numbers: int) -> None:
        peers = [self.processes.peers[number] for number in numbers]
        self.wait_for(lambda: not any(peer.is_running for peer in peers), "the end of the run")

    # -------------------------------------------------------------------------------------- faults

    def freeze(self, number: int) -> None:
        """The daemon and its worker."""
        self.processes.peers[number].planned_exit = True
        control.signal_group(self.processes.peers[number], signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        control.signal_group(self.processes.peers[number], signal.SIGCONT)

    def kill(self, number: int) -> None:
        self.processes.peers[number].planned_exit = True
        control.signal_group(self.processes.peers[number], signal.SIGKILL)

    def leave(self, number: int) -> None:
        """As Ctrl-C: it drains, says goodbye and ends with 0."""
        self.processes.peers[number].planned_exit = True
        self.processes.peers[number].signal(signal.SIGTERM)

    def close(self) -> None:
        for peer in self.processes.peers:
            control.signal_group(peer, signal.SIGCONT)
        self.processes.stop_all(STOP_GRACE_S)
        self.processes.close()


@contextmanager
def real_swarm(folder: Path, run_file: str, **settings: Any) -> Iterator[RealSwarm]:
    """Whatever happens, nothing is left running."""
    swarm = RealSwarm(folder, run_file, **settings)
    try:
        yield swarm
    finally:
        swarm.close()
