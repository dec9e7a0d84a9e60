"""The device: which one, whether stages of the run fit it, and how fast one of them really is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from swarmd.cli import format as f
from swarmd.cli.doctor.machine import disk_free_bytes
from swarmd.devices import DeviceChoice, DeviceTable, choose_devices, describe_usable
from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.machine_memory import memory_free_bytes
from swarmd.partition import flops_per_token, stage_bytes, stage_parameters
from swarmd.peer_config import PeerConfig
from swarmd.result_records import Finding, Fit, Verdict
from swarmd.run_config import RunConfig

CHECKPOINTS_KEPT = 3
CHECKPOINT_BYTES_PER_PARAMETER = 16
"""Weights, two moments and the outer momentum, float32 each."""
WORKER_BYTES = 400 << 20
"""Interpreter and torch, beside the stage."""
DRY_STEP_S = 3.0
DRY_STEP_TIMEOUT_S = 180.0
GPU_BUILD = (
    "install a torch build for this GPU and driver: pytorch.org/get-started names the command for "
    "each; then `swarmd doctor` again"
)


@dataclass(slots=True)
class Fitness:
    """What was found about the device and the run."""

    findings: list[Finding] = field(default_factory=list)
    fit: Fit = field(default_factory=Fit)
    verdict: Verdict = field(default_factory=Verdict)


def look(home: Home, config: PeerConfig, run: RunConfig | None, *, dry_step: bool) -> Fitness:
    """run None: only the device. dry_step: train a stage for a few seconds."""
    from swarmd.device_probe import probe_devices

    found = Fitness()
    table = probe_devices()
    choice = _choose(table, config, found)
    if choice is None or run is None:
        return found
    stages = _fitting_stages(run, choice, found)
    found.findings.append(_checkpoints(home, run))
    measured = _dry_step(run, choice, config, stages, found) if dry_step and stages else None
    found.verdict = _verdict(run, stages, measured)
    return found


def _choose(table: DeviceTable, config: PeerConfig, found: Fitness) -> DeviceChoice | None:
    if not table.torch_version:
        found.findings.append(
            Finding(
                check="torch",
                severity="error",
                text=f"it cannot be imported: {table.torch_error}",
                fix="`python -m pip install --force-reinstall torch` into this environment",
            )
        )
        return None
    found.findings.append(
        Finding(
            check="torch", severity="ok", text=f"{table.torch_version}, built for {table.build}"
        )
    )
    try:
        choice, why = choose_devices(table, config.gpu, config.device[0])[0]
    except UserError as error:
        found.findings.append(
            Finding(check="device", severity="error", text=str(error), fix=error.hint)
        )
        return None
    found.findings += _device(table, choice, why)
    return choice


def _device(table: DeviceTable, choice: DeviceChoice, why: str) -> Iterator[Finding]:
    free = _free_bytes(choice)
    text = f"{choice.name}, {f.size(free)} free ({why})"
    data = {"device": choice.device, "uuid": choice.uuid, "free_bytes": free}
    data["usable"] = describe_usable(table)
    yield Finding(check="device", severity="ok", text=text, data=data)
    if choice.kind == "cpu" and table.system:
        names = ", ".join(sorted({gpu.name for gpu in table.system}))
        yield Finding(
            check="gpu",
            severity="warn",
            text=f"{names} is there, and the installed torch ({table.build} build) cannot use it",
            fix=GPU_BUILD,
        )


def _free_bytes(choice: DeviceChoice) -> int:
    return choice.memory_free_bytes or memory_free_bytes()


def _fitting_stages(run: RunConfig, choice: DeviceChoice, found: Fitness) -> list[int]:
    """Stages whose weights and moments have room, by what they are known to take."""
    free = _free_bytes(choice) - (WORKER_BYTES if choice.kind == "cpu" else 0)
    needs = [stage_bytes(run, stage) for stage in range(run.stages)]
    fitting = [stage for stage, need in enumerate(needs) if need <= free]
    least, most = min(needs), max(needs)
    found.fit = Fit(
        stage_bytes=most,
        device_bytes=free,
        micro_batch=run.micro_batch_samples,
        stages_possible=max(0, free // most),
    )
    shown = f.size(least) if least == most else f"{f.size(least)} to {f.size(most)}"
    if fitting:
        text = f"a stage needs {shown}; {_names(fitting, run)} would fit"
        found.findings.append(Finding(check="fit", severity="ok", text=text))
    else:
        found.findings.append(
            Finding(
                check="fit",
                severity="error",
                text=f"a stage needs {shown}, this device has {f.size(free)}",
                fix="a run with more stages, or a larger device; `--observe` holds no stage",
            )
        )
    return fitting


def _checkpoints(home: Home, run: RunConfig) -> Finding:
    most = max(stage_parameters(run, stage) for stage in range(run.stages))
    need, free = CHECKPOINTS_KEPT * CHECKPOINT_BYTES_PER_PARAMETER * most, disk_free_bytes(home)
    text = f"{f.size(free)} free, checkpoints of this run take up to {f.size(need)}"
    if need <= free:
        return Finding(check="checkpoints", severity="ok", text=text)
    return Finding(
        check="checkpoints",
        severity="warn",
        text=text,
        fix=f"free {f.size(need - free)}, or put the home elsewhere with `--home DIR`",
    )


# -------------------------------------------------------------------------------------- a dry step


def _dry_step(
    run: RunConfig,
    choice: DeviceChoice,
    config: PeerConfig,
    stages: list[int],
    found: Fitness,
) -> dict[str, Any] | None:
    """The dearest of the stages that fit, or the one that was asked for."""
    stage = config.wanted_stage
    if stage is None or stage >= run.stages:
        stage = max(stages, key=lambda one: flops_per_token(run, one))
    measured = ask_dry_step(run, choice, config, stage)
    if "error" in measured:
        found.findings.append(
            Finding(
                check="step",
                severity="error",
                text=f"stage {stage} does not run here: {measured['text']} ({measured['error']})",
                fix="`--micro-batch 1`, another device, or a run with more stages",
                data=measured,
            )
        )
        return None
    text = (
        f"stage {stage}: {measured['micro_batch_s'] * 1e3:.0f} ms a micro-batch, "
        f"{f.scaled(measured['tokens_per_s'])} tok/s (made-up data)"
    )
    if measured["micro_batch"] < run.micro_batch_samples:
        text += f"; memory allows {measured['micro_batch']} sequences at a time"
    found.findings.append(Finding(check="step", severity="ok", text=text, data=measured))
    return measured


def ask_dry_step(
    run: RunConfig, choice: DeviceChoice, config: PeerConfig, stage: int
) -> dict[str, Any]:
    """What swarmd/compute/dry_step.py measured, or `error` and `text`."""
    import os

    from swarmd.worker_spawn import python_command

    asked = {
        "run": run.canonical().hex(),
        "stage": stage,
        "device": choice.device,
        "threads": config.threads,
        "micro_batch_max": None if config.micro_batch == "auto" else config.micro_batch,
        "seconds": DRY_STEP_S,
    }
    try:
        done = subprocess.run(
            [*python_command(), "-m", "swarmd.compute.dry_step"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=DRY_STEP_TIMEOUT_S,
            env={**os.environ, **choice.environment},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "timed_out", "text": f"no answer within {DRY_STEP_TIMEOUT_S:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": "worker_died", "text": f"exit status {done.returncode}: {last}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _verdict(run: RunConfig, stages: list[int], measured: dict[str, Any] | None) -> Verdict:
    if not stages:
        return Verdict(stages=0, text=f"this machine can hold no stage of {run.name}")
    text = f"this machine can hold {_names(stages, run)} of {run.name}"
    if measured is None:
        return Verdict(stages=1, text=text)
    tokens_per_s = measured["tokens_per_s"]
    up_bytes_per_s = tokens_per_s * measured["sent_bytes_per_token"]
    text += f", about {f.scaled(tokens_per_s)} tok/s"
    if up_bytes_per_s:
        text += f"; needs {f.mbit(up_bytes_per_s)} Mbit/s up"
    return Verdict(
        stages=1, tokens_per_s=tokens_per_s, needs_up_bytes_per_s=up_bytes_per_s, text=text
    )


def _names(stages: list[int], run: RunConfig) -> str:
    if len(stages) == run.stages:
        return "any stage" if run.stages > 1 else "the one stage"
    listed = [str(stage) for stage in stages]
    head = f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else listed[0]
    return f"stage {head}"
