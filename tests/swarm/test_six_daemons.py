"""Six daemons on loopback, three stages, nobody deals them out: what the coordinator promises.

One story, since six daemons with their workers are heavy. Each chapter waits for what must become
true and prints how long it took; the seconds of a machine at rest are in docs/lab.md.

    python -m pytest -q -s --slow tests/swarm/test_six_daemons.py
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from daemons import Daemons, daemons

from swarmd.json_record import unix_s

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]
LIMIT_S = 300.0
"""For each thing, on however crowded a machine."""
FROZEN_S = 20.0


class Story:
    def __init__(self, swarm: Daemons) -> None:
        self.swarm = swarm
        self.names: list[str] = []
        """Those that should be there, in the order in which they came."""

    def takes(self, what: str, condition: Callable[[], Any], since_s: float) -> None:
        self.swarm.wait(what, condition, LIMIT_S)
        print(f"{time.monotonic() - since_s:7.2f} s  {what}")

    def join(self, name: str, **how: Any) -> None:
        self.swarm.start(name, **how)
        self.names.append(name)

    def kill(self, *names: str) -> float:
        """At the same instant. Returns when, by the clock of the events."""
        begun_s = time.time()  # others may tell of it before the process is reaped
        for name in names:
            self.swarm.kill(name)
            self.names.remove(name)
        return begun_s

    def stage_of(self, name: str) -> int:
        maps, own = self.swarm.map_of(self.names[0]), self.swarm.id(name)
        return next(stage for stage, peers in enumerate(maps) if own in peers)

    def of_stage(self, stage: int) -> list[str]:
        return [name for name in self.names if self.stage_of(name) == stage]

    def all_agree(self) -> bool:
        return self.swarm.agree(self.names)

    def told(self, name: str, event: str, about: str, after_s: float) -> float | None:
        """When that peer first told of it, after that moment; None: it has not."""
        file = self.swarm.peers[name].home / "state" / "events.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            at_s = unix_s(found["at"])
            if found["event"] == event and found.get("peer") == about and at_s >= after_s:
                return at_s
        return None

    def all_told(self, event: str, about: str, after_s: float, names: Iterable[str] = ()) -> None:
        """Everybody (of `names`) has told of it; prints when the last one did."""
        by = list(names) or list(self.names)

        def last() -> float | None:
            at_s = [self.told(name, event, about, after_s) for name in by]
            known = [moment for moment in at_s if moment is not None]
            return max(known) if len(known) == len(by) else None

        at_s: float = self.swarm.wait(f"{event} by all", last, LIMIT_S)
        print(f"{at_s - after_s:7.2f} s  {event} everywhere")


def test_what_six_daemons_on_three_stages_bear(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=3, peers_min=7, time_scale="wan") as swarm:
        story = Story(swarm)
        story.join("p0", first=True)
        for number in range(1, 6):
            story.join(f"p{number}", via="p0")
        begun_s = time.monotonic()
        story.takes("all stages are manned, from the last start", story.all_agree, begun_s)
        restart(story)
        freeze(story)
        founder_dies(story)
        stage_is_lost_and_manned_again(story)
        training_is_routed_around_a_death(story)


def restart(story: Story) -> None:
    """IDEN-01: SIGKILL, and the same key again at once."""
    swarm, name = story.swarm, "p4"
    own = swarm.id(name)
    before = swarm.entries("p0")[own]["incarnation"]
    swarm.kill(name)
    begun_s = time.monotonic()
    swarm.start(name)

    def is_back() -> bool:
        entries = [swarm.entries(other)[own] for other in story.names if other != name]
        return all(e["incarnation"] > before and e["liveness"] == "alive" for e in entries)

    story.takes("restarted peer is known to all in its new life", is_back, begun_s)
    story.takes(
        "one entry for each, no ghost",
        lambda: all(len(swarm.entries(other)) == 6 for other in story.names),
        begun_s,
    )
    story.takes("and holds a stage again", story.all_agree, begun_s)


def freeze(story: Story) -> None:
    """MEMB-04 b, IDEN-04: suspect, dead in time, and back with a new life."""
    swarm, name = story.swarm, "p3"
    own = swarm.id(name)
    others = [other for other in story.names if other != name]
    before = swarm.entries("p0")[own]["incarnation"]
    stopped_s, begun_s = time.time(), time.monotonic()
    swarm.peers[name].signal(signal.SIGSTOP)
    try:
        story.all_told("peer_suspect", own, stopped_s, others)
        story.all_told("peer_dead", own, stopped_s, others)
        swarm.wait("it was frozen for long", lambda: time.monotonic() - begun_s >= FROZEN_S)
    finally:
        swarm.peers[name].signal(signal.SIGCONT)
    begun_s = time.monotonic()

    def is_back() -> bool:
        entries = [swarm.entries(other)[own] for other in story.names]
        return all(e["incarnation"] > before and e["liveness"] == "alive" for e in entries)

    story.takes("thawed peer is back under a higher incarnation", is_back, begun_s)
    story.takes("one map for all again", story.all_agree, begun_s)
    assert swarm.peers[name].is_running


def founder_dies(story: Story) -> None:
    """MEMB-01: nothing happens, and others' links lead in."""
    swarm = story.swarm
    own = swarm.id("p0")
    story.all_told("peer_dead", own, story.kill("p0"))
    story.takes("all stages are manned without the founder", story.all_agree, time.monotonic())
    story.join("p6", via="p2")
    story.takes("a new peer is in by another's link", story.all_agree, time.monotonic())


def stage_is_lost_and_manned_again(story: Story) -> None:
    """STAG-01 with peers to spare, before anything was trained: who moves begins from the seed."""
    swarm = story.swarm
    lost = min(range(3), key=lambda stage: len(story.of_stage(stage)))
    victims = story.of_stage(lost)
    ids = [swarm.id(name) for name in victims]
    begun_s = time.monotonic()
    killed_s = story.kill(*victims)
    for own in ids:
        story.all_told("peer_dead", own, killed_s)
    story.takes(f"stage {lost} is manned from a surplus peer", story.all_agree, begun_s)


def training_is_routed_around_a_death(story: Story) -> None:
    """MEMB-04 a: seven peers begin to train; one of two replicas is killed."""
    swarm = story.swarm
    for name in ("p7", "p8", "p9"):
        story.join(name, via=story.names[0])

    def done() -> dict[str, int]:
        return {name: swarm.status(name)["contribution"]["micro_batches"] for name in story.names}

    story.takes("seven train", lambda: min(done().values()) >= 1, time.monotonic())
    doubled = next(stage for stage in (1, 2) if len(story.of_stage(stage)) >= 2)
    victim, *replicas = story.of_stage(doubled)
    before, own = done(), swarm.id(victim)
    begun_s = time.monotonic()
    killed_s = story.kill(victim)
    story.all_told("peer_suspect", own, killed_s)
    story.takes(
        f"work of stage {doubled} goes on with {' and '.join(replicas)}",
        lambda: all(done()[name] > before[name] for name in replicas),
        begun_s,
    )
    faults = [swarm.status(name)["faults"] for name in story.names]
    print("recovery_s_max", [found["recovery_s_max"] for found in faults])
    assert all(found["lost_micro_batches"] == 0 for found in faults)
