"""Says in one line of JSON what the installed torch can use. Run as a process and forgotten.

    python -m swarmd.compute.probe

torch_version, build (cpu, cuda, rocm), devices (number, name, uuid, pci, memory_total_bytes,
memory_free_bytes), mps; or error. Looking at a GPU makes a context on it, which takes memory and
cannot be undone in a living process: one more reason to be a process of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def look() -> dict[str, Any]:
    """Never raises: a torch that does not load is an answer too."""
    try:
        import torch
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
    build = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    devices = []
    for number in range(torch.cuda.device_count()):
        try:
            devices.append(_device(torch, number))
        except Exception as error:
            print(f"cuda:{number}: {error}", file=sys.stderr)
    return {
        "torch_version": torch.__version__,
        "build": build,
        "devices": devices,
        "mps": bool(torch.backends.mps.is_available()),
    }


def _device(torch: Any, number: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(number)
    free_bytes, total_bytes = torch.cuda.mem_get_info(number)
    pci = ""
    if hasattr(properties, "pci_bus_id"):
        domain, bus, slot = (
            properties.pci_domain_id,
            properties.pci_bus_id,
            properties.pci_device_id,
        )
        pci = f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    return {
        "number": number,
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "pci": pci,
        "memory_total_bytes": total_bytes,
        "memory_free_bytes": free_bytes,
    }


if __name__ == "__main__":
    print(json.dumps(look()))
