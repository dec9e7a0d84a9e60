"""`--memory-limit`: refused where the stage cannot fit, and memory that really runs out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from compute_helpers import small_run

from swarmd.compute.failure_codes import failure_of
from swarmd.compute.memory_limit import device_memory, limit_memory, require_fit
from swarmd.compute.stage_loader import load_stage_worker
from swarmd.compute_api import WorkerConfig
from swarmd.errors import ComputeError
from swarmd.partition import stage_bytes

MIB = 1 << 20


def test_a_stage_that_is_larger_than_the_limit_is_refused_with_both_sizes(tmp_path: Path) -> None:
    run = small_run(2)
    needed = stage_bytes(run, 1)
    require_fit(run, 1, None)
    require_fit(run, 1, needed)
    config = WorkerConfig(run=run, stage=1, memory_max_bytes=needed - 1, cache_dir=tmp_path)
    with pytest.raises(ComputeError, match="--memory-limit is") as caught:
        load_stage_worker(config)
    assert caught.value.code == "model_does_not_fit"
    assert "stage 1 takes" in caught.value.text


def allocate_under_a_limit() -> int:
    """0: memory ran out where it should, as the kind of failure that it is."""
    limit_memory("cpu", 64 * MIB)
    torch.ones(8 * MIB, dtype=torch.uint8)
    try:
        torch.ones(200 * MIB, dtype=torch.uint8)
    except RuntimeError as error:
        return 0 if failure_of(error).code == "out_of_memory" else 2
    return 1


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limit is Linux's")
def test_beyond_the_limit_memory_runs_out_as_on_a_smaller_machine() -> None:
    child = os.fork()
    if child == 0:
        os._exit(allocate_under_a_limit())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_of_a_cpu_the_worker_tells_no_memory() -> None:
    assert device_memory(torch.device("cpu")) == {}
