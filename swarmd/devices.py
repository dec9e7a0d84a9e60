"""Which device a worker computes on. Pure: from what is there to (choice, reason). No torch.

Two views of a machine have to agree before work starts: the system's (nvidia-smi, rocm-smi) and
that of the installed torch. People count as the system does; torch counts what CUDA_VISIBLE_DEVICES
leaves, fastest first. So GPUs are matched by UUID, else by PCI address, and only then by place.

A GPU that does not exist and one that the installed torch cannot use are different mistakes with
different remedies; both end with exit 2, which of the two it is, and the list of those that work.
A build for ROCm calls its devices cuda, too; it is told apart by its build.

The table is read from the machine in device_probe.py; tests make their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmd.errors import UserError

VENDOR_OF_BUILD = {"cuda": "nvidia", "rocm": "amd"}
VENDOR_NAMES = {"nvidia": "NVIDIA", "amd": "AMD"}
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")
_UUID = re.compile(r"(?:gpu-)?[0-9a-f]{4,}[0-9a-f-]*|0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """A GPU that torch can use, by torch's own number (cuda:N)."""

    number: int
    name: str
    uuid: str = ""
    pci: str = ""
    memory_total_bytes: int = 0
    memory_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemDevice:
    """A GPU as the vendor's tool lists it. `mig`: UUIDs of its partitions."""

    vendor: str
    index: int
    name: str
    uuid: str = ""
    pci: str = ""
    memory_total_bytes: int = 0
    memory_free_bytes: int | None = None
    mig: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable:
    """What is there, and what the installed torch can use of it."""

    torch_version: str = ""
    """Empty: torch cannot be imported, `torch_error` says why."""
    torch_error: str = ""
    build: str = "cpu"
    """cpu, cuda or rocm."""
    usable: tuple[TorchDevice, ...] = ()
    system: tuple[SystemDevice, ...] = ()
    mps: bool = False
    cpu_name: str = "CPU"
    visible_variable: str = "CUDA_VISIBLE_DEVICES"
    visible: str | None = None
    """The value of that variable; None: not set. Empty: nothing is visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """`device` is what torch calls it. `environment`: what the worker needs set for that."""

    kind: str
    """cuda, rocm, mps or cpu."""
    device: str
    name: str
    uuid: str = ""
    memory_total_bytes: int = 0
    memory_free_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU in both views. `index`: as people count; `torch` None: not usable."""

    index: int | None
    system: SystemDevice | None
    torch: TorchDevice | None

    @property
    def name(self) -> str:
        either = self.torch or self.system
        return either.name if either else ""

    @property
    def uuids(self) -> set[str]:
        return {_plain_uuid(view.uuid) for view in (self.system, self.torch) if view and view.uuid}

    @property
    def pcis(self) -> set[str]:
        return {_plain_pci(view.pci) for view in (self.system, self.torch) if view and view.pci}

    @property
    def memory_free_bytes(self) -> int:
        """For choosing; what the system says holds, as torch counts what is cached as used."""
        for view in (self.system, self.torch):
            if view is not None and view.memory_free_bytes is not None:
                return view.memory_free_bytes
        return self.torch.memory_total_bytes if self.torch else 0


# ------------------------------------------------------------------------------------------ choose


def choose_devices(
    table: DeviceTable, gpus: Sequence[str] = (), device: str = "auto"
) -> list[tuple[DeviceChoice, str]]:
    """One (choice, reason) for each `--gpu`, or one for `--device`.

    Raises UserError with exit 2 for what does not exist, cannot be used, or makes no sense.
    """
    if not table.torch_version:
        raise _refusal(table, "device_unusable", f"torch cannot be imported: {table.torch_error}")
    if not gpus:
        return [_choose_kind(table, device)]
    if device != "auto":
        raise _refusal(table, "usage", f"--gpu and --device {device} contradict each other")
    choices = [_choose_gpu(table, text) for text in gpus]
    for place, (choice, _) in enumerate(choices):
        if choice in [earlier for earlier, _ in choices[:place]]:
            raise _refusal(table, "usage", f"--gpu names {choice.name} twice")
    return choices


def _choose_kind(table: DeviceTable, device: str) -> tuple[DeviceChoice, str]:
    cpu = DeviceChoice(kind="cpu", device="cpu", name=table.cpu_name)
    mps = DeviceChoice(kind="mps", device="mps", name="Apple GPU")
    match device:
        case "cpu":
            return cpu, "asked for"
        case "mps":
            if not table.mps:
                text = f"torch {table.torch_version} has no usable MPS device here"
                raise _refusal(table, "device_unusable", text)
            return mps, "asked for"
        case "auto":
            return _choose_best(table, cpu, mps)
    raise _refusal(table, "usage", f"--device {device}: one of auto, cpu, mps")


def _choose_best(
    table: DeviceTable, cpu: DeviceChoice, mps: DeviceChoice
) -> tuple[DeviceChoice, str]:
    gpus = _gpus(table)
    usable = [gpu for gpu in gpus if gpu.torch is not None]
    if usable:
        best = min(usable, key=lambda gpu: (-gpu.memory_free_bytes, _number(gpu)))
        reason = "the only GPU" if len(usable) == 1 else f"most free memory of {len(usable)} GPUs"
        return _choice(table, best), reason
    if table.mps:
        return mps, "the machine's own GPU"
    if gpus:
        return cpu, f"{gpus[0].name} is there, but {_why_unusable(table, gpus[0])}"
    return cpu, "no GPU was found"


def _choose_gpu(table: DeviceTable, text: str) -> tuple[DeviceChoice, str]:
    wanted = text.strip().lower()
    if wanted.startswith("mig-"):
        return _choose_mig(table, text.strip())
    gpus = _gpus(table)
    if wanted.isdecimal():
        found = [gpu for gpu in gpus if gpu.index == int(wanted)]
        reason = "asked for by its index"
    elif _PCI.fullmatch(wanted):
        found = [gpu for gpu in gpus if _plain_pci(wanted) in gpu.pcis]
        reason = "asked for by its PCI address"
    elif _UUID.fullmatch(wanted):
        start = _plain_uuid(wanted)
        found = [gpu for gpu in gpus if any(uuid.startswith(start) for uuid in gpu.uuids)]
        reason = "asked for by its UUID"
    else:
        text = f"--gpu {text}: not an index, a UUID or a PCI address"
        raise _refusal(table, "usage", text)
    if not found:
        raise _refusal(table, "device_missing", f"GPU {text} does not exist on this machine")
    if len(found) > 1:
        raise _refusal(table, "usage", f"--gpu {text} fits {len(found)} GPUs")
    if found[0].torch is None:
        why = _why_unusable(table, found[0])
        raise _refusal(table, "device_unusable", f"GPU {text} ({found[0].name}) exists, but {why}")
    return _choice(table, found[0]), reason


def _choose_mig(table: DeviceTable, text: str) -> tuple[DeviceChoice, str]:
    """A partition. torch sees one only where the environment names it."""
    wanted = text.lower()
    parents = [
        (gpu, uuid) for gpu in table.system for uuid in gpu.mig if uuid.lower().startswith(wanted)
    ]
    if len(parents) > 1:
        raise _refusal(table, "usage", f"--gpu {text} fits {len(parents)} partitions")
    for place, entry in enumerate(visible_entries(table.visible)):
        if entry.lower().startswith(wanted) and place < len(table.usable):
            torch_device = table.usable[place]
            return _choice(table, _Gpu(None, None, torch_device)), "asked for by its UUID"
    if not parents:
        raise _refusal(table, "device_missing", f"GPU {text} does not exist on this machine")
    gpu, uuid = parents[0]
    if table.build != "cuda" or table.visible is not None:
        why = _why_unusable(table, _Gpu(gpu.index, gpu, None))
        raise _refusal(table, "device_unusable", f"GPU {text} exists, but {why}")
    choice = DeviceChoice(
        kind="cuda",
        device="cuda:0",
        name=f"{gpu.name} (MIG)",
        uuid=uuid,
        environment={table.visible_variable: uuid},
    )
    return choice, "asked for by its UUID"


# ------------------------------------------------------------------------------------------- match


def _gpus(table: DeviceTable) -> list[_Gpu]:
    """Every GPU of either view, once, in the system's order and then torch's."""
    rest = list(table.usable)
    gpus = []
    for system in table.system:
        match = next((device for device in rest if _is_same(system, device)), None)
        if match is not None:
            rest.remove(match)
        gpus.append(_Gpu(system.index, system, match))
    if table.system and table.visible is None and _agree_without_names(table, gpus, rest):
        return [_Gpu(gpu.index, gpu.system, device) for gpu, device in zip(gpus, rest, strict=True)]
    entries = visible_entries(table.visible)
    for device in rest:
        index: int | None = None if table.system else device.number
        if not table.system and table.visible is not None:
            entry = entries[device.number] if device.number < len(entries) else ""
            index = int(entry) if entry.isdecimal() else None
        gpus.append(_Gpu(index, None, device))
    return gpus


def _is_same(system: SystemDevice, device: TorchDevice) -> bool:
    if system.uuid and device.uuid and system.vendor == "nvidia":
        return _plain_uuid(system.uuid) == _plain_uuid(device.uuid)
    return bool(system.pci and device.pci) and _plain_pci(system.pci) == _plain_pci(device.pci)


def _agree_without_names(
    table: DeviceTable, gpus: Sequence[_Gpu], rest: Sequence[TorchDevice]
) -> bool:
    """Older versions name no UUID or address: then the same count in the same order must do."""
    vendor = VENDOR_OF_BUILD.get(table.build)
    return len(rest) == len(gpus) and all(
        gpu.torch is None and gpu.system is not None and gpu.system.vendor == vendor for gpu in gpus
    )


def visible_entries(value: str | None) -> tuple[str, ...]:
    """Of CUDA_VISIBLE_DEVICES: indexes or UUIDs. What follows an invalid entry counts for nothing,
    as for the driver."""
    entries = []
    for entry in (value or "").split(","):
        entry = entry.strip()
        if not entry.isdecimal() and not entry.lower().startswith(("gpu-", "mig-")):
            break
        entries.append(entry)
    return tuple(entries)


def _plain_uuid(text: str) -> str:
    return text.strip().lower().removeprefix("gpu-").removeprefix("0x")


def _plain_pci(text: str) -> str:
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return text.strip().lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}"


# -------------------------------------------------------------------------------------------- words


def _choice(table: DeviceTable, gpu: _Gpu) -> DeviceChoice:
    device = gpu.torch
    assert device is not None, "only what torch can use is chosen"
    system = gpu.system
    return DeviceChoice(
        kind=table.build,
        device=f"cuda:{device.number}",
        name=device.name,
        uuid=(system.uuid if system and system.uuid else device.uuid),
        memory_total_bytes=device.memory_total_bytes,
        memory_free_bytes=gpu.memory_free_bytes,
    )


def _why_unusable(table: DeviceTable, gpu: _Gpu) -> str:
    vendor = gpu.system.vendor if gpu.system else ""
    torch = f"the installed torch {table.torch_version}"
    if table.build == "cpu":
        return f"{torch} is built without GPU support"
    if VENDOR_OF_BUILD[table.build] != vendor:
        built_for = VENDOR_NAMES[VENDOR_OF_BUILD[table.build]]
        return f"{torch} is built for {built_for} GPUs"
    if table.visible is not None:
        return f"{table.visible_variable}={table.visible} hides it from torch"
    return f"{torch} cannot use it; its driver may be too old or broken"


def describe_usable(table: DeviceTable) -> list[str]:
    """For people: everything that `--gpu` and `--device` may name."""
    lines = []
    for gpu in _gpus(table):
        if gpu.torch is not None:
            names = [_number_text(gpu), gpu.torch.uuid, *sorted(gpu.pcis)[:1]]
            said = ", ".join(name for name in names[1:] if name)
            lines.append(f"--gpu {names[0]}: {gpu.name}" + (f" ({said})" if said else ""))
    if table.mps:
        lines.append("--device mps: Apple GPU")
    if table.torch_version:
        lines.append(f"--device cpu: {table.cpu_name}")
    return lines


def described(device: DeviceChoice | None, why: str, threads: int | None = None) -> str:
    """`NVIDIA RTX 4090, 22.0 GB free`; of a CPU that had to do, why. threads: if it was told how
    many to use."""
    if device is None:
        return "the CPU"
    if device.memory_free_bytes is not None:
        return f"{device.name}, {device.memory_free_bytes / 1e9:.1f} GB free"
    if threads is None:
        return f"{device.name} ({why})"
    return f"{device.name}, of which {threads} {'is' if threads == 1 else 'are'} used ({why})"


def _refusal(table: DeviceTable, code: str, text: str) -> UserError:
    usable = describe_usable(table)
    hint = "these work: " + "; ".join(usable) if usable else "no device works"
    return UserError(text, code=code, exit_code=2, hint=hint)


def _number(gpu: _Gpu) -> int:
    assert gpu.torch is not None, "asked of usable ones only"
    return gpu.torch.number if gpu.index is None else gpu.index


def _number_text(gpu: _Gpu) -> str:
    if gpu.index is not None:
        return str(gpu.index)
    return gpu.torch.uuid if gpu.torch and gpu.torch.uuid else gpu.name
