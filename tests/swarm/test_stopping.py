"""How a daemon that trains ends: in order, at once, or struck down; and that nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from daemons import Daemon, Daemons, daemons

from swarmd.events_log import read_events
from swarmd.home import home_at
from swarmd.home_lock import is_held

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]


def step(swarm: Daemons, name: str) -> int:
    found: int = swarm.status(name)["progress"]["inner_step"]
    return found


def goes_on(swarm: Daemons, name: str) -> None:
    """Of a daemon that has just begun: once it has something to count from."""
    swarm.wait(f"{name} holds a stage", lambda: swarm.status(name)["state"] == "training")
    before = step(swarm, name)
    swarm.wait(f"{name} gets on", lambda: step(swarm, name) > before)


def children_of(peer: Daemon) -> list[psutil.Process]:
    assert peer.process is not None
    found: list[psutil.Process] = psutil.Process(peer.process.pid).children(recursive=True)
    return found


def test_struck_worker_struck_daemon_and_two_signals(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=2, peers_min=2, batch_tokens=1024) as swarm:
        first = swarm.start("p0", first=True)
        second = swarm.start("p1", via="p0")
        swarm.wait("both train", lambda: min(step(swarm, "p0"), step(swarm, "p1")) >= 1)
        worker_is_replaced(swarm, first)
        daemon_leaves_nothing(swarm, second)
        first_signal_drains_and_second_stops(swarm, first, second)


def worker_is_replaced(swarm: Daemons, peer: Daemon) -> None:
    (worker,) = children_of(peer)
    worker.kill()

    def told() -> bool:
        events = read_events(peer.home / "state" / "events.jsonl")
        return any(event["event"] == "worker_died" for event in events)

    swarm.wait("the worker's end is an event", told)
    swarm.wait("there is another", lambda: children_of(peer) and children_of(peer) != [worker])
    goes_on(swarm, peer.name)
    status = swarm.status(peer.name)
    assert status["resources"]["worker_restarts"] == 1
    assert status["faults"]["last"]["code"]
    assert status["time"]["by_reason"]["worker_died"] > 0.0, "its seconds have a reason"


def daemon_leaves_nothing(swarm: Daemons, peer: Daemon) -> None:
    """The daemon alone is killed: what it started goes with it, and its home is free."""
    (worker,) = children_of(peer)
    peer_id = swarm.id(peer.name)
    assert peer.process is not None
    os.kill(peer.process.pid, signal.SIGKILL)
    peer.process.wait()
    swarm.wait("its worker is gone", lambda: not worker.is_running())
    assert not is_held(home_at(peer.home))
    swarm.start(peer.name)
    swarm.wait("it is back as itself", lambda: swarm.status(peer.name)["peer"]["id"] == peer_id)
    goes_on(swarm, peer.name)


def first_signal_drains_and_second_stops(swarm: Daemons, peer: Daemon, frozen: Daemon) -> None:
    """A neighbour that is frozen keeps what is under way from ending, so that there is time."""
    (worker,) = children_of(peer)
    frozen.signal(signal.SIGSTOP)
    assert peer.process is not None
    os.kill(peer.process.pid, signal.SIGTERM)
    swarm.wait("it tells of its drain", lambda: peer.said().count("draining: ") >= 2)
    assert "a second signal stops at once" in peer.said()
    os.kill(peer.process.pid, signal.SIGTERM)
    assert peer.process.wait(60) == 143
    swarm.wait("its worker is gone", lambda: not worker.is_running())
    home = home_at(peer.home)
    assert not is_held(home)
    assert not home.control_socket.exists()
    assert "Traceback" not in peer.said()
