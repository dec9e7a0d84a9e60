"""A swarm of real daemons that goes on from a Llama in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from daemons import answer_of, daemons
from twin_llama import make_stages, scattered_weights

from swarmd.compute.hf_folder import write_folder
from swarmd.compute.state_file import metadata_for, save_state
from swarmd.data.tokeniser import BytesTokeniser
from swarmd.run_file import read_run_file

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

DENSE = '\n[boundary]\nkind = "dense"\nrank = 0\n'


def llama_for(run_file: Path, folder: Path, cache: Path) -> None:
    """Of the run's sizes, and so sure of its mistakes that no seed's loss could be taken for it."""
    run = read_run_file(run_file).measure(cache).config
    torch.manual_seed(5)
    stages = make_stages(run, torch.float32)
    files = {}
    for stage, params in zip(stages, scattered_weights(stages), strict=True):
        files[stage.index] = cache / f"{stage.index}.safetensors"
        params |= {name: 30.0 * value for name, value in params.items() if name == "head.weight"}
        named = {f"param/{name}": value.detach().contiguous() for name, value in params.items()}
        save_state(named, files[stage.index], metadata_for(run.run_id, stage.index, 0))
    folder.mkdir()
    write_folder(run, files, dict.fromkeys(files, 1), BytesTokeniser(), folder)


def test_a_run_starts_from_a_llama_and_every_stage_gets_its_part(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=2, peers_min=2, inner_steps=4, total_steps=400) as swarm:
        swarm.run_file.write_text(swarm.run_file.read_text() + DENSE)
        cache = tmp_path / "cache"
        cache.mkdir()
        llama_for(swarm.run_file, tmp_path / "llama", cache)
        at_home = ("--home", str(tmp_path / "p0"))
        made = answer_of(
            *at_home, "run", "create", str(swarm.run_file), "--init-from", str(tmp_path / "llama")
        )
        told = answer_of(*at_home, "eval", "--from", made["name"], "--threads", "1")
        swarm.start("p0", "--first", run=made["name"])
        swarm.start("p1", via="p0")

        def first_loss(name: str) -> Any:
            return swarm.status(name)["progress"]["loss_first"]

        loss = swarm.wait("they train", lambda: first_loss("p0") or first_loss("p1"))
        print(f"held out before: {told['loss']:.3f}; first trained on: {loss:.3f}")
        assert told["loss"] > 8.0, "by the seed it would be 5.5"
        assert loss == pytest.approx(told["loss"], rel=0.15)
        swarm.wait("a round is over", lambda: swarm.status("p1")["progress"]["outer_round"] >= 1)
