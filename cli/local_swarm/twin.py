"""The twin of a local swarm: the same training as a plain loop in one process, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarmd.cli.training_process import Followed, Training


@dataclass(frozen=True, slots=True)
class TwinFigures:
    loss_heldout: float
    tokens_per_s: float


def train_twin(
    run_bytes: bytes,
    folder: Path,
    cache: Path,
    *,
    threads: int,
    timeout_s: float,
    on_step: Callable[[int, float], None],
) -> TwinFigures:
    """Runs `python -m swarmd.compute.twin`. Raises UserError: timed_out, training_failed."""
    training = Training("twin", run_bytes, cache, threads)
    last = Followed().train(training, folder, "twin", timeout_s=timeout_s, on_step=on_step)
    return TwinFigures(last["loss_heldout"], last["tokens_per_s"])
