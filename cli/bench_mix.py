"""Seconds of an outer round between real processes: healthy, one of them frozen, one killed.

Each peer is a process with a compute worker of its own (swarmd/node/mix_peer.py). Rounds follow
each other without a pause; a round is one tiny inner step and the mixes:

    swarmd            both mixings over all peers, as in exact averaging
    swarmd_one_mix    Mix2 alone over all, in float32: one average, which is what hivemind does
    hivemind          hivemind 1.1.12's averager, float32, its own defaults

After some healthy rounds one peer is struck in the middle of a round. `seconds_per_round` of such a
case is the longest round that the others then had, `seconds_per_round_after` the median of those
that followed. Nobody tells the others what happened: there is no membership in this measurement.
Survivors need not end alike with one mix: Mix2 averages what a round has added, and what the strike
left apart is Mix1's to bring together.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from swarmd.cli import format as f
from swarmd.cli.mix_group import MixGroup
from swarmd.cli.output import Printer
from swarmd.cli.process_tree import TreeSize
from swarmd.json_record import render
from swarmd.result_records import BenchMix, MixRow
from swarmd.run_config import RunConfig

Case = Literal["healthy", "frozen", "killed"]
CASES: tuple[Case, ...] = ("healthy", "frozen", "killed")
STRIKES = {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL}
OUTERS = {
    "swarmd": {"mix1_group": 0, "mix2_group": 0, "mix1_blocking": True},
    "swarmd_one_mix": {"mix1_group": 1, "mix2_group": 0},
}
"""System to the keys of [outer]. Nothing is computed behind which Mix1 could hide, so it is waited
for: a tiny inner phase would otherwise cut it off, and most of a long vector stay unmixed."""
FLOATS_MAX = 10**10
"""A slip of the hand is told before anything is allocated: layers grow with it."""
ROUNDS_BEFORE = {"swarmd": 7, "swarmd_one_mix": 7, "hivemind": 4}
"""Healthy ones: deadlines adapt after five. The first is not counted."""
ROUNDS_AFTER = {"swarmd": 5, "swarmd_one_mix": 5, "hivemind": 2}
_LINE = "{:<16} {:>9} {:<8} {:>9} {:>9} {:>7} {:>7} {:>10} {:>9} {:>7}"
HEADINGS = (
    "SYSTEM", "FLOATS", "CASE", "S/ROUND", "AFTER", "FAILED", "PARTIAL", "PROCESSES", "RSS",
    "AGREE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MixBench:
    floats: tuple[int, ...]
    peers: int
    cases: tuple[Case, ...]
    systems: tuple[str, ...]
    hivemind_python: str | None
    patience_s: float
    """How long nobody may say anything before a measurement is given up."""


def measure_mix(printer: Printer, bench: MixBench) -> int:
    """Prints a row a system, size and case, or `swarmd.bench_mix`."""
    rows = []
    if not printer.is_json:
        printer.line(_LINE.format(*HEADINGS))
    for floats in bench.floats:
        for system in bench.systems:
            for case in bench.cases:
                row = _measure(bench, system, floats, case)
                (printer.say if printer.is_json else printer.line)(_line(row))
                rows.append(row)
    if printer.is_json:
        printer.object(render(BenchMix(rows=rows)))
    return 0


def _measure(bench: MixBench, system: str, floats: int, case: Case) -> MixRow:
    rounds = ROUNDS_BEFORE[system] + ROUNDS_AFTER[system]
    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as name:
        folder = Path(name)
        if system == "hivemind":
            assert bench.hivemind_python is not None, "it is asked for with its interpreter"
            floats_held = floats
            commands = _hivemind_commands(bench, floats, rounds)
        else:
            run = run_of(floats, bench.peers, rounds, OUTERS[system], folder)
            floats_held = _parameters(run)
            commands = _swarmd_commands(bench, run, folder)
        with MixGroup(commands, folder, bench.patience_s) as group:
            if system == "hivemind":
                _meet_one_by_one(group)
            else:
                _meet(group)
            watch = _Watch(group, case, ROUNDS_BEFORE[system], rounds)
            watch.run()
    return watch.row(system, floats_held)


def _swarmd_commands(bench: MixBench, run: RunConfig, folder: Path) -> list[list[str]]:
    run_file = folder / "run"
    run_file.write_bytes(run.canonical())
    words = [sys.executable, "-m", "swarmd.node.mix_peer"]
    words += ["--run", str(run_file), "--cache", str(folder / "cache")]
    return [words] * bench.peers


def _hivemind_commands(bench: MixBench, floats: int, rounds: int) -> list[list[str]]:
    import swarmd.compute

    program = Path(swarmd.compute.__path__[0]) / "hivemind_peer.py"
    words = [str(bench.hivemind_python), str(program), "--floats", str(floats)]
    words += ["--rounds", str(rounds), "--peers", str(bench.peers)]
    return [words] * bench.peers


def _meet(group: MixGroup) -> None:
    """All listen, then all are told of all."""
    for number in range(len(group)):
        group.start(number)
    hellos = {line.pop("peer"): line for line in group.hear_all("peer")}
    for number, own in enumerate(hellos):
        others = {peer: hello for peer, hello in hellos.items() if peer != own}
        group.say(number, others=others)
    group.hear_all("ready")


def _meet_one_by_one(group: MixGroup) -> None:
    """Each joins those that are there."""
    hellos: dict[str, Any] = {}
    for number in range(len(group)):
        group.start(number)
        group.say(number, others=hellos)
        while len(hellos) <= number:
            heard = group.hear()
            if heard is not None and "peer" in heard[1]:
                hellos[heard[1]["peer"]] = heard[1]


@dataclass(slots=True)
class _Watch:
    """One measurement: lets them go, strikes the last peer, and looks on."""

    group: MixGroup
    case: Case
    rounds_before: int
    rounds: int
    ended_s: list[list[float]] = field(default_factory=list)
    """Of each peer, when its rounds ended."""
    failed: int = 0
    """Rounds of survivors that averaged nothing."""
    partial: int = 0
    """And that averaged a part: a peer was missing, or what a peer had of the vector."""
    digests: dict[int, str] = field(default_factory=dict)
    sizes: list[TreeSize] = field(default_factory=list)
    _struck: int | None = None

    def run(self) -> None:
        self.ended_s = [[] for _ in range(len(self.group))]
        for number in range(len(self.group)):
            self.group.say(number, go=True)
        strike_s: float | None = None
        while len(self.digests) < len(self._survivors):
            heard = self.group.hear(until_s=strike_s)
            if heard is None:
                self._struck, strike_s = len(self.group) - 1, None
                self.group.strike(self._struck, STRIKES[self.case])
            else:
                self._note(*heard)
            if not self.sizes and min(map(len, self.ended_s)) >= self.rounds_before:
                self.sizes = self.group.sizes()
                if self.case != "healthy":
                    strike_s = time.monotonic() + self._healthy_s / 2

    @property
    def _survivors(self) -> list[int]:
        return [number for number in range(len(self.group)) if number != self._struck]

    @property
    def _healthy_s(self) -> float:
        lengths = [s for number in self._survivors for s in self._lengths(number)]
        return statistics.median(lengths)

    def _lengths(self, number: int) -> list[float]:
        """Of its rounds but the first."""
        return [end - start for start, end in pairwise(self.ended_s[number])]

    def _note(self, number: int, line: dict[str, Any]) -> None:
        if number == self._struck:
            return
        if "round" in line:
            self.ended_s[number].append(line["at_s"])
            self.failed += line["outcome"] == "skipped"
            self.partial += line["outcome"] == "partial"
        elif "digest" in line:
            self.digests[number] = line["digest"]

    def row(self, system: str, floats: int) -> MixRow:
        seconds, after = self._healthy_s, None
        if self._struck is not None:
            hit = [self._lengths(number)[self.rounds_before - 1 :] for number in self._survivors]
            seconds = max(max(lengths) for lengths in hit)
            rest = [s for lengths in hit for s in lengths[lengths.index(max(lengths)) + 1 :]]
            after = statistics.median(rest) if rest else None
        known = [size.rss_bytes for size in self.sizes if size.rss_bytes is not None]
        return MixRow(
            system=system,
            floats=floats,
            case=self.case,
            seconds_per_round=seconds,
            seconds_per_round_after=after,
            rounds_failed=self.failed,
            rounds_partial=self.partial,
            processes_per_peer=statistics.mean(size.processes for size in self.sizes),
            rss_bytes_per_peer=round(statistics.mean(known)) if known else None,
            survivors_agree=len({self.digests[number] for number in self._survivors}) == 1,
        )


# --------------------------------------------------------------------------------------------- run


def run_of(floats: int, peers: int, rounds: int, outer: dict[str, int], folder: Path) -> RunConfig:
    """One stage of about so many parameters. Every peer trains on one micro-batch a round."""
    from swarmd.run_file import make_run

    text = folder / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number}.txt").write_text(f"{number} peers, one average\n" * 200)
    width = 512 if floats >= 2_000_000 else 64
    layers = max(1, round(floats / (13 * width * width)))

    def made(ff_width: int) -> RunConfig:
        run = {
            "name": "mix", "preset": "tiny", "stages": 1, "data": f"text:{text}/*.txt",
            "total_steps": rounds, "inner_steps": 1, "sequence_tokens": 16,
            "micro_batch_tokens": 16, "batch_tokens": 16 * peers,
        }  # fmt: skip
        model = {
            "width": width, "layers": layers, "heads": 8, "kv_heads": 8, "ff_width": ff_width,
        }  # fmt: skip
        sections = {"run": run, "model": model, "outer": outer}
        return make_run(sections, cache_dir=folder / "cache")

    small, large = _parameters(made(8)), _parameters(made(16))
    return made(max(8, 8 + round((floats - small) / (large - small) * 8)))


def _parameters(run: RunConfig) -> int:
    from swarmd.partition import stage_parameters

    return stage_parameters(run, 0)


# ------------------------------------------------------------------------------------------- table


def _line(row: MixRow) -> str:
    return _LINE.format(
        row.system,
        f.scaled(row.floats),
        row.case,
        f.number(row.seconds_per_round, 2),
        f.number(row.seconds_per_round_after, 2),
        str(row.rounds_failed),
        str(row.rounds_partial),
        f.number(row.processes_per_peer, 0),
        f.size(row.rss_bytes_per_peer),
        "yes" if row.survivors_agree else "no",
    )


def systems_of(words: Sequence[str], hivemind_python: str | None) -> Iterator[str]:
    """`all`: ours, and hivemind where there is an interpreter for it."""
    for word in words:
        if word == "all":
            yield from OUTERS
            if hivemind_python is not None:
                yield "hivemind"
        else:
            yield word
