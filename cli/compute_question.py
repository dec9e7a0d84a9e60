"""Asks a device something in a process of its own: one that fails takes nothing with it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from swarmd.devices import DeviceChoice


def ask_device(
    module: str, asked: dict[str, Any], choice: DeviceChoice, timeout_s: float
) -> dict[str, Any]:
    """What `python -m MODULE` answers in one line of JSON, or `error` and `text`."""
    from swarmd.worker_spawn import python_command

    try:
        done = subprocess.run(
            [*python_command(), "-m", module],
            input=json.dumps({"device": choice.device, **asked}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **choice.environment},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "timed_out", "text": f"no answer within {timeout_s:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": "worker_died", "text": f"exit status {done.returncode}: {last}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found
