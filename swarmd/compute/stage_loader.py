"""Loads the product's worker: one stage of a run, with the data where it reads them.

A module of its own because it imports torch: the process is tied to its daemon before that.
"""

from __future__ import annotations

import torch

from swarmd.compute import loading
from swarmd.compute.stage_worker import StageWorker
from swarmd.compute_api import WorkerConfig
from swarmd.data.corpus import open_corpus


def load_stage_worker(config: WorkerConfig) -> StageWorker:
    """Raises UserError (data_missing) and ComputeError (model_does_not_fit ...)."""
    if config.device.startswith("cuda"):
        torch.cuda.set_device(config.device)
    corpus = None
    if config.stage == 0:
        corpus = open_corpus(
            config.run,
            config.cache_dir,
            source=config.data_source,
            tell=lambda now: loading.say(f"packing the data: {now}"),
        )
    return StageWorker(config, corpus=corpus)
