"""A run file means the same run everywhere, and what is wrong with it is named by line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmd.errors import UserError
from swarmd.partition import stage_parameters
from swarmd.peer_id import peer_id_of
from swarmd.run_file import (
    make_run,
    preset_names,
    preset_sections,
    read_run_file,
    run_document,
)
from swarmd.toml_file import render_toml

HASHED = {"content_hash": "ab" * 32}
TEXT = b"the quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With documents enough to train on and to hold out."""
    (tmp_path / "text").mkdir()
    for number in range(200):
        (tmp_path / "text" / f"{number:03}.txt").write_bytes(b"%d " % number + TEXT)
    return tmp_path


def load(folder: Path, text: str, **overrides: dict[str, Any]) -> Any:
    file = folder / "run.toml"
    file.write_text(text)
    plan = read_run_file(file, overrides=overrides)
    assert plan.check().name
    return plan.measure(folder / "cache").config


def run_of(**sections: dict[str, Any]) -> Any:
    return make_run({"data": HASHED, **sections}, cache_dir=Path("/nonexistent"))


# ------------------------------------------------------------------------------------------ presets


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_valid_run(name: str) -> None:
    run = run_of(run={"name": "x", "preset": name})
    assert run.preset == name
    assert run.stages == preset_sections(name)["run"]["stages"]
    assert 0 < run.loss_share < 1


@pytest.mark.parametrize(
    ("name", "millions"), [("tiny", 1), ("small", 30), ("125m", 125), ("1b", 1000), ("8b", 8600)]
)
def test_preset_has_about_the_size_its_name_says(name: str, millions: int) -> None:
    run = run_of(run={"name": "x", "preset": name})
    total = sum(stage_parameters(run, stage) for stage in range(run.stages))
    assert 0.7 < total / millions / 1e6 < 1.2


def test_bulky_holds_much_state_for_its_arithmetic() -> None:
    from swarmd.partition import flops_per_token

    def state_per_flop(name: str) -> float:
        run = run_of(run={"name": "x", "preset": name})
        return stage_parameters(run, 0) / flops_per_token(run, 0) / run.batch_tokens

    assert state_per_flop("bulky") > 50 * state_per_flop("tiny")


# -------------------------------------------------------------------------------------------- files


def test_file_of_three_lines_is_a_run(folder: Path) -> None:
    run = load(
        folder, f'[run]\nname = "demo"\npreset = "tiny"\ndata = "text:{folder}/text/*.txt"\n'
    )
    assert run.name == "demo"
    assert len(run.data.content_hash) == 64
    assert run.layer_ranges == ((0, 1), (2, 3))


def test_run_id_depends_on_the_data_and_not_on_their_place(folder: Path, tmp_path: Path) -> None:
    text = '[run]\nname = "demo"\npreset = "tiny"\ndata = "text:*.txt"\n'
    elsewhere = tmp_path / "elsewhere"
    (folder / "text").rename(elsewhere)
    first = load(folder, text, run={"data": f"text:{elsewhere}/*.txt"})
    (elsewhere / "000.txt").write_bytes(b"changed " + TEXT)
    second = load(folder, text, run={"data": f"text:{elsewhere}/*.txt"})
    assert first.data.content_hash != second.data.content_hash
    assert first.run_id != second.run_id


def test_epochs_end_the_run_when_every_sample_was_seen(folder: Path) -> None:
    text = (
        f'[run]\nname = "d"\npreset = "tiny"\ndata = "text:{folder}/text/*.txt"\n'
        "data_epochs = 1\ntotal_steps = 100000\n"
    )
    run = load(folder, text)
    assert run.data.samples_total > 0
    assert run.total_steps == -(-run.data.samples_total // run.batch_samples)
    again = make_run(run_document(run), cache_dir=Path("/nonexistent"))
    assert again == run


def test_file_wins_over_preset_and_override_over_file(folder: Path) -> None:
    text = '[run]\nname = "d"\npreset = "tiny"\nseed = 3\n[inner]\nlr = 1e-3\n[data]\n' + (
        f'content_hash = "{"ab" * 32}"\n'
    )
    run = load(folder, text, inner={"lr": 5e-3})
    assert (run.seed, run.inner.lr, run.inner.warmup_steps) == (3, 5e-3, 40)


def test_run_without_a_preset_gives_its_own_sizes() -> None:
    run = run_of(
        run={
            "name": "own", "stages": 3, "inner_steps": 5, "total_steps": 10,
            "sequence_tokens": 16, "micro_batch_tokens": 32, "batch_tokens": 64,
        },
        model={
            "vocab_size": 256, "width": 32, "layers": 6, "heads": 4, "kv_heads": 2, "ff_width": 64,
        },
        boundary={"kind": "dense", "rank": 0},
    )  # fmt: skip
    assert (run.stages, run.preset, run.seed) == (3, "", 7)


def test_layer_ranges_of_the_file_win_over_the_balance() -> None:
    run = run_of(run={"name": "x", "preset": "tiny", "layer_ranges": [[0, 0], [1, 1], [2, 3]]})
    assert run.stages == 3


def test_another_kind_of_boundary_drops_the_ranks_that_do_not_go_with_it() -> None:
    tiny = {"name": "x", "preset": "tiny"}
    assert run_of(run=tiny, boundary={"kind": "dense"}).boundary.rank == 0
    bulky = {"name": "x", "preset": "bulky"}
    assert run_of(run=bulky, boundary={"kind": "subspace"}).boundary.anchor_rank == 0


def test_entry_addresses_are_read_and_are_not_part_of_the_run(folder: Path) -> None:
    from swarmd.run_link import ADDRESS_EXAMPLE

    text = f'[run]\nname = "d"\npreset = "tiny"\n{{}}[data]\ncontent_hash = "{"ab" * 32}"\n'
    plain = load(folder, text.format(""))
    found = load(folder, text.format(f'entry = ["{ADDRESS_EXAMPLE}"]\n'))
    entries = read_run_file(folder / "run.toml").entries
    assert [str(entry) for entry in entries] == [ADDRESS_EXAMPLE]
    assert found.run_id == plain.run_id


@pytest.mark.parametrize("preset", preset_names())
def test_shown_run_reads_back_as_the_same_run(preset: str, folder: Path) -> None:
    run = run_of(
        run={
            "name": 'a "b" \\ ü',
            "preset": preset,
            "operators": [peer_id_of(bytes(32))],
            "protocol": {"max": 3},
        },
        test={"allow_injection": True},
    )
    assert load(folder, render_toml(run_document(run))) == run


# ------------------------------------------------------------------------------------------- faults

GOOD = '[run]\nname = "d"\npreset = "tiny"\n'


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[run]\nname = \n", "run.toml:2", "Invalid value"),
        (GOOD + "stagse = 2\n", "run.toml:4: run.stagse", "did you mean 'stages'"),
        (GOOD + "[modle]\n", "run.toml:4: modle", "did you mean 'model'"),
        (GOOD + "[data]\nsource = 'text:x'\n", "run.toml:5: data.source", "unknown key"),
        ("run = 3\n", "run.toml:1: run", "must be a section"),
        (GOOD + 'operators = ["k"]\n', "run.toml:4: run.operators", "named by their peer id"),
        (GOOD + "[model]\nwidth = 10000000000\n", "run.toml:5: model.width", "is a mistake"),
        (GOOD.replace('"d"', '"d\\u001b[31m"'), "run.toml:2: run.name", "nobody would see"),
        ('[run]\nname = "d"\npreset = "tny"\n', "run.toml:3: run.preset", "did you mean 'tiny'"),
        ('[run]\nname = "d"\npreset = 3\n', "run.toml:3: run.preset", "must be a text"),
        ('[run]\nname = "d"\n', "run.toml", "is missing, and no preset gives it"),
        ('[run]\npreset = "tiny"\n', "run.name", "is missing"),
        (GOOD + "stages = 5\n", "run.toml:4: run.stages", "1 to 4"),
        (GOOD + 'stages = "2"\n', "run.toml:4: run.stages", "no whole number"),
        (GOOD + "stages = 2\nlayer_ranges = [[0, 3]]\n", "run.toml:5: run.layer_ranges", "stages"),
        (GOOD + "layer_ranges = [[0, 1], [3, 3]]\n", "run.toml:4", "contiguous"),
        (GOOD + "layer_ranges = 3\n", "run.toml:4", "list"),
        (GOOD + "seed = true\n", "run.toml:4: run.seed", "int"),
        (GOOD + "total_steps = 0\n", "run.toml:4: run.total_steps", "at least 1"),
        (GOOD + "data_epochs = 'x'\n", "run.toml:4: run.data_epochs", "whole number"),
        (GOOD + "data = 3\n", "run.toml:4: run.data", "str"),
        (GOOD + "data = 'nothing'\n", "run.toml:4: run.data", "KIND:WHAT"),
        (GOOD + "protocol = { mni = 1 }\n", "run.toml:4: run.protocol", "form"),
        (GOOD + "entry = ['x']\n", "run.toml:4: run.entry", "form"),
        (GOOD + "[model]\nwidth = 'wide'\n", "run.toml:5: model.width", "int"),
        (GOOD + "[model]\nheads = 3\n", "run.toml:5: model.heads", "must divide"),
        (GOOD + "[inner]\nlr = nan\n", "run.toml:5: inner.lr", "finite"),
        (GOOD + "[inner]\nbeta1 = 1.0\n", "run.toml:5: inner.beta1", "from 0 to below 1"),
        (GOOD + "[outer]\nmu = 1.0\n", "run.toml:5: outer.mu", "from 0 to below 1"),
        (GOOD + "[outer]\nalpha = 0.0\n", "run.toml:5: outer.alpha", "above 0, at most 2"),
        (GOOD + "[data]\nheld_out_share = 0.5\n", "data.held_out_share", "above 0, below 0.5"),
        (GOOD + "[boundary]\nrank = 500\n", "run.toml:5: boundary.rank", "below"),
        (GOOD + "[boundary]\nrank = -1\n", "run.toml:5: boundary.rank", "at least 1"),
        (GOOD + "[data]\nheld_out_share = 'x'\n", "run.toml:5: data.held_out_share", "number"),
        (GOOD + "[test]\nallow_injection = 1\n", "test.allow_injection", "bool"),
        (GOOD + "time_scale = ''\n", "run.toml:4: run.time_scale", "one of ('wan', 'local')"),
        (GOOD + "loss_share = 0.0\n", "run.toml:4: run.loss_share", "above 0, at most 1"),
        (GOOD + "loss_share = 1.5\n", "run.toml:4: run.loss_share", "above 0, at most 1"),
        (GOOD + "init_hash = 'ab'\n", "run.toml:4: run.init_hash", "64 digits"),
        (GOOD + "[model]\nnorm_eps = 0.0\n", "run.toml:5: model.norm_eps", "positive"),
        (GOOD + "[model]\nrope_base = -1.0\n", "run.toml:5: model.rope_base", "positive"),
        (GOOD + "[inner]\neps = 0.0\n", "run.toml:5: inner.eps", "positive"),
        (GOOD + f"[data]\ncontent_hash = '{'zz' * 32}'\n", "run.toml:5: data.content_hash", "hex"),
        (GOOD + "[data]\nsamples_total = -1\n", "run.toml:5: data.samples_total", "0 or more"),
    ],
)
def test_cli_01_fault_names_file_line_and_key(
    folder: Path, text: str, where: str, what: str
) -> None:
    with pytest.raises(UserError) as caught:
        load(folder, text)
    assert caught.value.exit_code == 78
    assert where in str(caught.value)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_run_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run file") as caught:
        read_run_file(tmp_path / "x.toml")
    assert caught.value.exit_code == 2


def test_data_that_are_not_here_are_named(folder: Path) -> None:
    with pytest.raises(UserError, match="nowhere") as caught:
        load(folder, GOOD + f"data = 'text:{folder}/nowhere/*'\n")
    assert (caught.value.code, caught.value.exit_code) == ("data_missing", 78)


@pytest.mark.parametrize("key", ["seed", "inner_steps"])
def test_an_integer_that_no_machine_could_bear_is_named(folder: Path, key: str) -> None:
    text = f'[run]\nname = "x"\npreset = "tiny"\ndata = "text:{folder}/text/*.txt"\n'
    with pytest.raises(UserError, match=f"run.toml:5: run.{key}: is beyond") as caught:
        load(folder, f"{text}{key} = {10**22}\n")
    assert caught.value.exit_code == 78
