"""Loads the product's worker: one stage of a run, with the data where it reads them.

A module of its own because it imports torch: the process is tied to its daemon before that.
"""

from __future__ import annotations

import torch

from swarmd.compute import loading
from swarmd.compute.memory_limit import limit_memory, require_fit
from swarmd.compute.stage_worker import StageWorker
from swarmd.compute_api import WorkerConfig
from swarmd.data.corpus import open_corpus
from swarmd.data.read_ahead import ReadAhead


def load_stage_worker(config: WorkerConfig) -> StageWorker:
    """Raises UserError (data_missing) and ComputeError (model_does_not_fit ...)."""
    require_fit(config.run, config.stage, config.memory_max_bytes)
    if config.device.startswith("cuda"):
        torch.cuda.set_device(config.device)
    limit_memory(config.device, config.memory_max_bytes)
    corpus = None
    if config.stage == 0:
        run = config.run
        found = open_corpus(
            run,
            config.cache_dir,
            source=config.data_source,
            tell=lambda now: loading.say(f"packing the data: {now}"),
        )
        corpus = ReadAhead(found, run.inner_steps * run.micro_batches_per_step)
    return StageWorker(config, corpus=corpus)
