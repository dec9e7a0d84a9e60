"""Reads the machine's devices: what torch sees, and what the vendor's tools list.

torch takes seconds to load and holds the interpreter, so it is asked in a short process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarmd.devices import DeviceTable, SystemDevice, TorchDevice
from swarmd.worker_spawn import python_command

PROBE_TIMEOUT_S = 60.0
"""torch's import takes 2 s on an idle machine; the first look at a GPU another few."""
TOOL_TIMEOUT_S = 10.0
MIB = 1 << 20

NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,name,uuid,pci.bus_id,memory.total,memory.free",
    "--format=csv,noheader,nounits",
)
NVIDIA_SMI_LISTING = ("nvidia-smi", "-L")
ROCM_SMI = (
    "rocm-smi",
    "--showproductname",
    "--showuniqueid",
    "--showbus",
    "--showmeminfo",
    "vram",
    "--json",
)
VISIBLE_VARIABLES = {
    "rocm": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "cuda": ("CUDA_VISIBLE_DEVICES",),
}


def probe_devices(environment: Mapping[str, str] = os.environ) -> DeviceTable:
    """Blocking, seconds. Never raises: what cannot be read is missing from the table."""

    def ask(command: Sequence[str], timeout_s: float = TOOL_TIMEOUT_S) -> str:
        return _output_of(command, timeout_s, environment)

    said_by_torch = ask([*python_command(), "-m", "swarmd.compute.probe"], PROBE_TIMEOUT_S)
    nvidia = parse_nvidia_smi(ask(NVIDIA_SMI), ask(NVIDIA_SMI_LISTING))
    amd = parse_rocm_smi(ask(ROCM_SMI))
    return make_table(said_by_torch, [*nvidia, *amd], environment)


def make_table(
    probe_body: str, system: Sequence[SystemDevice], environment: Mapping[str, str]
) -> DeviceTable:
    """From the probe's JSON line (empty: it did not answer) and the tools' devices."""
    lines = probe_body.strip().splitlines()
    try:
        said: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        said = {}
    if not said:
        said = {"error": "the probe of torch ended without an answer"}
    build = said.get("build", "cpu")
    variable, visible = _visibility(build, environment)
    return DeviceTable(
        torch_version=said.get("torch_version", ""),
        torch_error=said.get("error", ""),
        build=build,
        usable=tuple(TorchDevice(**device) for device in said.get("devices", ())),
        system=tuple(system),
        mps=said.get("mps", False),
        cpu_name=cpu_name(),
        visible_variable=variable,
        visible=visible,
    )


def parse_nvidia_smi(table: str, listing: str) -> list[SystemDevice]:
    """`table`: what NVIDIA_SMI prints. `listing`: NVIDIA_SMI_LISTING, which alone names MIG."""
    partitions: dict[str, list[str]] = {}
    parent = ""
    for line in listing.splitlines():
        _, found, rest = line.partition("(UUID: ")
        if found and not line.startswith(" "):
            parent = rest.rstrip(") ")
        elif found and rest.upper().startswith("MIG-"):
            partitions.setdefault(parent, []).append(rest.rstrip(") "))
    devices = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not cells[0].isdecimal():
            continue  # a message of the driver
        index, name, uuid, pci, total, free = cells
        devices.append(
            SystemDevice(
                vendor="nvidia",
                index=int(index),
                name=name,
                uuid=uuid,
                pci=pci,
                memory_total_bytes=int(total) * MIB if total.isdecimal() else 0,
                memory_free_bytes=int(free) * MIB if free.isdecimal() else None,
                mig=tuple(partitions.get(uuid, ())),
            )
        )
    return devices


def parse_rocm_smi(body: str) -> list[SystemDevice]:
    """Of its JSON. Names of keys differ in case between versions."""
    try:
        cards = json.loads(body) if body.strip() else {}
    except ValueError:
        return []
    devices = []
    for card, fields in sorted(cards.items()):
        number = card.removeprefix("card")
        if not number.isdecimal() or not isinstance(fields, dict):
            continue
        said = {key.lower(): str(value) for key, value in fields.items()}
        total = _integer(said.get("vram total memory (b)"))
        used = _integer(said.get("vram total used memory (b)"))
        devices.append(
            SystemDevice(
                vendor="amd",
                index=int(number),
                name=said.get("card series") or said.get("card model") or "AMD GPU",
                uuid=said.get("unique id", ""),
                pci=said.get("pci bus", ""),
                memory_total_bytes=total or 0,
                memory_free_bytes=None if total is None or used is None else total - used,
            )
        )
    return sorted(devices, key=lambda device: device.index)


def cpu_name() -> str:
    """As people know it, with the number of threads we may use."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    return f"{name}, {thread_count()} threads"


def thread_count() -> int:
    """Of this process, not of the machine: a container has fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _visibility(build: str, environment: Mapping[str, str]) -> tuple[str, str | None]:
    names = VISIBLE_VARIABLES.get(build, VISIBLE_VARIABLES["cuda"])
    for name in names:
        if name in environment:
            return name, environment[name]
    return names[0], None


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _output_of(command: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> str:
    """Standard output; empty where the program is missing, fails or does not end."""
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        return ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            env=dict(environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
