"""Options of `swarmd sim` that make no sense: said in one line, before anything is built."""

from __future__ import annotations

import math

from swarmd.errors import UserError
from swarmd.sim.options import SimOptions
from swarmd.sim.scenarios import SCENARIOS

PEERS_MAX = 1_000
"""Everybody knows everybody, so memory grows with the square: about a gigabyte for so many."""
ROUNDS_MAX = 10_000
SEED_MAX = (1 << 63) - 1
RTT_S_MAX = 60.0
"""Longer than any time-out: such a swarm never meets."""


def check(options: SimOptions) -> None:
    """Raises UserError(usage)."""
    _between("--stages", options.stages, 1, PEERS_MAX)
    _between("--peers", options.peers, 1, PEERS_MAX)
    if options.peers < options.stages:
        _refuse(
            f"--peers {options.peers} is below --stages {options.stages}",
            "every stage needs a peer",
        )
    _between("--rounds", options.rounds, 1, ROUNDS_MAX)
    _between("--seed", options.seed, 0, SEED_MAX)
    if options.kill is not None:
        if not 0 <= options.kill < options.peers:
            _refuse(f"--kill {options.kill} of {options.peers} peers", "at least one must live")
    if options.loss is not None:
        _between("--loss", options.loss, 0.0, 1.0)
    if options.rtt_s is not None:
        _between("--rtt", options.rtt_s, 0.0, RTT_S_MAX)
    if options.scenario is not None and options.scenario not in SCENARIOS:
        _refuse(
            f"there is no scenario {options.scenario}", f"one of {', '.join(sorted(SCENARIOS))}"
        )


def _between(name: str, value: float, least: float, most: float) -> None:
    if math.isnan(value) or not least <= value <= most:
        _refuse(f"{name} {value:g} is out of range", f"from {least:g} to {most:g}")


def _refuse(text: str, hint: str) -> None:
    raise UserError(text, code="usage", exit_code=2, hint=hint)
