"""What goes wrong in a run, and when: drawn from the seed, written down, done to the cluster.

The options are drawn too ("swarm testing"): each kind of fault is in a run or not, and how often it
strikes differs from run to run, so that one run is all partitions and another all crashes. A fault
is a line that can be printed, and a plan is what is needed to do it all again.

`Cluster.disturb` is told whom a fault excuses: a checker holds that nobody else is held for dead.
Short pauses, broken links, slow or clogged paths excuse nobody; a swarm has to bear those.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.liars import LIES, make_liar
from swarmd.sim.network import NetworkProfile

KIND_CHANCE = 0.4
"""That a kind of fault is in a run at all."""
ENTRIES = 3
"""Peers whose addresses a (re)starting peer knows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to the swarm."""

    at_s: float
    kind: str
    who: tuple[int, ...]
    for_s: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        names = ",".join(f"p{number}" for number in self.who)
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.at_s:7.2f} s  {self.kind} {names}{lasting}{detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """What is given rather than drawn. None: drawn."""

    rtt_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    loss: float | None = None
    """Links broken, of all links, in a second."""
    kill: int | None = None


def draw_profile(world: World, options: FaultOptions) -> NetworkProfile:
    """The network of this run."""
    rng = world.rng_for("profile")
    rtt_s = _log_uniform(rng, 0.002, 0.25)
    bandwidth = _log_uniform(rng, 250e3, 100e6)
    return NetworkProfile(
        delay_s=(rtt_s if options.rtt_s is None else options.rtt_s) / 2,
        jitter=rng.choice((0.0, 0.1, 0.5)),
        bandwidth_bytes_per_s=options.bandwidth_bytes_per_s or bandwidth,
        dial_timeout_s=rng.uniform(2.0, 5.0),
        stall_s=rng.uniform(8.0, 15.0),
    )


def draw_clocks(cluster: Cluster) -> None:
    """Some clocks run fast or slow, by up to two percent."""
    rng = cluster.world.rng_for("clocks")
    for peer in cluster.peers:
        peer.clock_rate = rng.choice((1.0, 1.0, rng.uniform(0.98, 1.02)))


class FaultPlan:
    """The faults of one run between `start_s` and `end_s`."""

    def __init__(
        self,
        cluster: Cluster,
        limits: MembershipLimits,
        options: FaultOptions,
        start_s: float,
        end_s: float,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._rng = cluster.world.rng_for("faults")
        self._start_s = start_s
        self._end_s = end_s
        self._cuts: set[tuple[int, int]] = set()
        self.faults: list[Fault] = []
        kinds: list[tuple[str, Callable[[], None]]] = [
            ("crash", self._draw_crashes),
            ("pause", self._draw_pauses),
            ("partition", self._draw_partitions),
            ("break_link", self._draw_broken_links),
            ("clog", self._draw_clogs),
            ("slow_path", self._draw_slow_paths),
            ("leave", self._draw_leaves),
            ("liar", self._draw_liars),
        ]
        for kind, draw in kinds:
            is_given = kind == "crash" and options.kill is not None
            is_given |= kind == "break_link" and options.loss is not None
            if is_given or self._rng.random() < KIND_CHANCE:
                draw()
        if options.kill is not None:
            self.faults = [fault for fault in self.faults if fault.kind != "crash"]
            self._kill(options.kill)
        if options.loss is not None:
            self.faults = [fault for fault in self.faults if fault.kind != "break_link"]
            self._lose(options.loss)
        self.faults.sort(key=lambda fault: (fault.at_s, fault.kind, fault.who))

    def arm(self) -> None:
        """Have every fault happen when its time comes."""
        for fault in self.faults:
            self._cluster.world.at(fault.at_s, self.strike, fault)

    def heal(self) -> None:
        """End everything that lasts. Who has crashed for good stays away; liars go on lying."""
        for source, target in sorted(self._cuts):
            self._cluster.network.heal(source, target)
        self._cuts.clear()
        for peer in self._cluster.peers:
            if peer.is_paused:
                self._cluster.resume(peer.number)

    # ------------------------------------------------------------------------------------- drawing

    def _add(self, kind: str, who: tuple[int, ...], for_s: float = 0.0, detail: str = "") -> None:
        at_s = self._rng.uniform(self._start_s, self._end_s)
        self.faults.append(Fault(at_s, kind, who, for_s, detail))

    def _anybody(self) -> int:
        return self._rng.randrange(len(self._cluster.peers))

    def _pair(self) -> tuple[int, int]:
        a, b = self._rng.sample(range(len(self._cluster.peers)), 2)
        return a, b

    def _draw_crashes(self) -> None:
        for _ in range(self._rng.randint(1, max(1, len(self._cluster.peers) // 3))):
            for_s = self._rng.choice((0.5, 2.0, self._rng.uniform(1.0, 20.0), 1e6))
            detail = self._rng.choice(("", "", "host too", "disk lost"))
            self._add("crash", (self._anybody(),), for_s, detail)

    def _draw_pauses(self) -> None:
        for _ in range(self._rng.randint(1, 4)):
            short_s = self._rng.uniform(0.1, self._limits.dead_after_s / 2)
            long_s = self._rng.uniform(0.5, 2.5) * self._limits.dead_after_s
            self._add("pause", (self._anybody(),), self._rng.choice((short_s, short_s, long_s)))

    def _draw_partitions(self) -> None:
        for _ in range(self._rng.randint(1, 2)):
            count = len(self._cluster.peers)
            mode = self._rng.choice(("halves", "isolate", "uniform"))
            size = {"halves": count // 2, "isolate": 1}.get(mode, self._rng.randint(1, count - 1))
            side = tuple(sorted(self._rng.sample(range(count), size)))
            detail = self._rng.choice(("both ways", "both ways", "outwards"))
            self._add("partition", side, self._rng.uniform(2.0, 30.0), detail)

    def _draw_broken_links(self) -> None:
        for _ in range(self._rng.randint(1, 30)):
            self._add("break_link", self._pair())

    def _draw_clogs(self) -> None:
        for _ in range(self._rng.randint(1, 10)):
            self._add("clog", self._pair(), self._rng.uniform(0.5, 6.0))

    def _draw_slow_paths(self) -> None:
        for _ in range(self._rng.randint(1, 5)):
            extra_s = self._rng.uniform(0.1, 0.4)
            self._add("slow_path", self._pair(), self._rng.uniform(5.0, 30.0), f"{extra_s:.2f}")

    def _draw_leaves(self) -> None:
        count = self._rng.randint(1, max(1, len(self._cluster.peers) // 3))
        who = tuple(sorted(self._rng.sample(range(len(self._cluster.peers)), count)))
        self._add("leave", who, self._rng.choice((3.0, 15.0, 1e6)))

    def _draw_liars(self) -> None:
        for number in sorted(
            self._rng.sample(range(len(self._cluster.peers)), self._rng.randint(1, 2))
        ):
            self._add("lie", (number,), 0.0, self._rng.choice(sorted(LIES)))

    def _kill(self, count: int) -> None:
        for number in sorted(self._rng.sample(range(len(self._cluster.peers)), count)):
            self._add("crash", (number,), 1e6)

    def _lose(self, loss: float) -> None:
        links = len(self._cluster.peers) * self._limits.rings
        for _ in range(round(loss * links * (self._end_s - self._start_s))):
            self._add("break_link", self._pair())

    # ------------------------------------------------------------------------------------ striking

    def strike(self, fault: Fault) -> None:
        """Do it now."""
        getattr(self, "_strike_" + fault.kind)(fault)

    def _strike_crash(self, fault: Fault) -> None:
        number = fault.who[0]
        cluster = self._cluster
        if not cluster.peers[number].is_running or len(cluster.running()) <= 2:
            return
        cluster.crash(
            number, silently=fault.detail == "host too", keep_disk=fault.detail != "disk lost"
        )
        cluster.disturb((number,), min(fault.for_s, 1e6) + self._limits.dead_after_s)
        if fault.for_s < 1e6:
            cluster.world.after(fault.for_s, self._restart, number)

    def _restart(self, number: int) -> None:
        if not self._cluster.peers[number].is_running:
            self._cluster.start(number, self.entries_for(number))

    def entries_for(self, number: int) -> list[int]:
        others = [peer.number for peer in self._cluster.peers if peer.number != number]
        return self._rng.sample(others, min(ENTRIES, len(others)))

    def _strike_pause(self, fault: Fault) -> None:
        number = fault.who[0]
        self._cluster.pause(number)
        self._cluster.world.after(fault.for_s, self._cluster.resume, number)
        if fault.for_s > self._limits.dead_after_s / 2:
            self._cluster.disturb((number,), fault.for_s + self._limits.dead_after_s)

    def _strike_partition(self, fault: Fault) -> None:
        inside = set(fault.who)
        pairs = []
        for a in sorted(inside):
            for b in range(len(self._cluster.peers)):
                if b not in inside:
                    pairs.append((a, b))
                    if fault.detail == "both ways":
                        pairs.append((b, a))
        for source, target in pairs:
            self._cluster.network.cut(source, target)
            self._cuts.add((source, target))
        self._cluster.world.after(fault.for_s, self._heal_cut, pairs)
        self._excuse_all(fault.for_s)

    def _heal_cut(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            if (source, target) in self._cuts:
                self._cuts.discard((source, target))
                self._cluster.network.heal(source, target)

    def _excuse_all(self, for_s: float) -> None:
        until_s = self._cluster.world.now_s + for_s + 2 * self._limits.dead_after_s
        self._cluster.disturbed_until_s = max(self._cluster.disturbed_until_s, until_s)

    def _strike_break_link(self, fault: Fault) -> None:
        self._cluster.network.break_link(*fault.who)

    def _strike_clog(self, fault: Fault) -> None:
        a, b = fault.who
        self._cluster.network.clog(a, b, fault.for_s)

    def _strike_slow_path(self, fault: Fault) -> None:
        a, b = fault.who
        self._cluster.network.slow(a, b, float(fault.detail))
        self._cluster.world.after(fault.for_s, self._cluster.network.slow, a, b, 0.0)

    def _strike_leave(self, fault: Fault) -> None:
        cluster = self._cluster
        for number in fault.who:
            if cluster.peers[number].answers and len(cluster.running()) > 2:
                cluster.command(number, "leave")
                cluster.world.after(1.0, cluster.crash, number)
                cluster.disturb((number,), fault.for_s + 1.0 + self._limits.dead_after_s)
                if fault.for_s < 1e6:
                    cluster.world.after(fault.for_s + 1.0, self._restart, number)

    def _strike_lie(self, fault: Fault) -> None:
        make_liar(self._cluster, fault.who[0], fault.detail)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())
