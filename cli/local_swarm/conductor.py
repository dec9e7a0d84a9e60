"""Runs a local swarm from start to verdict: starts peers, watches them, fires events, stops all.

One thread and one loop. Each turn takes what the peers say, does what came due, and shows it; the
turn's length bounds how late anything is noticed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swarmd.cli.local_swarm import control
from swarmd.cli.local_swarm.events import Event
from swarmd.cli.local_swarm.outcome import PeerEnd
from swarmd.cli.local_swarm.plan import LocalPlan
from swarmd.cli.local_swarm.processes import PeerProcess, Processes
from swarmd.cli.local_swarm.render import reason_of
from swarmd.cli.local_swarm.starvation import Starvation
from swarmd.cli.local_swarm.view import PeerView, SwarmView

TURN_S = 0.25
"""A quarter of a second: the live view's refresh, and how late an event may be."""
START_S_MAX = 60.0
"""From the first peer's start to its run link, and from there to the swarm's first step. Generous:
a slow machine is no fault."""
STALL_S = 30.0
"""Without a step anywhere and no event to come, there is nothing left to wait for. Twice the
`stall_after_s` of local runs, so that the peers' own explanation is there first. Time for which the
machine gave the peers no processor does not count."""
LOOK_S = 5.0
"""After so long without a step it is looked at whether the peers starve."""
SILENT_S_MIN = 5.0
"""A peer that has not answered for so long is named for it, and not for what it waited for then."""
STOP_GRACE_S = 30.0
"""The local `drain_deadline_s` and `stop_grace_s`, and what a busy machine adds."""


class Interrupted(Exception):
    """The user's Ctrl-C, or SIGTERM."""


@dataclass(slots=True)
class EventState:
    event: Event
    at_s: float | None = None
    outcome: str = "not_reached"


@dataclass(slots=True)
class Conductor:
    """One local swarm. `say`: a plain line for people; `show`: the live view, called each turn."""

    plan: LocalPlan
    say: Callable[[float, str], None]
    show: Callable[[float, SwarmView], None]
    processes: Processes = field(default_factory=Processes)
    started_s: float = field(default_factory=time.monotonic)
    view: SwarmView = field(init=False)
    events: list[EventState] = field(init=False)
    timed_out: bool = False
    stalled: bool = False
    worker_restarts: dict[str, int] = field(default_factory=dict)
    training_since_s: float | None = None
    ended_s: float = 0.0
    _told_to_stop: set[int] = field(default_factory=set)
    _waits: dict[int, str] = field(default_factory=dict)
    """What each peer waited for when the command ended."""
    _moved_s: float = 0.0
    _starvation: Starvation | None = None
    _last_step: int = -1

    def __post_init__(self) -> None:
        self.view = SwarmView(self.plan.stages)
        self.events = [EventState(event) for event in self.plan.events]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    # ------------------------------------------------------------------------------------- phases

    def run(self) -> None:
        """Until the run has ended, failed, or the user has had enough. Peers may still run."""
        self._start_peers()
        self.say(self.elapsed_s, self._joined_line())
        self._move()
        while not self._is_over():
            time.sleep(TURN_S)
            self._turn()

    def hold(self) -> None:
        """Keep the swarm up until a signal."""
        self.say(self.elapsed_s, "target reached; the swarm stays up until Ctrl-C")
        while True:
            time.sleep(TURN_S)
            self._turn()

    def finish(self) -> None:
        """Every peer gone, and what each said last."""
        self.ended_s = self.elapsed_s
        self._told_to_stop = {peer.number for peer in self.processes.peers if peer.is_running}
        for peer in self.processes.peers:
            if peer.is_running:
                self._look_at(peer)
            self._waits[peer.number] = self._waiting_for(peer.number)
        self.processes.stop_all(STOP_GRACE_S)
        for peer in self.processes.peers:
            self._look_at(peer)
        self.processes.close()

    @property
    def tokens_per_s(self) -> float | None:
        """Of the whole swarm, from the first step seen to the end."""
        tokens = self.view.maximum("progress.tokens_total")
        if not tokens or self.training_since_s is None:
            return None
        return tokens / max(1e-3, self.ended_s - self.training_since_s)

    def ends(self) -> list[PeerEnd]:
        return [
            PeerEnd(
                name=peer.name,
                stage=peer.stage,
                exit_code=peer.exit_code,
                planned_exit=peer.planned_exit or peer.number in self._told_to_stop,
                restarted_unasked=bool(self.worker_restarts.get(peer.name)),
                waits=self._waits.get(peer.number, ""),
            )
            for peer in self.processes.peers
        ]

    # -------------------------------------------------------------------------------------- start

    def _start_peers(self) -> None:
        run_file = self.plan.dir / "run.toml"
        first = self._add_peer()
        self.processes.start(first, [str(run_file), "--first"])
        link = self._wait_for_link(first)
        for _ in range(1, self.plan.peers):
            self.processes.start(self._add_peer(), [link])
        control.write_summary(self.plan.dir / "local.json", self.processes.peers, self.view)

    def _add_peer(self) -> PeerProcess:
        number = len(self.processes.peers)
        stage = self.plan.stage_of(number)
        arguments = ["--name", f"p{number}", "--stage", str(stage), "--listen", "127.0.0.1:0"]
        arguments += ["--device", "cpu", "--threads", str(self.plan.threads)]
        arguments += ["--lan-discovery", "off"]
        if self.plan.shape:
            arguments += ["--shape", self.plan.shape]
        if self.plan.hold:
            arguments += ["--stay"]
        for target, spec in self.plan.injections:
            if target == number:
                arguments += ["--inject", spec]
        peer = PeerProcess(number, self.plan.dir / f"p{number}", stage, arguments)
        self.processes.peers.append(peer)
        self.view.peers.append(PeerView(peer.name, stage))
        return peer

    def _wait_for_link(self, peer: PeerProcess) -> str:
        while self.elapsed_s < min(START_S_MAX, self.plan.timeout_s):
            if not peer.is_running:
                raise control.peer_failed_to_start(peer)
            status = control.status_of(peer.home)
            link = control.link_in(status)
            if link:
                return link
            time.sleep(0.05)
        raise control.peer_failed_to_start(peer)

    # --------------------------------------------------------------------------------------- turns

    def _turn(self) -> None:
        for peer in self.processes.peers:
            self._look_at(peer)
        self._fire_events()
        self._note_progress()
        self.show(self.elapsed_s, self.view)

    def _look_at(self, peer: PeerProcess) -> None:
        view = self.view.peers[peer.number]
        view.is_running = peer.is_running
        if peer.frozen_until_s is not None and self.elapsed_s >= peer.frozen_until_s:
            control.signal_group(peer, signal.SIGCONT)
            peer.frozen_until_s = None
        is_asked = view.is_running and peer.frozen_until_s is None
        if is_asked:
            status = control.status_of(peer.home)
        else:
            status = control.last_status_of(peer.home) if not view.is_running else None
        if status is not None:
            view.status, view.silent_since_s = status, None
            restarts = view.get("resources.worker_restarts") or 0
            self.worker_restarts[peer.name] = restarts
        elif is_asked and view.silent_since_s is None:
            view.silent_since_s = self.elapsed_s

    def _note_progress(self) -> None:
        progress = max((peer.step for peer in self.view.peers), default=0)
        micro_batches = self.view.sum("contribution.micro_batches") or 0
        if progress + micro_batches != self._last_step:
            self._last_step = progress + micro_batches
            self._move()
        training = any(peer.get("state") == "training" for peer in self.view.peers)
        if training and self.training_since_s is None:
            self.training_since_s = self.elapsed_s

    def _is_over(self) -> bool:
        running = [peer for peer in self.processes.peers if peer.is_running]
        if not running or self._all_complete():
            return True
        if any(
            not peer.is_running and self._is_unasked_death(peer) for peer in self.processes.peers
        ):
            return True
        self.timed_out = self.elapsed_s >= self.plan.timeout_s
        pending = any(
            state.outcome == "not_reached" and state.event.at_s is not None for state in self.events
        )
        thawing = any(peer.frozen_until_s is not None for peer in self.processes.peers)
        self.stalled = not pending and not thawing and self._stood_still_s() >= self._patience_s
        return self.timed_out or self.stalled

    @property
    def _patience_s(self) -> float:
        return STALL_S if self._last_step > 0 else START_S_MAX

    def _move(self) -> None:
        self._moved_s, self._starvation = self.elapsed_s, None

    def _stood_still_s(self) -> float:
        """Without a step anywhere, though there were processors to take one."""
        still_s = self.elapsed_s - self._moved_s
        if still_s < LOOK_S:
            return still_s
        if self._starvation is None:
            self._starvation = Starvation(peer.pid for peer in self._running() if peer.pid)
        return still_s * (1.0 - self._starvation.share()) if still_s >= STALL_S else still_s

    def _all_complete(self) -> bool:
        """With --hold nobody ends by itself; the run's end is seen in the reasons."""
        reasons = [peer.get("reason.code") for peer in self.view.peers if peer.is_running]
        return self.plan.hold and bool(reasons) and set(reasons) == {"run_complete"}

    def _is_unasked_death(self, peer: PeerProcess) -> bool:
        return not peer.planned_exit and peer.exit_code not in (0, None)

    def _waiting_for(self, number: int) -> str:
        view = self.view.peers[number]
        since_s = view.silent_since_s
        if view.is_running and since_s is not None and self.elapsed_s - since_s >= SILENT_S_MIN:
            return f"has not answered for {self.elapsed_s - since_s:.0f} s"
        code, for_s = view.get("reason.code"), view.get("reason.for_s")
        if code in (None, "training", "run_complete"):
            return ""
        return f"{code} for {for_s:.0f} s" if for_s is not None else reason_of(view)

    def _joined_line(self) -> str:
        by_stage: dict[int, int] = {}
        for peer in self.processes.peers:
            if peer.stage is not None:
                by_stage[peer.stage] = by_stage.get(peer.stage, 0) + 1
        stages = ",".join(f"{stage}:{count}" for stage, count in sorted(by_stage.items()))
        return f"started peers={len(self.processes.peers)} stages={stages}"

    # -------------------------------------------------------------------------------------- events

    def _fire_events(self) -> None:
        for state in self.events:
            if state.outcome != "not_reached":
                continue
            if state.event.is_due(self.elapsed_s, self.view.round, self.view.step):
                state.at_s = round(self.elapsed_s, 2)
                state.outcome = "done" if self._do(state.event) else "failed"
                self.say(self.elapsed_s, f"event={state.event.text!r} {state.outcome}")
                self._move()

    def _do(self, event: Event) -> bool:
        peers = [self.processes.peers[n] for n in event.peers if n < len(self.processes.peers)]
        if len(peers) != len(event.peers):
            return False
        match event.action:
            case "kill":
                return self._end(peers[0], signal.SIGKILL)
            case "leave":
                return self._end(peers[0], signal.SIGTERM)
            case "freeze":
                return self._freeze(peers[0], event.duration_s or 0.0)
            case "restart":
                return self._start_again(peers[0])
            case "join":
                return self._start_again(self._add_peer())
            case "cut":
                return self._cut(event)
            case "inject":
                return peers[0].is_running and control.inject(peers[0].home, event.spec)
            case "heal":
                return all(control.inject(p.home, clear=True) for p in self._running())
        return False

    def _running(self) -> list[PeerProcess]:
        return [peer for peer in self.processes.peers if peer.is_running]

    def _end(self, peer: PeerProcess, number: int) -> bool:
        if not peer.is_running:
            return False
        peer.planned_exit = True
        peer.signal(number)
        return True

    def _freeze(self, peer: PeerProcess, duration_s: float) -> bool:
        if not peer.is_running:
            return False
        control.signal_group(peer, signal.SIGSTOP)
        peer.frozen_until_s = self.elapsed_s + duration_s
        return True

    def _start_again(self, peer: PeerProcess) -> bool:
        if peer.is_running:
            return False
        for other in self._running():
            link = control.link_in(control.status_of(other.home))
            if link and other is not peer:
                self.processes.start(peer, [link])
                return True
        return False

    def _cut(self, event: Event) -> bool:
        ids = {peer.number: self.view.peers[peer.number].get("peer.id") for peer in self._running()}
        done = True
        for side, other in ((event.peers, event.far_side), (event.far_side, event.peers)):
            away = ",".join(ids[n] for n in other if ids.get(n))
            for number in side:
                done &= control.inject(self.processes.peers[number].home, f"cut={away}")
        return done


def leftovers(dir_path: Path) -> list[str]:
    """Sockets and held locks below the homes, once every peer should be gone."""
    found: list[str] = []
    for home in sorted(dir_path.glob("p*")):
        found += [str(path) for path in control.live_runtime_files(home)]
    return found
