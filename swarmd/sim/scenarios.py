"""Named scenarios for `swarmd sim --scenario NAME`: faults written down rather than drawn.

Each is one situation of docs/faults.md, for any number of peers. Times count from the start.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmd.sim.faults import FOR_EVER_S, Fault
from swarmd.sim.liars import LIES

Scenario = Callable[[int, float, float], list[Fault]]
"""(peers, start_s, end_s) -> the faults between the two."""


def calm(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """Nothing happens. What a swarm costs when it is well."""
    return []


def partition_heal(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """Cut into halves, then healed (MEMB-02)."""
    half = tuple(range(peers // 2))
    return [Fault(start_s, "partition", half, (end_s - start_s) * 0.9, "both ways")]


def founder_dies(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """The first peer is killed, and comes back as an ordinary one (MEMB-01)."""
    return [Fault(start_s, "crash", (0,), (end_s - start_s) / 2)]


def quick_restarts(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """Killed and back within a second, ten times, then for good (IDEN-01)."""
    step_s = (end_s - start_s) / 11
    again = [Fault(start_s + step_s * n, "crash", (1,), 1.0) for n in range(10)]
    return [*again, Fault(start_s + step_s * 10, "crash", (1,), FOR_EVER_S)]


def freeze(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """One peer stands still for half of dead_after_s, another for much longer (MEMB-04, 05)."""
    return [
        Fault(start_s, "pause", (1,), 4.5),
        Fault(start_s, "pause", (2,), (end_s - start_s) * 0.8),
    ]


def flapping(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """One peer leaves and returns again and again (STAG-02)."""
    count = max(1, int((end_s - start_s) / 20.0))
    return [Fault(start_s + 20.0 * n, "leave", (1,), 9.0) for n in range(count)]


def join_storm(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """Two thirds of the swarm join within a tenth of a second (STAG-05)."""
    return [Fault(start_s, "join", tuple(range(max(1, peers // 3), peers)))]


def mass_leave(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """A third says goodbye at once."""
    return [Fault(start_s, "leave", tuple(range(0, peers, 3)), FOR_EVER_S)]


def mass_crash(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """Half of the hosts lose their power at once."""
    return [
        Fault(start_s, "crash", (number,), FOR_EVER_S, "host too") for number in range(1, peers, 2)
    ]


def liars(peers: int, start_s: float, end_s: float) -> list[Fault]:
    """One peer for each lie (SEC-04)."""
    names = sorted(LIES)[: max(1, peers // 2)]
    return [Fault(start_s, "lie", (number,), 0.0, lie) for number, lie in enumerate(names)]


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        calm,
        partition_heal,
        founder_dies,
        quick_restarts,
        freeze,
        flapping,
        join_storm,
        mass_leave,
        mass_crash,
        liars,
    )
}
