"""`swarmd sim`: the run of one seed, or one after the other up to the first that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarmd.sim.option_check import check
from swarmd.sim.options import (
    INVARIANT_BROKEN,
    OK,
    PEER_CRASHED,
    TARGET_MISSED,
    SimOptions,
    SimResult,
)
from swarmd.sim.simulation import Simulation
from swarmd.sim.trace import Line

__all__ = [
    "INVARIANT_BROKEN",
    "OK",
    "PEER_CRASHED",
    "TARGET_MISSED",
    "SimOptions",
    "SimResult",
    "Simulation",
    "run",
    "run_once",
]


def run(
    options: SimOptions, line: Line | None = None, between: Callable[[], None] | None = None
) -> SimResult:
    """One run, or with `until_failure` one seed after the other up to the first that fails.

    line: takes the lines of the report; the trace too if asked for. between: as Simulation has it.
    Raises UserError for options that make no sense together.
    """
    check(options)
    say = line or (lambda text: None)
    for seed in range(options.seed, options.seed + options.seeds_max):
        result = run_once(replace(options, seed=seed), say, between)
        if result.exit_code != OK or not options.until_failure:
            break
    return result


def run_once(
    options: SimOptions, say: Line, between: Callable[[], None] | None = None
) -> SimResult:
    """The run of one seed."""
    say(f"seed {options.seed}")
    simulation = Simulation(options, say, between)
    simulation.go()
    result = simulation.result()
    for text in result.violations:
        say(text)
    say(f"{result.outcome}: {result.events} events, {result.virtual_s:.1f} virtual seconds")
    say(result.command)
    return result
