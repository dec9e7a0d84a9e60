"""Peers that lack a run's data, or have others in their place: they help with what they can."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from corpus_helpers import write_texts
from daemons import Daemons

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

RUN_FILE = """\
[run]
name = "own"
preset = "tiny"
data = "{source}"
time_scale = "local"
stages = {stages}
inner_steps = 2
total_steps = 2000
sequence_tokens = 16
micro_batch_tokens = 32
batch_tokens = 64

[data]
held_out_sequences = 3
"""


def trains(swarm: Daemons, name: str, stage: int) -> bool:
    status = swarm.status(name)
    held = (status.get("stage") or {}).get("index")
    return held == stage and status["contribution"]["micro_batches"] > 0


def test_strangers_without_the_data_take_other_stages_and_all_train(tmp_path: Path) -> None:
    """p0 keeps off the first stage at first, so that it is offered to the others. The files of p1
    are not the run's, p2 has none, and p3 has the right ones elsewhere."""
    source = write_texts(tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "copy")
    other = write_texts(tmp_path / "other", lines=13)
    swarm = Daemons(tmp_path, RUN_FILE.format(source=source, stages=2))
    try:
        swarm.start("p0", "--stage", "1", first=True)
        swarm.link("p0")
        (tmp_path / "in").rename(tmp_path / "gone")
        swarm.start("p1", "--data-source", other, via="p0")
        swarm.wait("p1 gave the first stage up", lambda: gave_up(swarm, "p1"))
        swarm.start("p2", via="p0")
        swarm.wait("p2 knows", lambda: "takes no first stage" in swarm.peers["p2"].said())
        swarm.start("p3", "--data-source", f"text:{tmp_path}/copy/*.txt", via="p0")
        for name, stage in (("p0", 1), ("p1", 1), ("p2", 1), ("p3", 0)):
            swarm.wait(f"{name} trains stage {stage}", lambda n=name, s=stage: trains(swarm, n, s))
        assert swarm.running() == ["p0", "p1", "p2", "p3"]
        assert "takes stage 0" not in swarm.peers["p2"].said()
    finally:
        swarm.close()


def gave_up(swarm: Daemons, name: str) -> bool:
    """It took the first stage, and found that its data are not the run's."""
    said = swarm.peers[name].said()
    return "takes stage 0" in said and "takes no first stage" in said


def test_where_no_other_stage_is_left_the_reason_is_the_data(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in")
    swarm = Daemons(tmp_path, RUN_FILE.format(source=source, stages=1))
    try:
        swarm.start("p0", first=True)
        swarm.link("p0")
        (tmp_path / "in").rename(tmp_path / "gone")
        swarm.start("p1", via="p0")
        swarm.wait(
            "p1 says what it lacks",
            lambda: (swarm.status("p1").get("reason") or {}).get("code") == "data_missing",
        )
        assert "--data-source" in swarm.status("p1")["reason"]["hint"]
        swarm.wait("p0 trains", lambda: trains(swarm, "p0", 0))
    finally:
        swarm.close()
