"""The device: which one, whether stages of the run fit it, and how fast one of them really is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from swarmd.cli import format as f
from swarmd.cli.compute_question import ask_device
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
    """Of the smallest device."""
    verdict: Verdict = field(default_factory=Verdict)


def look(home: Home, config: PeerConfig, run: RunConfig | None, *, dry_step: bool) -> Fitness:
    """run None: only the device. dry_step: train a stage for a few seconds."""
    from swarmd.data.at_hand import is_at_hand
    from swarmd.device_probe import probe_devices

    found = Fitness()
    table = probe_devices()
    choices = _choose(table, config, found)
    if not choices or run is None:
        return found
    verdicts = []
    first = 0 if is_at_hand(run, home.cache, config.data_source) else 1
    for choice in choices:
        stages = [stage for stage in _fitting_stages(run, choice, found) if stage >= first]
        measured = _dry_step(run, choice, config, stages, found) if dry_step and stages else None
        verdicts.append(_verdict(run, choice, stages, measured, is_one=len(choices) == 1))
    found.findings.append(_checkpoints(home, run))
    found.verdict = _together(verdicts)
    return found


def _choose(table: DeviceTable, config: PeerConfig, found: Fitness) -> list[DeviceChoice]:
    """Every device of the settings."""
    if not table.torch_version:
        found.findings.append(
            Finding(
                check="torch",
                severity="error",
                text=f"it cannot be imported: {table.torch_error}",
                fix="`python -m pip install --force-reinstall torch` into this environment",
            )
        )
        return []
    found.findings.append(
        Finding(
            check="torch", severity="ok", text=f"{table.torch_version}, built for {table.build}"
        )
    )
    try:
        choices = choose_devices(table, config.gpu, config.device[0])
    except UserError as error:
        found.findings.append(
            Finding(check="device", severity="error", text=str(error), fix=error.hint)
        )
        return []
    for choice, why in choices:
        found.findings += _device(table, choice, why)
    if config.power_limit is not None:
        found.findings.append(_power_limit(choices[0][0], config.power_limit))
    return [choice for choice, _ in choices]


def _power_limit(choice: DeviceChoice, watts: int) -> Finding:
    """No reason to run a daemon as root, which is what drivers would ask for."""
    fix = "`--temp-limit` needs no root"
    if choice.kind == "cuda":
        fix = f"`sudo nvidia-smi -i {choice.uuid or 0} -pl {watts}`, or " + fix
    return Finding(
        check="power",
        severity="warn",
        text=f"--power-limit {watts} is not obeyed: only root may set what a device draws",
        fix=fix,
    )


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
    fit = Fit(
        stage_bytes=most,
        device_bytes=free,
        micro_batch=run.micro_batch_samples,
        stages_possible=max(0, free // most),
    )
    if found.fit.device_bytes is None or free < found.fit.device_bytes:
        found.fit = fit
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
    asked = {
        "run": run.canonical().hex(),
        "stage": stage,
        "threads": config.threads,
        "micro_batch_max": None if config.micro_batch == "auto" else config.micro_batch,
        "seconds": DRY_STEP_S,
    }
    return ask_device("swarmd.compute.dry_step", asked, choice, DRY_STEP_TIMEOUT_S)


def _verdict(
    run: RunConfig,
    choice: DeviceChoice,
    stages: list[int],
    measured: dict[str, Any] | None,
    *,
    is_one: bool,
) -> Verdict:
    """Of one device; is_one: of the only one."""
    holder = "this machine" if is_one else f"{choice.device} ({choice.name})"
    if not stages:
        return Verdict(stages=0, text=f"{holder} can hold no stage of {run.name}")
    text = f"{holder} can hold {_names(stages, run)} of {run.name}"
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


def _together(verdicts: list[Verdict]) -> Verdict:
    """A stage for each device that can hold one."""
    if len(verdicts) == 1:
        return verdicts[0]
    speeds = [one.tokens_per_s for one in verdicts if one.tokens_per_s is not None]
    needs = [one.needs_up_bytes_per_s or 0.0 for one in verdicts if one.tokens_per_s is not None]
    return Verdict(
        stages=sum(one.stages or 0 for one in verdicts),
        tokens_per_s=sum(speeds) if speeds else None,
        needs_up_bytes_per_s=sum(needs) if speeds else None,
        text=". ".join(str(one.text) for one in verdicts),
    )


def _names(stages: list[int], run: RunConfig) -> str:
    if len(stages) == run.stages:
        return "any stage" if run.stages > 1 else "the one stage"
    listed = [str(stage) for stage in stages]
    head = f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else listed[0]
    return f"stage {head}"
