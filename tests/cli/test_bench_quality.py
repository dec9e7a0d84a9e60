"""`swarmd bench quality`: which trainings a sweep is, what is kept of them, what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import swarmd

from swarmd.cli.bench_quality import MIXINGS, Case, Sweep, cases_of, table
from swarmd.cli.training_process import Followed, Training
from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.result_records import QualityRow

FULL = Sweep("tiny", 2, 80, (1, 2, 4), (1, 5, 20), tuple(MIXINGS), ((1.0, 0.0),), (1, 2))


def test_trainings_that_compute_the_same_are_run_once() -> None:
    cases = [case for case in cases_of(FULL) if case.seed == 1]
    assert len(cases) == len(set(cases))
    by_replicas = {
        count: [(c.mixing, c.inner_steps) for c in cases if c.mixing and c.replicas == count]
        for count in (1, 2, 4)
    }
    lengths = (1, 5, 20)
    assert by_replicas[1] == [("exact", 1)]
    assert by_replicas[2] == [
        *(("exact", h) for h in lengths),
        *(("global_m1", h) for h in lengths),
        ("none", 1),
    ]
    assert by_replicas[4] == [
        *((name, h) for name in MIXINGS if name != "none" for h in lengths),
        ("none", 1),
    ]


def test_with_momentum_the_length_of_a_round_matters_also_to_one_replica() -> None:
    sweep = Sweep("tiny", 2, 80, (1,), (5, 20), ("exact",), ((0.7, 0.9),), (1,))
    assert [case.inner_steps for case in cases_of(sweep) if case.mixing] == [5, 20]


def test_a_case_and_its_loop_read_the_same_tokens() -> None:
    case = Case("tiny", 2, 80, 3, 4, "gossip", 20, 0.7, 0.9, micro_batch_tokens=512)
    sections, loop = case.sections, case.loop.sections
    assert sections["outer"] == {"alpha": 0.7, "mu": 0.9, "mix1_group": 2, "mix2_group": 2}
    for key in ("preset", "stages", "total_steps", "seed", "micro_batch_tokens"):
        assert sections["run"][key] == loop["run"][key]


def row(seed: int, inner_steps: int, gap: float, **changes: Any) -> QualityRow:
    values: dict[str, Any] = {
        "stages": 2, "replicas": 2, "mixing": "exact", "inner_steps": inner_steps, "alpha": 1.0,
        "mu": 0.0, "seed": seed, "steps": 80, "rounds": 80 // inner_steps, "rounds_partial": 0,
        "local_batch_sequences": 16.0, "loss_heldout": 2.0 * (1 + gap), "loss_replica": 2.1,
        "loss_baseline": 2.0, "loss_gap_ratio": gap,
    }  # fmt: skip
    return QualityRow(**(values | changes))


def test_the_table_has_the_mean_of_the_seeds_and_how_far_they_lie_apart() -> None:
    rows = [row(1, 5, 0.02), row(2, 5, 0.04), row(1, 20, 0.1, rounds_partial=3)]
    head, line, *below = table(rows)
    assert head.split() == ["replicas", "mixing", "alpha/mu", "H=5", "H=20"]
    assert line.split(maxsplit=3)[3].split("  ") == ["+3.0 % (+2.0 to +4.0)", "+10.0 %"]
    assert below == [
        "held-out loss above the plain loop's, which is 2.000 (seed 1), 2.000 (seed 2)",
        "80 steps; sequences of a step at each replica: 16 with R=2",
        "3 rounds of replicas were partial or skipped: a guard refused something",
    ]


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--mixing", "exact,sideways", "all or some of exact"),
        ("--inner-steps", "0", "1,5,20"),
        ("--outer", "1", "1/0,0.7/0.9"),
    ],
)
def test_axes_that_cannot_be_are_refused(home: Home, flag: str, value: str, says: str) -> None:
    done = swarmd(*f"bench quality {flag} {value}".split(), home=home)
    assert done.code == 2
    assert says in done.err


@pytest.mark.parametrize("body", ["no json\n", "{}\n", '{"case": {"width": 1}, "found": {}}\n'])
def test_a_file_with_other_things_in_it_is_no_place_for_results(
    home: Home, tmp_path: Path, body: str
) -> None:
    results = tmp_path / "results"
    results.write_text(body)
    done = swarmd("bench", "quality", "--results", str(results), home=home)
    assert done.code == 2
    assert f"{results}, line 1" in done.err
    assert results.read_text() == body


def test_a_place_for_results_that_is_nowhere_is_told_before_the_training(
    home: Home, tmp_path: Path
) -> None:
    done = swarmd("bench", "quality", "--results", str(tmp_path / "no" / "where"), home=home)
    assert done.code == 2
    assert "No such file or directory" in done.err


@pytest.mark.process
@pytest.mark.slow
def test_results_are_kept_and_not_computed_again(home: Home, tmp_path: Path) -> None:
    results = tmp_path / "results"
    words = "bench quality --steps 2 --stages 1 --replicas 2 --mixing exact --inner-steps 1"
    words += f" --seeds 3 --micro-batch-tokens 2048 --results {results}"
    first = swarmd(*f"{words} --jobs 2 --json".split(), home=home)
    assert first.code == 0, first.err
    (only,) = first.object["rows"]
    assert only["rounds"] == 2
    assert only["rounds_partial"] == 0
    assert only["loss_heldout"] == pytest.approx(only["loss_baseline"], rel=0.01)
    kept = results.read_text()
    assert len(kept.splitlines()) == 2, "the row and its plain loop"
    again = swarmd(*f"{words} --json".split(), home=home)
    assert again.object["rows"] == [only]
    assert "%" not in again.err, "nothing was trained"
    assert results.read_text() == kept


def test_sizes_that_make_no_run_are_named(home: Home) -> None:
    done = swarmd(*"bench quality --steps 1 --stages 9".split(), home=home)
    assert done.code == 78
    assert "stages" in done.err


@pytest.mark.process
def test_a_training_that_fails_is_told_with_its_log(tmp_path: Path) -> None:
    training = Training("twin", b"no run at all", tmp_path, 1)
    with pytest.raises(UserError, match="twin ended with 1") as raised:
        Followed().train(training, tmp_path, "broken", on_step=lambda step, loss: None)
    assert (raised.value.code, raised.value.exit_code) == ("training_failed", 1)
    assert raised.value.hint == f"see {tmp_path / 'broken.log'}"
    assert (tmp_path / "broken.log").read_text()


def test_after_the_end_no_training_begins(tmp_path: Path) -> None:
    followed = Followed()
    followed.kill()
    training = Training("twin", b"", tmp_path, 1)
    with pytest.raises(UserError, match="stopped"):
        followed.train(training, tmp_path, "late", on_step=lambda step, loss: None)
