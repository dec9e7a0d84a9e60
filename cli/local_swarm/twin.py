"""The twin of a local swarm: the same training as a plain loop in one process, for comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.errors import UserError


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
    """Runs `python -m swarmd.compute.twin`. Raises UserError: timed_out, or that it failed."""
    run_file = folder / "twin.run"
    run_file.write_bytes(run_bytes)
    command = [sys.executable, "-m", "swarmd.compute.twin", "--json"]
    command += ["--run", str(run_file), "--cache", str(cache), "--threads", str(threads)]
    log = folder / "twin.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            last: dict[str, Any] = {}
            for line in process.stdout:
                last = json.loads(line)
                if "step" in last and "loss" in last:
                    on_step(last["step"], last["loss"])
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise UserError(
                "the twin did not end in time", code="timed_out", exit_code=124
            ) from None
        except BaseException:
            process.kill()
            raise
    if code or last.get("loss_heldout") is None:
        raise UserError(
            f"the twin ended with {code}", code="twin_failed", exit_code=1, hint=f"see {log}"
        )
    return TwinFigures(last["loss_heldout"], last["tokens_per_s"])
