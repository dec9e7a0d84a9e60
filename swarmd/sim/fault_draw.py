"""Draws network, clocks and faults from the seed; what the user gave is not drawn.

The options are drawn too ("swarm testing"): each kind of fault is in a run or not, and how often it
strikes differs from run to run, so that one run is all partitions and another all crashes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.faults import FOR_EVER_S, Fault
from swarmd.sim.liars import LIES
from swarmd.sim.network import NetworkProfile

KIND_CHANCE = 0.4
"""That a kind of fault is in a run at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """What is given rather than drawn. None: drawn."""

    rtt_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    loss: float | None = None
    """Share of all links that break in a second."""
    kill: int | None = None
    """So many peers die for good; no other process is touched."""


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


def draw_faults(
    world: World,
    peer_count: int,
    limits: MembershipLimits,
    options: FaultOptions,
    start_s: float,
    end_s: float,
) -> list[Fault]:
    """The faults of one run between `start_s` and `end_s`."""
    draw = _Draw(world.rng_for("faults"), peer_count, limits, start_s, end_s)
    for kind in _KINDS if peer_count > 1 else _KINDS_OF_ONE:
        if draw.rng.random() < KIND_CHANCE:
            getattr(draw, kind)()
    faults = draw.faults
    if options.kill is not None:
        faults = [fault for fault in faults if fault.kind not in ("crash", "leave", "join")]
        faults += draw.kill(options.kill)
    if options.loss is not None and peer_count > 1:
        faults = [fault for fault in faults if fault.kind != "break_link"]
        faults += draw.lose(options.loss)
    return faults


_KINDS = (
    "crashes",
    "pauses",
    "partitions",
    "broken_links",
    "clogs",
    "slow_paths",
    "slow_peers",
    "leaves",
    "joins",
    "lies",
)
_KINDS_OF_ONE = ("crashes", "pauses", "slow_peers")
"""The others need somebody else."""


class _Draw:
    """One method for each kind; each adds a few to `faults`."""

    def __init__(
        self,
        rng: random.Random,
        peer_count: int,
        limits: MembershipLimits,
        start_s: float,
        end_s: float,
    ) -> None:
        self.rng = rng
        self.faults: list[Fault] = []
        self._peers = range(peer_count)
        self._limits = limits
        self._start_s = start_s
        self._end_s = end_s

    def crashes(self) -> None:
        for _ in range(self.rng.randint(1, self._third)):
            away_s = self.rng.choice((0.5, 2.0, self.rng.uniform(1.0, 20.0), FOR_EVER_S))
            detail = self.rng.choice(("", "", "host too", "disk lost"))
            self._add("crash", self._some(1), away_s, detail)

    def pauses(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            short_s = self.rng.uniform(0.1, self._limits.dead_after_s / 2)
            long_s = self.rng.uniform(0.5, 2.5) * self._limits.dead_after_s
            self._add("pause", self._some(1), self.rng.choice((short_s, short_s, long_s)))

    def partitions(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            sizes = (len(self._peers) // 2, 1, self.rng.randint(1, len(self._peers) - 1))
            side = tuple(sorted(self._some(self.rng.choice(sizes))))
            detail = self.rng.choice(("both ways", "outwards"))
            self._add("partition", side, self.rng.uniform(2.0, 30.0), detail)

    def broken_links(self) -> None:
        for _ in range(self.rng.randint(1, 30)):
            self._add("break_link", self._some(2))

    def clogs(self) -> None:
        for _ in range(self.rng.randint(1, 10)):
            self._add("clog", self._some(2), self.rng.uniform(0.5, 6.0))

    def slow_paths(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            extra_s = self.rng.uniform(0.1, 0.4)
            self._add("slow_path", self._some(2), self.rng.uniform(5.0, 30.0), f"{extra_s:.2f}")

    def slow_peers(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            times = self.rng.uniform(1.5, 10.0)
            self._add("slow_peer", self._some(1), self.rng.uniform(5.0, 30.0), f"{times:.1f}")

    def leaves(self) -> None:
        who = tuple(sorted(self._some(self.rng.randint(1, self._third))))
        self._add("leave", who, self.rng.choice((3.0, 15.0, FOR_EVER_S)))

    def joins(self) -> None:
        """Not the founder."""
        count = self.rng.randint(1, self._third)
        self._add("join", tuple(sorted(self.rng.sample(self._peers[1:], count))))

    def lies(self) -> None:
        for number in sorted(self._some(self.rng.randint(1, 2))):
            self._add("lie", (number,), detail=self.rng.choice(sorted(LIES)))

    def kill(self, count: int) -> list[Fault]:
        at_s = [self._moment() for _ in range(count)]
        who = self._some(count)
        return [
            Fault(at, "crash", (number,), FOR_EVER_S) for at, number in zip(at_s, who, strict=True)
        ]

    def lose(self, loss: float) -> list[Fault]:
        links = len(self._peers) * min(len(self._peers) - 1, 2 * self._limits.rings) / 2
        count = round(loss * links * (self._end_s - self._start_s))
        return [Fault(self._moment(), "break_link", self._some(2)) for _ in range(count)]

    @property
    def _third(self) -> int:
        return max(1, len(self._peers) // 3)

    def _some(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.sample(self._peers, count))

    def _moment(self) -> float:
        return self.rng.uniform(self._start_s, self._end_s)

    def _add(self, kind: str, who: tuple[int, ...], for_s: float = 0.0, detail: str = "") -> None:
        self.faults.append(Fault(self._moment(), kind, who, for_s, detail))


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())
