"""Has a process of its own do what needs torch with a saved model (swarmd/compute/look.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from swarmd.errors import UserError
from swarmd.run_config import RunConfig
from swarmd.saved_models import SavedModel


def look(
    task: str,
    model: SavedModel,
    settings: dict[str, Any],
    *,
    on_text: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """task: export, generate or eval. Raises UserError. Ctrl-C ends the process too."""
    about = {
        "states": {str(stage): str(path) for stage, path in model.states.items()},
        "rounds": {str(stage): number for stage, number in model.rounds.items()},
        "export": None if model.export is None else str(model.export),
        "caches": [str(path) for path in model.caches],
    }
    return have_done(task, model.run, about | settings, on_text=on_text)


def have_done(
    task: str,
    run: RunConfig,
    settings: dict[str, Any],
    *,
    on_text: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """What needs torch and a run. Raises UserError."""
    asked = {"run": run.canonical().hex(), **settings}
    process = subprocess.Popen(
        [sys.executable, "-m", "swarmd.compute.look", task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    last: dict[str, Any] = {}
    try:
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        for line in process.stdout:
            last = json.loads(line)
            if "text" in last:
                on_text(last["text"])
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if "result" in last:
        result: dict[str, Any] = last["result"]
        return result
    told = last.get("error") or {"text": f"the process that holds the model ended with {code}"}
    raise UserError(
        told["text"],
        code=told.get("code", "compute_failed"),
        exit_code=told.get("exit_code", 1),
        hint=told.get("hint", ""),
    )
