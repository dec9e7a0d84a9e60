"""What replicas cost in loss: real daemons that mix, beside the plain loop over the same tokens.

Preset `tiny` on Python's own library, 60 steps in 3 rounds, everything else as the preset has it:
four peers, as two stages of two replicas and as four replicas of the whole. Where a micro-batch
goes and into which step it counts depends on time there, so losses differ a little from run to run;
the sweep without that is `swarmd bench quality`. `-s` prints the losses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_swarm import RealSwarm, real_swarm

from swarmd.cli.training_process import Followed, Training
from swarmd.run_file import make_run

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

PEERS = 4
STEPS = 60
LIMIT_S = 3_000.0


def sections_of(stages: int, outer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    run = {
        "name": "quality", "preset": "tiny", "stages": stages, "total_steps": STEPS,
        "peers_min": PEERS, "seed": 7,
    }  # fmt: skip
    return {"run": run, "outer": outer}


def run_file(sections: dict[str, dict[str, Any]]) -> str:
    """Numbers and plain words are written in TOML as in JSON."""
    lines = []
    for name, keys in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def loss_of_twin(folder: Path, stages: int) -> float:
    run = make_run(sections_of(stages, {}), cache_dir=folder / "cache")
    training = Training("twin", run.canonical(), folder / "cache", 1)
    last = Followed().train(training, folder, "twin", on_step=lambda step, loss: None)
    return float(last["loss_heldout"])


def loss_of_swarm(folder: Path, stages: int, **outer: Any) -> float:
    """Held-out, the mean of what each head has at the end."""
    sections = sections_of(stages, outer)
    with real_swarm(folder, run_file(sections), limit_s=LIMIT_S) as swarm:
        swarm.start(PEERS, stages)
        swarm.wait_until_ended(*range(PEERS))
        print(f"{stages} stages, {PEERS // stages} replicas, {outer or 'the defaults'}:")
        heads = range(0, PEERS, stages)
        losses = [swarm.last_status(number)["progress"]["loss_heldout"] for number in heads]
        for number in heads:
            show(swarm, number, losses[number // stages])
        return float(sum(losses) / len(losses))


def show(swarm: RealSwarm, number: int, loss: float) -> None:
    told = [
        f"{fields['round']} of {len(fields['included'])}, {fields['disagreement'] or 0:.2f} apart"
        for fields in swarm.rounds(number)
    ]
    print(f"  p{number}: held-out {loss:.4f}; rounds {'; '.join(told)}")


def test_two_stages_of_two_replicas_are_within_4_percent_of_the_plain_loop(tmp_path: Path) -> None:
    """Pairs of two replicas are both of them, so this is exact averaging too."""
    twin = loss_of_twin(tmp_path, stages=2)
    swarm = loss_of_swarm(tmp_path / "swarm", stages=2)
    print(f"twin {twin:.4f}, swarm {swarm / twin - 1:+.1%}")
    assert swarm < 1.04 * twin


def test_four_replicas_are_within_10_percent_and_mixing_in_pairs_costs_less_than_4(
    tmp_path: Path,
) -> None:
    twin = loss_of_twin(tmp_path, stages=1)
    exact = loss_of_swarm(tmp_path / "exact", stages=1)
    pairs = loss_of_swarm(tmp_path / "pairs", stages=1, mix2_group=2)
    print(
        f"twin {twin:.4f}, exact {exact / twin - 1:+.1%}, pairs {pairs / exact - 1:+.1%} of exact"
    )
    assert exact < 1.10 * twin
    assert pairs < 1.04 * exact
