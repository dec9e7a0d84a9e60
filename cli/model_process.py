"""Has a process of its own do what needs torch with a saved model (swarmd/compute/look.py).

It ends with the command: when its time is over, on Ctrl-C, and when the command is killed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from swarmd.cli.time_limit import TimeLimit
from swarmd.errors import UserError
from swarmd.run_config import RunConfig
from swarmd.saved_models import SavedModel
from swarmd.worker_spawn import describe_exit, holding_back_signals, python_command

Hear = Callable[[str], None]


def look(
    task: str,
    model: SavedModel,
    settings: dict[str, Any],
    *,
    limit: TimeLimit,
    on_text: Hear = lambda text: None,
) -> dict[str, Any]:
    """task: export, generate or eval. Raises UserError."""
    opened = {stage: f"/dev/fd/{number}" for stage, number in model.descriptors.items()}
    lay_at = {place: str(model.states[stage]) for stage, place in opened.items()}
    about = {
        "states": {str(stage): place for stage, place in opened.items()},
        "rounds": {str(stage): number for stage, number in model.rounds.items()},
        "export": None if model.export is None else str(model.export),
        "caches": [str(path) for path in model.caches],
    }
    descriptors = tuple(model.descriptors.values())
    try:
        return have_done(
            task, model.run, about | settings, limit=limit, on_text=on_text, descriptors=descriptors
        )
    except UserError as error:
        text = re.sub(r"/dev/fd/\d+", lambda found: lay_at.get(found[0], found[0]), str(error))
        raise UserError(text, code=error.code, exit_code=error.exit_code, hint=error.hint) from None


def have_done(
    task: str,
    run: RunConfig,
    settings: dict[str, Any],
    *,
    limit: TimeLimit,
    on_text: Hear = lambda text: None,
    descriptors: tuple[int, ...] = (),
) -> dict[str, Any]:
    """What needs torch and a run. descriptors: what the process inherits. Raises UserError."""
    asked = {"run": run.canonical().hex(), **settings}
    last: dict[str, Any] = {}
    with _process(task, descriptors) as process, _ending(process, limit) as is_late:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it asked; how, its status says
        for line in process.stdout:
            last = json.loads(line)
            if "text" in last:
                on_text(last["text"])
        status = process.wait()
    if "result" in last:
        result: dict[str, Any] = last["result"]
        return result
    if is_late.is_set():
        raise limit.passed()
    told = last.get("error") or {"text": f"the model's process was {describe_exit(status, '')}"}
    raise UserError(
        told["text"],
        code=told.get("code", "compute_failed"),
        exit_code=told.get("exit_code", 1),
        hint=told.get("hint", ""),
    )


@contextmanager
def _process(task: str, descriptors: tuple[int, ...]) -> Iterator[subprocess.Popen[str]]:
    """It is gone when the block ends."""
    its_lifeline, lifeline_fd = os.pipe()
    try:
        command = [*python_command(), "-m", "swarmd.compute.look_process", task]
        try:
            with holding_back_signals():
                process = subprocess.Popen(
                    [*command, str(its_lifeline), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=(its_lifeline, *descriptors),
                    text=True,
                )
        finally:
            os.close(its_lifeline)
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        os.close(lifeline_fd)


@contextmanager
def _ending(process: subprocess.Popen[str], limit: TimeLimit) -> Iterator[threading.Event]:
    """Kill it when the time is over; the event tells that it was."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    left_s = limit.left_s()
    timer = threading.Timer(left_s or 0.0, end)
    timer.daemon = True
    if left_s is not None:
        timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()
