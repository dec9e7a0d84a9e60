"""Homes with checkpoints in them, and runs whose model reads bytes, without training anything."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from twin_llama import make_run, make_stages, scattered_weights

from swarmd.checkpoints import CheckpointFolder
from swarmd.home import home_at
from swarmd.home_files import remember_run
from swarmd.json_record import utc
from swarmd.run_config import ModelConfig, RunConfig

BYTES_MODEL = ModelConfig(
    vocab_size=256, width=24, layers=4, heads=4, kv_heads=2, ff_width=40, norm_eps=1e-6
)
REPOSITORY = Path(__file__).parent.parent


def bytes_run(kind: str, anchor_rank: int = 0, stages: int = 2) -> RunConfig:
    return make_run(model=BYTES_MODEL, kind=kind, anchor_rank=anchor_rank, stages=stages, tokens=64)


def write_states(run: RunConfig, folder: Path, seed: int = 3) -> dict[int, Path]:
    """State files as the worker writes them, of weights far from the start's."""
    torch.manual_seed(seed)
    stages = make_stages(run, torch.float32)
    files = {}
    for stage, params in zip(stages, scattered_weights(stages), strict=True):
        files[stage.index] = folder / f"{stage.index}.safetensors"
        named = {f"param/{name}": value.detach().contiguous() for name, value in params.items()}
        about = {"run_id": run.run_id, "stage": str(stage.index), "next_step": "5"}
        save_file(named, files[stage.index], {"format": "swarmd-stage-1", **about})
    return files


def write_home(root: Path, run: RunConfig, stages: list[int], rounds: list[int]) -> Path:
    """A home that holds checkpoints of these stages at these rounds."""
    home = home_at(root)
    home.create()
    remember_run(home, run, (), used_at=utc())
    folder = CheckpointFolder(home.checkpoints, run.run_id)
    for round_number in rounds:
        states = write_states(run, root, seed=round_number)
        for stage in stages:
            folder.keep(states[stage], stage=stage, round_number=round_number, step=5, ledger=())
    return root


def real_sequences(count: int, tokens: int) -> Tensor:
    """(count, tokens) bytes of this project's own sources."""
    text = b"".join(path.read_bytes() for path in sorted((REPOSITORY / "protocols").glob("*.py")))
    spread = (len(text) - tokens) // count
    return torch.tensor([list(text[n * spread : n * spread + tokens]) for n in range(count)])
