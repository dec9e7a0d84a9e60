"""A plain Llama's weights as the states of a dense run's stages, with which round 0 begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from swarmd.compute.outer_state import FlatLayout
from swarmd.compute.round_state import sketch_of, sort_header
from swarmd.compute.state_file import metadata_for, save_state
from swarmd.compute.whole_model import dense_from, read_export
from swarmd.model.stage import build_stage
from swarmd.protocols.outer_rules import Range
from swarmd.run_config import RunConfig


def write_states(
    run: RunConfig, folder: Path, targets: dict[int, Path], *, tied: bool
) -> dict[str, Any]:
    """targets: a file for each stage. tied: the head is the embedding. Returns sketches by stage.

    Raises UserError for a weight that is missing, misshapen or not finite; JobFailed (disk_full,
    disk_error).
    """
    tensors = read_export(folder)
    if tied and "model.embed_tokens.weight" in tensors:
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    sketches = {}
    for index in range(run.stages):
        stage = build_stage(run, index, dtype=torch.float32)
        params = dense_from(folder, tensors, stage)
        named = {f"param/{name}": value for name, value in params.items()}
        save_state(named, targets[index], metadata_for(run.run_id, index, 0))
        sort_header(targets[index])
        layout = FlatLayout(stage.shapes, run.outer.mix2_cover)
        sketches[str(index)] = sketch_of(layout.read(params, Range(0, layout.elements)))
    return sketches
