"""A run of four replicas of one small model, for tests of outer rounds between real daemons."""

from __future__ import annotations

import json
import math
from pathlib import Path

from inprocess_runs import write_text
from real_swarm import RealSwarm

REPLICAS = 4
LOSS_FIRST = math.log(256)
"""Of a model that knows nothing."""
STEPS_A_ROUND = 5
_RUN = """
[run]
name = "rounds"
preset = "tiny"
stages = 1
inner_steps = {inner_steps}
total_steps = {steps}
sequence_tokens = 32
micro_batch_tokens = 64
batch_tokens = 1024
peers_min = 4
seed = 7
data = {data}

[model]
width = 32
layers = 2
ff_width = 64

[boundary]
rank = 8

[outer]
mix2_group = {mix2_group}

[test]
allow_injection = true
"""


def run_file(folder: Path, *, rounds: int, mix2_group: int = 0) -> str:
    """folder: for the text that they learn from."""
    text = write_text(folder / "text", lines_each=120)
    return _RUN.format(
        inner_steps=STEPS_A_ROUND,
        steps=STEPS_A_ROUND * rounds,
        mix2_group=mix2_group,
        data=json.dumps(f"text:{text}/*.txt"),
    )


def wait_for_round(swarm: RealSwarm, number: int, replica: int = 0) -> None:
    swarm.wait_for(lambda: len(swarm.rounds(replica)) > number, f"round {number}")
