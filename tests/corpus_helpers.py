"""Small runs over small data, for the tests of swarmd/data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    ModelConfig,
    OuterConfig,
    RunConfig,
)


def data_run(source: str, **changes: Any) -> RunConfig:
    """A run of 4 micro-batches a step and 2 samples of 16 tokens in each."""
    data = {
        name: changes.pop(name)
        for name in (
            "content_hash",
            "epochs",
            "held_out_sequences",
            "held_out_share",
            "samples_total",
            "tokeniser",
        )
        if name in changes
    }
    values: dict[str, Any] = {
        "name": "data",
        "preset": "none",
        "model": ModelConfig(vocab_size=256, width=16, layers=2, heads=2, kv_heads=1, ff_width=32),
        "boundary": BoundaryConfig(kind="dense"),
        "inner": InnerConfig(),
        "outer": OuterConfig(),
        "data": DataConfig(source=source, **{"held_out_sequences": 3, **data}),
        "layer_ranges": ((0, 0), (1, 1)),
        "inner_steps": 5,
        "total_steps": 20,
        "sequence_tokens": 16,
        "micro_batch_tokens": 32,
        "batch_tokens": 128,
        "seed": 7,
    }
    return RunConfig(**{**values, **changes})


def write_texts(folder: Path, count: int = 40, lines: int = 12) -> str:
    """Files whose every line says where it stands. Returns the source that reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = "".join(f"text {number:03d} line {line:03d} here\n" for line in range(lines))
        (folder / f"{number:03d}.txt").write_text(text)
    return f"text:{folder}/*.txt"
