"""Runs that are small enough for a test: a text that can be learnt, a model that learns it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from swarmd.data.sources import content_hash, parse_source
from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    ModelConfig,
    OuterConfig,
    RunConfig,
)


def write_text(folder: Path, lines_each: int = 60) -> Path:
    folder.mkdir()
    for number in range(40):
        lines = [
            f"line {number * i % 17} of {number}: the quick brown fox" for i in range(lines_each)
        ]
        (folder / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def run_over(folder: Path, **changes: Any) -> RunConfig:
    source = f"text:{folder}/*.txt"
    run = RunConfig(
        name="small",
        preset="",
        model=ModelConfig(vocab_size=256, width=32, layers=4, heads=4, kv_heads=2, ff_width=48),
        boundary=BoundaryConfig(rank=8, wire="int8"),
        inner=InnerConfig(lr=5e-3, warmup_steps=4),
        outer=OuterConfig(mix1_wire="int16"),
        data=DataConfig(
            source=source, content_hash=content_hash(parse_source(source)), held_out_sequences=4
        ),
        layer_ranges=((0, 1), (2, 3)),
        inner_steps=5,
        total_steps=60,
        sequence_tokens=16,
        micro_batch_tokens=32,
        batch_tokens=96,
        seed=7,
        peers_min=4,
        time_scale="local",
    )
    return dataclasses.replace(run, **changes)
