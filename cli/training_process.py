"""A program that trains a whole run in one process, followed from here: the twin, replicas in step.

    python -m swarmd.compute.twin       the plain loop
    python -m swarmd.compute.lockstep   replicas without a network

Both print a JSON object a step and one with the result. A program whose reader is gone ends with
its next step.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.errors import UserError


@dataclass(frozen=True, slots=True)
class Training:
    """What to run. program: the module's last name."""

    program: str
    run_bytes: bytes
    cache: Path
    threads: int
    flags: tuple[str, ...] = ()


class Followed:
    """Trainings under way, one in each thread that calls `train`. `kill` ends all, for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._is_over = False

    def train(
        self,
        training: Training,
        folder: Path,
        name: str,
        *,
        timeout_s: float | None = None,
        on_step: Callable[[int, float], None],
    ) -> dict[str, Any]:
        """The last line, parsed. NAME.run and NAME.log in `folder` are its run and its errors.

        timeout_s: from its last word on. Raises UserError: timed_out, training_failed.
        """
        run_file, log = folder / f"{name}.run", folder / f"{name}.log"
        run_file.write_bytes(training.run_bytes)
        command = [sys.executable, "-m", f"swarmd.compute.{training.program}", "--json"]
        command += ["--run", str(run_file), "--cache", str(training.cache)]
        command += ["--threads", str(training.threads), *training.flags]
        with log.open("wb") as errors:
            process = self._start(command, errors)
            try:
                last = _read(process, on_step)
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                text = f"{training.program} did not end in time"
                raise UserError(text, code="timed_out", exit_code=124) from None
            finally:
                self._end(process)
        if code or last.get("loss_heldout") is None:
            raise UserError(
                f"{training.program} ended with {code}",
                code="training_failed",
                exit_code=1,
                hint=f"see {log}",
            )
        return last

    def kill(self) -> None:
        """Those that run, and those that somebody starts later."""
        with self._lock:
            self._is_over = True
            for process in self._processes:
                process.kill()

    def _start(self, command: list[str], errors: Any) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_over:
                raise UserError("it was stopped", code="interrupted", exit_code=130)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            self._processes.add(process)
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._processes.discard(process)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _read(process: subprocess.Popen[str], on_step: Callable[[int, float], None]) -> dict[str, Any]:
    """Every line until it ends; the last one."""
    assert process.stdout is not None, "its output is a pipe"
    last: dict[str, Any] = {}
    for line in process.stdout:
        last = json.loads(line)
        if "step" in last and "loss" in last:
            on_step(last["step"], last["loss"])
    return last
