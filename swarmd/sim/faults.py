"""What can go wrong in a run, as values: a fault is a line that can be printed and done again.

A plan is a list of faults with their times; fault_draw.py draws one from the seed, scenarios.py has
written ones. `Cluster.disturb` is told whom a fault excuses: a checker holds that nobody else is
held for dead. Short pauses, broken links, slow or clogged paths excuse nobody; a swarm has to bear
those (but who is silent while liars accuse it may be taken for dead).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.sim.cluster import Cluster
from swarmd.sim.liars import make_liar

FOR_EVER_S = 1e6
ENTRIES = 3
"""Peers whose addresses a (re)starting peer knows."""
GOODBYE_S = 1.0
"""Between a leaving peer's last word and the end of its process."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to the swarm."""

    at_s: float
    kind: str
    """crash, pause, partition, break_link, clog, slow_path, slow_peer, leave, join, lie."""
    who: tuple[int, ...]
    for_s: float = 0.0
    """Until it is over: the process starts again, the path heals."""
    detail: str = ""
    """crash: "host too", "disk lost". partition: "both ways", "outwards". slow_path: seconds on
    top, one way. slow_peer: how many times slower. lie: which."""

    @property
    def name(self) -> str:
        """The kind, told apart as far as a peer can feel it."""
        has_kinds = self.detail and self.kind in ("crash", "partition")
        return f"{self.kind} ({self.detail})" if has_kinds else self.kind

    @property
    def what(self) -> str:
        """For people, but for when."""
        names = ",".join(f"p{number}" for number in self.who)
        lasting = f" for {self.for_s:.1f} s" if 0.0 < self.for_s < FOR_EVER_S else ""
        for_good = " for good" if self.for_s >= FOR_EVER_S else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind} {names}{lasting}{for_good}{detail}"

    def __str__(self) -> str:
        return f"{self.at_s:7.2f} s  {self.what}"


class FaultPlan:
    """Does faults to a cluster when their time comes, and heals what lasts."""

    def __init__(
        self,
        cluster: Cluster,
        limits: MembershipLimits,
        faults: Sequence[Fault],
        note: Callable[[str, str], None] = lambda name, text: None,
    ) -> None:
        """note: takes what is done to the swarm when it is done, as (name, text)."""
        self._note = note
        self._cluster = cluster
        self._limits = limits
        self._rng = cluster.world.rng_for("strikes")
        self._cuts: set[tuple[int, int]] = set()
        self._leaving: set[int] = set()
        self.fired: Counter[str] = Counter()
        """What really happened, by name: nothing can be done to a process that is not there."""
        self.faults = sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.who))

    @property
    def late(self) -> set[int]:
        """Peers that are not there from the beginning."""
        return {number for fault in self.faults if fault.kind == "join" for number in fault.who}

    def arm(self) -> None:
        """Have every fault happen when its time comes."""
        for fault in self.faults:
            self._cluster.world.at(fault.at_s, self.strike, fault)

    def heal(self) -> None:
        """End everything that lasts. Who has crashed for good stays away; liars go on lying."""
        if self._cuts:
            self._heal_cut(sorted(self._cuts))
        for peer in self._cluster.peers:
            if peer.is_paused:
                self._cluster.resume(peer.number)

    def strike(self, fault: Fault) -> None:
        """Do it now."""
        if getattr(self, "_strike_" + fault.kind)(fault):
            self.fired[fault.name] += 1
            self._note("fault", fault.what)
        else:
            self._note("fault_missed", fault.what)

    # ---------------------------------------------------------- processes: True if there was one

    def _strike_crash(self, fault: Fault) -> bool:
        number = fault.who[0]
        cluster = self._cluster
        if not cluster.peers[number].is_running or len(cluster.running()) <= 2:
            return False
        cluster.crash(
            number, silently=fault.detail == "host too", keep_disk=fault.detail != "disk lost"
        )
        cluster.disturb((number,), fault.for_s + self._limits.dead_after_s)
        if fault.for_s < FOR_EVER_S:
            cluster.world.after(fault.for_s, self._start, number)
        return True

    def _strike_join(self, fault: Fault) -> bool:
        """All of them within a tenth of a second."""
        for number in fault.who:
            self._cluster.world.after(self._rng.uniform(0.0, 0.1), self._start, number)
        return True

    def _start(self, number: int) -> None:
        peers = self._cluster.peers
        is_over = any(peer.ended is not None for peer in peers)
        if not peers[number].is_running and not is_over:
            others = [peer.number for peer in peers if peer.is_running]
            others = others or [peer.number for peer in peers if peer.number != number]
            entries = self._rng.sample(others, min(ENTRIES, len(others)))
            staying = [other for other in others if other not in self._leaving]
            if staying and self._leaving.issuperset(entries):
                entries[0] = staying[0]  # a link that names only those who leave leads nowhere
            self._leaving.discard(number)
            self._cluster.start(number, entries)

    def _strike_leave(self, fault: Fault) -> bool:
        cluster = self._cluster
        has_left = False
        for number in fault.who:
            if cluster.peers[number].answers and len(cluster.running()) > 2:
                has_left = True
                self._leaving.add(number)
                cluster.command(number, "leave")
                cluster.world.after(GOODBYE_S, cluster.crash, number)
                away_s = fault.for_s + GOODBYE_S
                cluster.disturb((number,), away_s + self._limits.dead_after_s)
                if fault.for_s < FOR_EVER_S:
                    cluster.world.after(away_s, self._start, number)
        return has_left

    def _strike_pause(self, fault: Fault) -> bool:
        number = fault.who[0]
        if not self._cluster.peers[number].answers:
            return False
        self._cluster.pause(number)
        self._cluster.world.after(fault.for_s, self._cluster.resume, number)
        accusers_lie = any(other.detail == "accuse" for other in self.faults)
        if accusers_lie or fault.for_s > self._limits.dead_after_s / 2:
            self._cluster.disturb((number,), fault.for_s + self._limits.dead_after_s)
        return True

    def _strike_slow_peer(self, fault: Fault) -> bool:
        """Its device, not its process: throttled, or shared with a game."""
        number = fault.who[0]
        self._cluster.set_speed(number, 1.0 / float(fault.detail))
        self._cluster.world.after(fault.for_s, self._cluster.set_speed, number, 1.0)
        return self._cluster.peers[number].is_running

    def _strike_lie(self, fault: Fault) -> bool:
        make_liar(self._cluster, fault.who[0], fault.detail)
        return self._cluster.peers[fault.who[0]].is_running

    # ------------------------------------------------------------ paths: True if a link was there

    def _strike_partition(self, fault: Fault) -> bool:
        """`who` against the rest."""
        inside = set(fault.who)
        outside = [peer.number for peer in self._cluster.peers if peer.number not in inside]
        pairs = [(a, b) for a in sorted(inside) for b in outside]
        if fault.detail == "both ways":
            pairs += [(b, a) for a, b in pairs]
        for source, target in pairs:
            self._cluster.network.cut(source, target)
            self._cuts.add((source, target))
        self._cluster.world.after(fault.for_s, self._heal_cut, pairs)
        until_s = self._cluster.world.now_s + fault.for_s + 2 * self._limits.dead_after_s
        self._cluster.disturbed_until_s = max(self._cluster.disturbed_until_s, until_s)
        return any(self._cluster.network.has_link(*pair) for pair in pairs)

    def _heal_cut(self, pairs: list[tuple[int, int]]) -> None:
        open_again = sorted({source for source, target in pairs if (source, target) in self._cuts})
        if open_again:
            self._note("heal", "paths from " + ",".join(f"p{number}" for number in open_again))
        for source, target in pairs:
            if (source, target) in self._cuts:
                self._cuts.discard((source, target))
                self._cluster.network.heal(source, target)

    def _strike_break_link(self, fault: Fault) -> bool:
        """Who is paused cannot take back what a broken link says of it: that excuses."""
        a, b = fault.who
        paused = [number for number in (a, b) if self._cluster.peers[number].is_paused]
        self._cluster.disturb(paused, self._limits.dead_after_s)
        is_there = self._cluster.network.has_link(a, b)
        self._cluster.network.break_link(a, b)
        return is_there

    def _strike_clog(self, fault: Fault) -> bool:
        a, b = fault.who
        self._cluster.network.clog(a, b, fault.for_s)
        return self._cluster.network.has_link(a, b)

    def _strike_slow_path(self, fault: Fault) -> bool:
        a, b = fault.who
        self._cluster.network.slow(a, b, float(fault.detail))
        self._cluster.world.after(fault.for_s, self._cluster.network.slow, a, b, 0.0)
        return self._cluster.network.has_link(a, b)
