"""Where this peer computes, for its status: kind, name, threads, micro-batch and memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from swarmd.machine_memory import memory_total_bytes
from swarmd.peer_config import PeerConfig
from swarmd.status import Device

if TYPE_CHECKING:
    from swarmd.node.stage_loader import StageLoader

KINDS = ("cpu", "cuda", "mps")


def device_shown(info: Mapping[str, Any], loader: StageLoader | None, config: PeerConfig) -> Device:
    """info: what the worker said of itself; empty before there was one."""
    kind: Any = next((k for k in KINDS if str(info.get("device") or "").startswith(k)), None)
    used = peak = total = uuid = None
    if loader is not None and kind == "cpu":
        total = memory_total_bytes()
        used, peak = _of_process(info.get("pid"))
    elif loader is not None and loader.device is not None:
        total, uuid = loader.device.memory_total_bytes, loader.device.uuid or None
        used, peak = loader.memory_bytes
    lowered = None if loader is None else loader.micro_batch_lowered_to
    return Device(
        kind=kind,
        name=info.get("device_name"),
        uuid=uuid,
        threads=info.get("threads") or config.threads,
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_peak_bytes=peak,
        micro_batch=lowered or info.get("micro_batch"),
    )


def _of_process(pid: int | None) -> tuple[int | None, int | None]:
    """What it holds now and held at most, in the machine's memory; None: it is gone, or the system
    does not tell."""
    if pid is None:
        return None, None
    try:
        used = psutil.Process(pid).memory_info().rss
    except psutil.NoSuchProcess:
        return None, None
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return used, max(used, int(line.split()[1]) << 10)
    return used, None
