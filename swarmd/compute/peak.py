"""Measures what a device can do at best: large products of matrices, and nothing beside them.

    python -m swarmd.compute.peak < {"device": "cpu", "threads": 2, "seconds": 2}

In the numbers that stages compute with: bfloat16 on CUDA, float32 elsewhere. What comes out is what
the MFU of a peer is a share of. A process of its own, as dry_step.py; one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from swarmd.compute.failure_codes import found_or_failure

WIDTH_CUDA, WIDTH = 8_192, 1_024
"""Of square matrices: large enough that nothing but arithmetic counts."""
TURNS_MIN = 3


def measure(device: torch.device, seconds: float) -> dict[str, Any]:
    """The best of as many products as fit into `seconds`."""
    is_cuda = device.type == "cuda"
    width, dtype = (WIDTH_CUDA, torch.bfloat16) if is_cuda else (WIDTH, torch.float32)
    left = torch.randn(width, width, device=device, dtype=dtype)
    right = torch.randn(width, width, device=device, dtype=dtype)
    took_s: list[float] = []
    until_s = time.perf_counter() + seconds
    while len(took_s) < TURNS_MIN or time.perf_counter() < until_s:
        begun_s = time.perf_counter()
        product = left @ right
        product[0, 0].item()  # waits for the device
        took_s.append(time.perf_counter() - begun_s)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "width": width,
        "threads": torch.get_num_threads(),
        "products": len(took_s),
        "flops_per_s": 2.0 * width**3 / min(took_s),
    }


def main() -> int:
    asked = json.loads(sys.stdin.read())
    if asked["threads"] is not None:
        torch.set_num_threads(asked["threads"])
    found = found_or_failure(lambda: measure(torch.device(asked["device"]), asked["seconds"]))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
