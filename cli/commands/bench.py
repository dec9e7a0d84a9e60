"""`swarmd bench`: measurements, each beside what one would use instead, in one run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from swarmd.cli.framework import DURATION, Grammar, Parsed, Session, group, option
from swarmd.errors import UserError
from swarmd.units import BadValue, parse_size

COUNT = click.IntRange(min=1)
"""Of what is measured: none of it measures nothing."""


@group(section="Checking")
def bench(session: Session) -> None:
    """Measure, each thing beside its alternative, in one run."""


@bench.subcommand("pipeline")
@option("--steps", type=COUNT, default=40, show_default=True, help="Inner steps of each run.")
@option("--repeats", type=COUNT, default=5, show_default=True, help="Runs of each kind, in turns.")
@option("--preset", default="tiny", show_default=True)
def pipeline(session: Session, steps: int, repeats: int, preset: str) -> int:
    """Tokens per second of a pipeline against the plain loop in one process.

    One peer with one stage against one thread, two peers with two stages against two; in turns, so
    that a machine whose speed drifts treats them alike. Medians are what to quote.
    """
    from swarmd.cli.bench_pipeline import measure_pipeline

    return measure_pipeline(session.printer, steps=steps, repeats=repeats, preset=preset)


def _whole_numbers(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise BadValue(text, "is no list of whole numbers above 0", "1,5,20")
    return tuple(int(word) for word in words)


def _mixings(text: str) -> tuple[str, ...]:
    from swarmd.cli.bench_quality import MIXINGS

    words = tuple(MIXINGS) if text == "all" else tuple(text.split(","))
    if not set(words) <= set(MIXINGS):
        raise BadValue(
            text, "names a mixing that is not there", f"all or some of {','.join(MIXINGS)}"
        )
    return words


def _outers(text: str) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [tuple(float(part) for part in word.split("/")) for word in text.split(",")]
        return tuple((alpha, mu) for alpha, mu in pairs)
    except ValueError:
        raise BadValue(text, "is no list of ALPHA/MU", "1/0,0.7/0.9") from None


@bench.subcommand("quality")
@option("--preset", default="tiny", show_default=True)
@option("--stages", type=COUNT, default=2, show_default=True, help="Pipeline stages.")
@option("--steps", type=COUNT, default=80, show_default=True, help="Inner steps of each training.")
@option(
    "--inner-steps",
    default="1,5,20",
    show_default=True,
    type=Parsed("H,H", _whole_numbers),
    help="H, steps in a round.",
)
@option(
    "--replicas",
    default="1,2,4",
    show_default=True,
    type=Parsed("R,R", _whole_numbers),
    help="Of each stage.",
)
@option("--mixing", default="all", show_default=True, type=Parsed("NAME,NAME", _mixings))
@option(
    "--outer",
    default="1/0",
    show_default=True,
    type=Parsed("ALPHA/MU,ALPHA/MU", _outers),
    help="The outer step.",
)
@option("--seeds", default="1,2", show_default=True, type=Parsed("N,N", _whole_numbers))
@option("--micro-batch-tokens", type=COUNT, metavar="N", help="Larger ones compute faster.")
@option("--jobs", type=COUNT, default=1, show_default=True, help="Trainings at a time.")
@option("--threads", type=COUNT, default=1, show_default=True, help="Of each training.")
@option(
    "--results",
    type=Path,
    metavar="FILE",
    help="Keep results there; those that are there are not run again.",
)
def quality(
    session: Session,
    preset: str,
    stages: int,
    steps: int,
    inner_steps: tuple[int, ...],
    replicas: tuple[int, ...],
    mixing: tuple[str, ...],
    outer: tuple[tuple[float, float], ...],
    seeds: tuple[int, ...],
    micro_batch_tokens: int | None,
    jobs: int,
    threads: int,
    results: Path | None,
) -> int:
    """Held-out loss with replicas against the plain loop, at equal tokens.

    Every combination of rounds, replicas and mixing is trained by the swarm's own workers and round
    machines in one process, without a network. Mixings: exact (DiLoCo), global_m1_local_m2 (all,
    and pairs for outer gradients), global_m1 (all, no outer gradients), gossip (pairs for both),
    none.
    """
    from swarmd.cli.bench_quality import Sweep, measure_quality

    sweep = Sweep(
        preset, stages, steps, replicas, inner_steps, mixing, outer, seeds, micro_batch_tokens
    )
    return measure_quality(session.printer, sweep, jobs=jobs, threads=threads, results=results)


@bench.subcommand("links")
@option("--repeats", type=COUNT, default=5, show_default=True, help="Runs of each row, in turns.")
@option("--seconds", type=DURATION, default=0.5, show_default=True, help="Of one run.")
@option(
    "--transfer", "transfer_bytes", type=Parsed("SIZE", parse_size), default=2 << 30,
    show_default="2GiB", help="Sent in one go, to see what it takes in memory.",
)  # fmt: skip
def links(session: Session, repeats: int, seconds: float, transfer_bytes: int) -> int:
    """Rate, processor time and round trips of plain TCP, our bulk plane and a libp2p stream.

    Two processes on this machine. A message goes, a small answer comes back. Planes take turns, so
    that a machine whose speed drifts treats them alike. Medians are what to quote.
    """
    from swarmd.cli.bench_links import measure_links

    if not seconds or not transfer_bytes:
        name = "--transfer" if seconds else "--seconds"
        raise UserError(f"{name} 0 measures nothing", code="usage", exit_code=2)
    return measure_links(
        session.printer, repeats=repeats, seconds=seconds, transfer_bytes=transfer_bytes
    )


@bench.subcommand("device")
@option("--gpu", metavar="INDEX|UUID|PCI", multiple=True, help="Instead of the settings' ones.")
@option("--threads", type=COUNT, help="Of a CPU; default: the settings', or the library's choice.")
@option("--seconds", type=DURATION, default=2.0, show_default=True, help="For each device.")
def device(session: Session, gpu: tuple[str, ...], threads: int | None, seconds: float) -> int:
    """What the device can do at best: the peak that a peer's MFU is a share of.

    Large products of matrices, in bfloat16 on CUDA and in float32 elsewhere; the best one counts.
    """
    from swarmd.cli.bench_device import measure_devices
    from swarmd.peer_config import effective_config

    if not seconds:
        raise UserError("--seconds 0 measures nothing", code="usage", exit_code=2)
    flags: dict[str, Any] = {"gpu": gpu} if gpu else {}
    if threads is not None:
        flags["threads"] = threads
    config = effective_config(session.home, flags=flags).config
    return measure_devices(session.printer, config, seconds=seconds)


def _words(allowed: tuple[str, ...]) -> Grammar:
    def parse(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        if not set(words) <= {*allowed, "all"}:
            raise BadValue(text, "is not known here", f"all or some of {','.join(allowed)}")
        return words

    return parse


@bench.subcommand("mix")
@option(
    "--floats",
    default="10000000,50000000",
    show_default=True,
    type=Parsed("N,N", _whole_numbers),
    help="Length of the vector, about.",
)
@option("--peers", type=COUNT, default=4, show_default=True)
@option(
    "--case",
    "cases",
    default="all",
    show_default=True,
    help="healthy, frozen, killed.",
    type=Parsed("NAME,NAME", _words(("healthy", "frozen", "killed"))),
)
@option(
    "--system",
    "systems",
    default="all",
    show_default=True,
    type=Parsed("NAME,NAME", _words(("swarmd", "swarmd_one_mix", "hivemind"))),
)
@option("--hivemind-python", metavar="FILE", help="An interpreter that has hivemind 1.1.12.")
@option(
    "--patience", "patience_s", type=DURATION, default=600.0, show_default="10m",
    help="Longest wait for the next round of any peer.",
)  # fmt: skip
def mix(
    session: Session,
    floats: tuple[int, ...],
    peers: int,
    cases: tuple[str, ...],
    systems: tuple[str, ...],
    hivemind_python: str | None,
    patience_s: float,
) -> int:
    """Seconds of an outer round between processes on this machine.

    Healthy, with one peer frozen in the middle of a round, with one killed. swarmd: both mixings
    over all peers. swarmd_one_mix: one average in float32, which is what hivemind's averager does;
    that one is measured too if an interpreter that has it is named.
    """
    from swarmd.cli.bench_mix import CASES, FLOATS_MAX, MixBench, measure_mix, systems_of

    chosen = tuple(systems_of(systems, hivemind_python))
    if "hivemind" in chosen and hivemind_python is None:
        raise UserError("hivemind needs --hivemind-python", code="usage", exit_code=2)
    if hivemind_python is not None and shutil.which(hivemind_python) is None:
        text = f"--hivemind-python {hivemind_python} is no program"
        raise UserError(text, code="usage", exit_code=2)
    if max(floats) > FLOATS_MAX:
        text = f"--floats {max(floats)} is more than {FLOATS_MAX}"
        raise UserError(text, code="usage", exit_code=2)
    wanted = tuple(case for case in CASES if case in cases or "all" in cases)
    bench = MixBench(floats, peers, wanted, chosen, hivemind_python, patience_s)
    return measure_mix(session.printer, bench)
