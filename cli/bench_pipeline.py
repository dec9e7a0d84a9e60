"""What the pipeline costs: real peers against a plain loop over the same tokens, in turns.

The loop gets as many threads as the swarm has workers. Its rate is that of its steps alone; the
swarm's is its head's, from the first micro-batch that was done to the last, held-out evaluation and
checkpoints included.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from swarmd.cli.output import Printer
from swarmd.errors import UserError
from swarmd.json_record import render
from swarmd.result_records import BenchPipeline, PipelineRow

RUN_S_MAX = 600.0


def measure_pipeline(printer: Printer, *, steps: int, repeats: int, preset: str) -> int:
    """Prints a row a shape, or `swarmd.bench_pipeline`."""
    rates: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for repeat in range(repeats):
        for stages, pairs in rates.items():
            swarm = _swarm_rate(stages, steps, preset)
            loop = _loop_rate(stages, steps, preset)
            pairs.append((swarm, loop))
            printer.say(
                f"{repeat + 1}/{repeats} stages={stages} swarm={swarm:.0f} loop={loop:.0f} tok/s"
            )
    rows = [_row(stages, pairs) for stages, pairs in rates.items()]
    if printer.is_json:
        printer.object(render(BenchPipeline(rows=rows)))
        return 0
    for row in rows:
        printer.line(
            f"stages={row.stages} swarm={row.tokens_per_s:.0f} loop={row.loop_tokens_per_s:.0f} "
            f"tok/s ratio={row.ratio:.3f} (median of {row.repeats}; {row.ratio_min:.3f} to "
            f"{row.ratio_max:.3f})"
        )
    return 0


def _row(stages: int, pairs: list[tuple[float, float]]) -> PipelineRow:
    ratios = [swarm / loop for swarm, loop in pairs]
    return PipelineRow(
        stages=stages,
        peers=stages,
        threads=stages,
        repeats=len(pairs),
        tokens_per_s=statistics.median(swarm for swarm, _ in pairs),
        loop_tokens_per_s=statistics.median(loop for _, loop in pairs),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
    )


def _swarm_rate(stages: int, steps: int, preset: str) -> float:
    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as folder:
        words = [sys.executable, "-m", "swarmd", "local", "--json", "--keep", "--dir", folder]
        words += ["--peers", str(stages), "--stages", str(stages), "--steps", str(steps)]
        words += ["--preset", preset, "--loss-target", "none"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S_MAX)
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if done.returncode:
            raise UserError(
                f"the swarm ended with {done.returncode}: {found.get('failed_conditions')}",
                code="bench_failed",
                exit_code=1,
            )
        rate = next(peer["tokens_per_s"] for peer in found["peers"] if peer["stage"] == 0)
        return float(rate)


def _loop_rate(stages: int, steps: int, preset: str) -> float:
    from swarmd.cli.local_swarm.twin import train_twin
    from swarmd.run_file import make_run

    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as name:
        folder = Path(name)
        sections = {
            "run": {"name": "bench", "preset": preset, "stages": stages, "total_steps": steps}
        }
        run = make_run(sections, cache_dir=folder / "cache")
        figures = train_twin(
            run.canonical(),
            folder,
            folder / "cache",
            threads=stages,
            timeout_s=RUN_S_MAX,
            on_step=lambda step, loss: None,
        )
        return figures.tokens_per_s
