"""`--memory-limit`: a stage that cannot fit is refused, and the rest is the device's own business.

On a GPU torch holds the process to its share. On a CPU the kernel does, for what the process maps
from now on (Linux; elsewhere only the refusal). Either way memory then runs out as it would on a
smaller device, and the worker goes on in smaller slices (stage_worker.py).
"""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from swarmd.errors import ComputeError
from swarmd.partition import stage_bytes
from swarmd.run_config import RunConfig


def require_fit(run: RunConfig, stage: int, max_bytes: int | None) -> None:
    """Raises ComputeError (model_does_not_fit) if the parameters alone are too much."""
    needed = stage_bytes(run, stage)
    if max_bytes is not None and needed > max_bytes:
        text = f"stage {stage} takes {needed / 1e9:.3g} GB while it trains, without activations"
        raise ComputeError(
            "model_does_not_fit", f"{text}; --memory-limit is {max_bytes / 1e9:.3g} GB"
        )


def limit_memory(device: str, max_bytes: int | None) -> None:
    """From now on, on top of what the libraries hold already."""
    if max_bytes is None:
        return
    if device.startswith("cuda"):
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, max_bytes / total), device)
    elif device.startswith("mps"):
        total = torch.mps.recommended_max_memory()
        torch.mps.set_per_process_memory_fraction(min(1.0, max_bytes / total))
    elif sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = _data_bytes() + max_bytes
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def device_memory(device: torch.device) -> dict[str, Any]:
    """What a GPU holds for us now and held at most; of others the daemon knows without us."""
    if device.type != "cuda":
        return {}
    return {
        "device_bytes": torch.cuda.memory_reserved(device),
        "device_peak_bytes": torch.cuda.max_memory_reserved(device),
    }


def _data_bytes() -> int:
    """What counts for RLIMIT_DATA: private and writable."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, "Linux tells it"
    return int(found[1]) << 10
