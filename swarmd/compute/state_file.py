"""State files of a stage as safetensors: what they say of themselves, and how they are written."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from swarmd.errors import JobFailed

STATE_FORMAT = "swarmd-stage-1"


def metadata_for(run_id: str, stage: int, next_step: int) -> dict[str, str]:
    return {
        "format": STATE_FORMAT,
        "run_id": run_id,
        "stage": str(stage),
        "next_step": str(next_step),
    }


def metadata_of(body: bytes) -> dict[str, str]:
    """The map that `safetensors.torch.load` leaves out; `load` has checked the frame before."""
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    metadata = header.get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def save_state(named: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Raises JobFailed: disk_full, disk_error; then there is no file."""
    try:
        save_file(named, path, metadata)
    except (OSError, SafetensorError) as error:
        path.unlink(missing_ok=True)
        is_full = "No space left" in str(error) or "os error 28" in str(error)
        raise JobFailed("disk_full" if is_full else "disk_error", str(error)) from None
