"""`swarmd bench`: measurements, each beside what one would use instead, in one run."""

from __future__ import annotations

from swarmd.cli.framework import Session, group, option


@group(section="Checking")
def bench(session: Session) -> None:
    """Measure, each thing beside its alternative, in one run."""


@bench.subcommand("pipeline")
@option("--steps", type=int, default=40, show_default=True, help="Inner steps of each run.")
@option("--repeats", type=int, default=5, show_default=True, help="Runs of each kind, in turns.")
@option("--preset", default="tiny", show_default=True)
def pipeline(session: Session, steps: int, repeats: int, preset: str) -> int:
    """Tokens per second of a pipeline against the plain loop in one process.

    One peer with one stage against one thread, two peers with two stages against two; in turns, so
    that a machine whose speed drifts treats them alike. Medians are what to quote.
    """
    from swarmd.cli.bench_pipeline import measure_pipeline

    return measure_pipeline(session.printer, steps=steps, repeats=repeats, preset=preset)
