"""Mix1 behind the inner steps, on links shaped to a home connection; plain blocking beside it.

Two replicas of 19 million parameters, 100 Mbit/s and 40 ms between them: 38 MB cross in Mix1 each
way, three seconds of link. What counts as hidden is measured as overlap by the rounds themselves.
`-s` prints the rounds of both ways.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from real_swarm import real_swarm

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

ROUNDS = 4
INNER_STEPS = 16
"""Enough for an inner phase of twice the link's time also on a processor that is quick."""
RUN = """
[run]
name = "hidden"
preset = "tiny"
stages = 1
inner_steps = {inner_steps}
total_steps = {steps}
sequence_tokens = 128
micro_batch_tokens = 256
batch_tokens = 512
peers_min = 2
seed = 7

[model]
width = 512
layers = 6
heads = 8
kv_heads = 4
ff_width = 1536

[boundary]
rank = 128

[outer]
mix1_blocking = {mix1_blocking}
mix2_group = {mix2_group}
"""


def rounds_of(folder: Path, **how: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rounds but the first, which meets before everybody knows everybody; and the last status.
    Of one replica: the other's are the same the other way round."""
    run_file = RUN.format(inner_steps=INNER_STEPS, steps=INNER_STEPS * ROUNDS, **how)
    with real_swarm(folder, run_file, limit_s=3_000.0) as swarm:
        swarm.start(2, 1, "--shape", "100mbit,40ms")
        swarm.wait_until_ended(0, 1)
        return swarm.rounds(0)[1:], swarm.last_status(0)


def show(name: str, rounds: list[dict[str, Any]], status: dict[str, Any]) -> None:
    print(name, "utilisation", status["throughput"]["compute_utilisation_total"])
    for fields in rounds:
        keys = ("round", "mix1_s", "hidden_s", "mix2_s", "blocking_s", "held_s")
        print("  ", {key: fields[key] for key in keys if key in fields})


def test_mix1_hides_behind_inner_steps_on_a_home_link(tmp_path: Path) -> None:
    rounds, status = rounds_of(tmp_path / "hidden", mix1_blocking="false", mix2_group=1)
    show("GlobalM1", rounds, status)
    assert len(rounds) == ROUNDS - 1
    whole = [f for f in rounds if all(len(part["included"]) == 2 for part in f["parts"])]
    assert len(whole) >= 2, (
        "every part is mixed; a machine that stutters may cost one round of three"
    )
    assert median(fields["mix1_s"] for fields in rounds) > 2.5, "the link is as it was said"
    assert median(fields["hidden_s"] / fields["mix1_s"] for fields in rounds) >= 0.95
    assert median(fields["blocking_s"] for fields in rounds) < 0.5


def test_plain_diloco_with_the_same_code_waits_for_its_mixes(tmp_path: Path) -> None:
    rounds, status = rounds_of(tmp_path / "blocking", mix1_blocking="true", mix2_group=0)
    show("DiLoCo", rounds, status)
    assert len(rounds) == ROUNDS - 1
    assert median(fields["hidden_s"] for fields in rounds) < 0.5
    assert median(fields["blocking_s"] for fields in rounds) > 7.5, "nine seconds of link"
