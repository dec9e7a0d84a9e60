"""The state that replicas have in common: the parameters with which an outer round began.

Within a round each replica trains on data of its own, and moments are its own always; what all of
them agree on is x, the start of the round: bit for bit where every exchange was whole, closely
where one was cut short. So this is what a newcomer and a guardian get. The bytes of the file follow
from x, run, stage and round alone: replicas that agree write equal files, and any piece of it may
come from any of them.

The sketch is SKETCH_VALUES sums over ranges of x with alternating signs: two vectors are about as
far from each other as their sketches are, so that replicas can be compared without their bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from swarmd.compute.outer_state import FlatLayout
from swarmd.compute.state_file import metadata_for, save_state
from swarmd.protocols.outer_rules import Range

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import StageWorker

SKETCH_VALUES = 32


def round_state(
    worker: StageWorker,
    args: dict[str, Any],
    inputs: Sequence[memoryview],
    output: memoryview | None,
) -> tuple[dict[str, Any], int]:
    """args: path; round, the one that is on. data: round, next_step, sketch.

    Once the last round is over, and before the first, no round is on: then it is what the weights
    are now. If the worker is further already than `round`, it says so in its answer. Raises
    JobFailed: not_ready between two rounds, disk_full, disk_error.
    """
    layout = FlatLayout(worker.stage.shapes, worker.run_config.outer.mix2_cover)
    outer, round_number = worker.outer, int(args["round"])
    flat_N = None if outer is None else outer.start_of_round(round_number)
    if outer is not None and flat_N is not None:
        round_number = outer.round
    else:
        flat_N = layout.read(worker.params, Range(0, layout.elements))
    run = worker.run_config
    next_step = min(round_number * run.inner_steps, run.total_steps)
    named = {
        f"param/{place.name}": flat_N[place.first : place.first + place.count]
        .view(place.shape)
        .to(worker.params[place.name].dtype)
        .contiguous()
        for place in layout.places
    }
    path = Path(args["path"])
    save_state(named, path, metadata_for(run.run_id, worker.stage.index, next_step))
    sort_header(path)
    data = {"round": round_number, "next_step": next_step, "sketch": sketch_of(flat_N)}
    return data, 0


def sketch_of(flat_N: Tensor) -> list[float]:
    bounds = [place * flat_N.numel() // SKETCH_VALUES for place in range(SKETCH_VALUES + 1)]
    sums = []
    for first, end in itertools.pairwise(bounds):
        piece = flat_N[first:end]
        sums.append(float(piece[0::2].sum(dtype=torch.float64)))
        sums[-1] -= float(piece[1::2].sum(dtype=torch.float64))
    return sums


def sort_header(path: Path) -> None:
    """The library writes its metadata in an order that differs from process to process."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header: Mapping[str, Any] = json.loads(file.read(size))
        body = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        assert len(body) <= size, "the same header takes the same room"
        file.seek(8)
        file.write(body.ljust(size))
