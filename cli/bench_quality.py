"""What replicas cost in loss: the same tokens through 1, 2, 4 of them, mixed in several ways.

Each row is a whole training by the swarm's own workers and round machines in one process, without a
network (swarmd/compute/lockstep.py), beside the plain loop over the same tokens (twin.py). Peers of
equal speed, one micro-batch on its way at a time: what a row shows is the price of mixing, not of
gradients that cross steps.

Rows that would compute the same are run once, as the first of them: pairs of two replicas are exact
averaging, and how long a round of replicas that never mix is matters to nobody (with alpha 1 and
mu 0).
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from swarmd.cli import format as f
from swarmd.cli.output import Printer
from swarmd.cli.training_process import Followed, Training
from swarmd.errors import UserError
from swarmd.json_record import render
from swarmd.result_records import BenchQuality, QualityRow
from swarmd.run_config import InvalidRun, RunConfig
from swarmd.toml_file import bad_config

MIXINGS: dict[str, dict[str, int]] = {
    "exact": {"mix1_group": 0, "mix2_group": 0},
    "global_m1_local_m2": {"mix1_group": 0, "mix2_group": 2},
    "global_m1": {"mix1_group": 0, "mix2_group": 1},
    "gossip": {"mix1_group": 2, "mix2_group": 2},
    "none": {"mix1_group": 1, "mix2_group": 1},
}
"""Name to the keys of [outer]. exact: DiLoCo. gossip: pairs for both mixings."""
SAY_EVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """The axes. Every combination that makes a difference is a row."""

    preset: str
    stages: int
    steps: int
    replicas: tuple[int, ...]
    inner_steps: tuple[int, ...]
    mixings: tuple[str, ...]
    outers: tuple[tuple[float, float], ...]
    """(alpha, mu)."""
    seeds: tuple[int, ...]
    micro_batch_tokens: int | None = None
    """None: the preset's. Larger ones compute faster, and only change which replica gets what."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training. mixing "": the plain loop."""

    preset: str
    stages: int
    steps: int
    seed: int
    replicas: int = 1
    mixing: str = ""
    inner_steps: int = 1
    alpha: float = 1.0
    mu: float = 0.0
    micro_batch_tokens: int | None = None

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """As a run file would say it."""
        run = {
            "name": "bench",
            "preset": self.preset,
            "stages": self.stages,
            "total_steps": self.steps,
            "inner_steps": self.inner_steps,
            "seed": self.seed,
        }
        if self.micro_batch_tokens is not None:
            run["micro_batch_tokens"] = self.micro_batch_tokens
        outer = {"alpha": self.alpha, "mu": self.mu, **MIXINGS.get(self.mixing, {})}
        return {"run": run, "outer": outer}

    @property
    def loop(self) -> Case:
        """The plain loop over the same tokens."""
        return replace(self, replicas=1, mixing="", inner_steps=1, alpha=1.0, mu=0.0)

    def __str__(self) -> str:
        if not self.mixing:
            return f"plain loop, seed {self.seed}"
        return (
            f"R={self.replicas} {self.mixing} H={self.inner_steps} "
            f"{self.alpha:g}/{self.mu:g} seed {self.seed}"
        )


def measure_quality(
    printer: Printer, sweep: Sweep, *, jobs: int, threads: int, results: Path | None
) -> int:
    """Prints a table, or `swarmd.bench_quality`. results: kept there as they come, and those that
    are there already are not run again."""
    cases = list(cases_of(sweep))
    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as name:
        bench = _Bench(printer, Path(name), threads, results)
        bench.run(cases, jobs)
        rows = [bench.row(case) for case in cases if case.mixing]
    if printer.is_json:
        printer.object(render(BenchQuality(rows=rows)))
        return 0
    for line in table(rows):
        printer.line(line)
    return 0


def cases_of(sweep: Sweep) -> Iterator[Case]:
    """Seed by seed, its plain loop first."""
    for seed in sweep.seeds:
        loop = Case(
            sweep.preset,
            sweep.stages,
            sweep.steps,
            seed,
            micro_batch_tokens=sweep.micro_batch_tokens,
        )
        yield loop
        for replicas, (alpha, mu) in product(sweep.replicas, sweep.outers):
            seen = set()
            for mixing, inner_steps in product(sweep.mixings, sweep.inner_steps):
                groups = _groups(mixing, replicas)
                is_idle = set(groups) == {1} and (alpha, mu) == (1.0, 0.0)
                what = groups if is_idle else (*groups, inner_steps)
                if what not in seen:
                    seen.add(what)
                    yield replace(
                        loop,
                        replicas=replicas,
                        mixing=mixing,
                        inner_steps=inner_steps,
                        alpha=alpha,
                        mu=mu,
                    )


def _groups(mixing: str, replicas: int) -> tuple[int, ...]:
    """How many replicas are in a group of each mix, at least."""
    return tuple(min(size, replicas) if size else replicas for size in MIXINGS[mixing].values())


class _Bench:
    """Runs cases in processes, several at a time, and keeps what they give."""

    def __init__(self, printer: Printer, folder: Path, threads: int, results: Path | None) -> None:
        self._printer = printer
        self._folder = folder
        self._threads = threads
        self._results = results
        self._found: dict[Case, dict[str, Any]] = {}
        self._runs: dict[Case, RunConfig] = {}
        self._lock = threading.Lock()
        self._followed = Followed()
        self._steps_done = self._steps_planned = 0
        self._begun_s = self._said_s = time.monotonic()
        if results is not None:
            self._found = dict(_kept(results))

    def run(self, cases: Sequence[Case], jobs: int) -> None:
        """Those that have no result yet. The first failure ends it all."""
        cache = self._folder / "cache"
        for case in cases:
            self._runs[case] = _run_of(case, cache)
        left = [case for case in cases if case not in self._found]
        self._steps_planned = sum(case.steps for case in left)
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self._train, case, cache) for case in left]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done():
                        future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._followed.kill()
                raise

    def row(self, case: Case) -> QualityRow:
        found, loop = self._found[case], self._found[case.loop]
        run = self._runs[case]
        baseline = loop["loss_heldout"]
        return QualityRow(
            stages=case.stages,
            replicas=case.replicas,
            mixing=case.mixing,
            inner_steps=case.inner_steps,
            alpha=case.alpha,
            mu=case.mu,
            seed=case.seed,
            steps=case.steps,
            rounds=run.rounds,
            rounds_partial=found["rounds_partial"],
            local_batch_sequences=run.batch_samples / case.replicas,
            loss_heldout=found["loss_heldout"],
            loss_replica=found["loss_replica"],
            loss_baseline=baseline,
            loss_gap_ratio=found["loss_heldout"] / baseline - 1,
        )

    def _train(self, case: Case, cache: Path) -> None:
        run_bytes = self._runs[case].canonical()
        program, flags = "twin", tuple[str, ...]()
        if case.mixing:
            program, flags = "lockstep", ("--replicas", str(case.replicas))
        training = Training(program, run_bytes, cache, self._threads, flags)
        name = "-".join(str(value) for value in asdict(case).values())
        found = self._followed.train(training, self._folder, name, on_step=self._stepped)
        with self._lock:
            self._found[case] = found
            if self._results is not None:
                with self._results.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"case": asdict(case), "found": found}) + "\n")
            self._say(f"{case}: held-out {found['loss_heldout']:.3f}")

    def _stepped(self, step: int, loss: float) -> None:
        with self._lock:
            self._steps_done += 1
            if time.monotonic() - self._said_s >= SAY_EVERY_S:
                self._say("training")

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        share = f.percent(self._steps_done / self._steps_planned)
        self._printer.say(f"{text} ({share} of all steps, {f.about(self._seconds_left)} left)")

    @property
    def _seconds_left(self) -> float:
        a_step_s = (time.monotonic() - self._begun_s) / self._steps_done
        return a_step_s * (self._steps_planned - self._steps_done)


def _run_of(case: Case, cache: Path) -> RunConfig:
    from swarmd.run_file import make_run

    try:
        return make_run(case.sections, cache_dir=cache)
    except InvalidRun as error:
        raise bad_config(str(case), str(error)) from None


def _kept(results: Path) -> Iterator[tuple[Case, dict[str, Any]]]:
    """The file is there afterwards, so that hours of training do not end without a place."""
    try:
        with results.open("a+", encoding="utf-8") as file:
            file.seek(0)
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        text = (isinstance(error, OSError) and error.strerror) or "it is no file of text"
        raise UserError(f"--results {results}: {text}", code="usage", exit_code=2) from None
    for number, line in enumerate(lines, start=1):
        try:
            kept = json.loads(line)
            yield Case(**kept["case"]), kept["found"]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"--results {results}, line {number}: no result of this command",
                code="usage",
                exit_code=2,
                hint="take a file of its own, or remove that line",
            ) from None


# ------------------------------------------------------------------------------------------- table


def table(rows: Sequence[QualityRow]) -> Iterator[str]:
    """How far above the plain loop, mean over seeds, a line a mixing and a column a H."""
    columns = sorted({row.inner_steps for row in rows})
    heads = ["replicas", "mixing", "alpha/mu", *(f"H={steps}" for steps in columns)]
    lines: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for row in rows:
        line = lines.setdefault((row.replicas, row.mixing, row.alpha, row.mu), {})
        line.setdefault(row.inner_steps, []).append(row.loss_gap_ratio)
    cells = [heads]
    for (replicas, mixing, alpha, mu), gaps in lines.items():
        named = [str(replicas), mixing, f"{alpha:g}/{mu:g}"]
        cells.append([*named, *(_gap(gaps.get(steps)) for steps in columns)])
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
    yield from _below(rows)


def _gap(gaps: Sequence[float] | None) -> str:
    """`+3.1 % (+2.8 to +3.4)`."""
    if not gaps:
        return f.UNKNOWN
    text = f"{sum(gaps) / len(gaps) * 100:+.1f} %"
    return text if len(gaps) == 1 else f"{text} ({min(gaps) * 100:+.1f} to {max(gaps) * 100:+.1f})"


def _below(rows: Sequence[QualityRow]) -> Iterator[str]:
    baselines: Mapping[int, float] = {row.seed: row.loss_baseline for row in rows}
    said = ", ".join(f"{loss:.3f} (seed {seed})" for seed, loss in baselines.items())
    yield f"held-out loss above the plain loop's, which is {said}"
    batch = {row.replicas: row.local_batch_sequences for row in rows}
    said = ", ".join(f"{size:g} with R={replicas}" for replicas, size in sorted(batch.items()))
    yield f"{rows[0].steps} steps; sequences of a step at each replica: {said}"
    partial = sum(row.rounds_partial for row in rows)
    if partial:
        yield f"{partial} rounds of replicas were partial or skipped: a guard refused something"
