"""Which saved model a command reads, and that it can be read to the end while daemons go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_state_helpers import bytes_run, write_home, write_states

from swarmd import saved_models
from swarmd.checkpoints import CheckpointFolder, size_and_hash
from swarmd.compute.hf_folder import write_folder
from swarmd.compute.whole_model import WholeModel, read_parameters
from swarmd.data.tokeniser import BytesTokeniser
from swarmd.errors import UserError
from swarmd.home import Home, home_at
from swarmd.model.stage import build_stage
from swarmd.protocols.saved_states import common_round
from swarmd.run_config import RunConfig
from swarmd.saved_models import find_model


@pytest.fixture
def run() -> RunConfig:
    return bytes_run("subspace")


def next_round(home: Home, run: RunConfig, number: int) -> None:
    """As a daemon that keeps one round of each stage begins its next one."""
    folder = CheckpointFolder(home.checkpoints, run.run_id, kept=1)
    states = write_states(run, home.cache, seed=number)
    for stage, state in states.items():
        folder.keep(state, stage=stage, round_number=number, step=number, ledger=())


def test_the_newest_round_of_every_stage_is_taken_from_a_folder_of_homes(
    tmp_path: Path, run: RunConfig
) -> None:
    write_home(tmp_path / "p0", run, [0], [4, 5])
    write_home(tmp_path / "p1", run, [1], [3, 4])
    with find_model(str(tmp_path), home_at(tmp_path / "nobody")) as found:
        assert (found.round, found.rounds, found.notes) == (4, {0: 4, 1: 4}, ())
        assert found.run == run
        assert found.rounds_shown == "round 4"


def test_stages_of_different_rounds_are_said_to_be(tmp_path: Path, run: RunConfig) -> None:
    write_home(tmp_path / "p0", run, [0], [5])
    write_home(tmp_path / "p1", run, [1], [3])
    with find_model(str(tmp_path), home_at(tmp_path / "nobody")) as found:
        assert found.rounds_by_stage == [5, 3]
        assert found.rounds_shown == "rounds 3 to 5"
        assert "stage 0 of round 5, 1 of round 3" in found.notes[0]


def test_a_stage_that_is_nowhere_is_named(tmp_path: Path, run: RunConfig) -> None:
    write_home(tmp_path / "p0", run, [0], [4])
    with (
        pytest.raises(UserError, match="stage 1") as caught,
        find_model(str(tmp_path), home_at(tmp_path / "nobody")),
    ):
        pass
    assert (caught.value.code, caught.value.exit_code) == ("stage_missing", 1)


def test_a_spoilt_checkpoint_is_passed_over_and_said(tmp_path: Path, run: RunConfig) -> None:
    home = home_at(write_home(tmp_path, run, [0, 1], [3, 4, 5]))
    with find_model(None, home) as newest:
        assert newest.round == 5
    os.truncate(newest.states[1], 100)
    (newest.states[0].parent.parent / "stage-00-round-000004" / "state.safetensors").unlink()
    with find_model(run.name, home) as found:
        assert found.round == 3
        told = "\n".join(found.notes)
    assert "100 bytes long" in told
    assert "No such file" in told


# ------------------------------------------------------------------------------ daemons that go on


def test_what_was_chosen_is_read_to_the_end_though_its_daemon_removes_it(
    tmp_path: Path, run: RunConfig
) -> None:
    home = home_at(write_home(tmp_path, run, [0, 1], [4]))
    written = write_states(run, tmp_path, seed=4)
    with find_model(None, home) as model:
        for number in (5, 6, 7):
            next_round(home, run, number)
        assert not any(path.exists() for path in model.states.values())
        for stage, descriptor in model.descriptors.items():
            built = build_stage(run, stage)
            held = read_parameters(built, Path(f"/dev/fd/{descriptor}"))
            first = read_parameters(built, written[stage])
            assert all(torch.equal(held[name], first[name]) for name in first)
    for descriptor in model.descriptors.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_what_goes_before_it_could_be_opened_is_chosen_anew_without_a_word(
    tmp_path: Path, run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_at(write_home(tmp_path, run, [0, 1], [4]))
    rounds = iter((5, 6))

    def choose_slowly(
        claims: Iterable[tuple[int, tuple[int, ...]]], stages: int
    ) -> tuple[int | None, str]:
        for number in rounds:
            next_round(home, run, number)
            break
        return common_round(claims, stages)

    monkeypatch.setattr(saved_models, "common_round", choose_slowly)
    with find_model(None, home) as found:
        assert (found.round, found.notes) == (6, ())


def test_what_goes_while_it_is_listed_is_looked_for_again(
    tmp_path: Path, run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_at(write_home(tmp_path, run, [0, 1], [4]))
    folder = CheckpointFolder(home.checkpoints, run.run_id)
    names = folder._names(0)
    next_round(home, run, 5)
    lists = [names]
    monkeypatch.setattr(
        CheckpointFolder,
        "_names",
        lambda self, stage: lists.pop() if lists else ["stage-00-round-000005"],
    )
    found, unusable = folder.listed(0)
    assert [checkpoint.round for checkpoint in found] == [5]
    assert unusable == []


# ------------------------------------------------------------------------------------------ exports


@pytest.fixture
def exported(tmp_path: Path, run: RunConfig) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    states = write_states(run, tmp_path)
    write_folder(run, states, dict.fromkeys(states, 3), BytesTokeniser(), folder)
    return folder


def _flip_a_bit(folder: Path) -> str:
    path = folder / "model.safetensors"
    body = bytearray(path.read_bytes())
    body[-1000] ^= 1
    path.write_bytes(body)
    return "model.safetensors: is not what was written"


def _take_a_file(folder: Path) -> str:
    (folder / "tokenizer.json").unlink()
    return "tokenizer.json: No such file"


def _cut_a_file(folder: Path) -> str:
    os.truncate(folder / "config.json", 100)
    return "config.json: is 100 bytes long, not "


def _add_weights(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    return "model.safetensors.index.json: is not of this export"


def _name_a_file_elsewhere(folder: Path) -> str:
    path = folder / "swarmd.json"
    about = json.loads(path.read_text())
    about["files"][0]["name"] = "../config.json"
    path.write_text(json.dumps(about))
    return "swarmd.json: is not what `swarmd export` writes"


@pytest.mark.parametrize(
    "change", [_flip_a_bit, _take_a_file, _cut_a_file, _add_weights, _name_a_file_elsewhere]
)
def test_an_export_that_is_not_as_it_was_written_is_not_used(
    tmp_path: Path, exported: Path, change: Callable[[Path], str]
) -> None:
    home = home_at(tmp_path / "nobody")
    with find_model(str(exported), home) as sound:
        assert (sound.export, sound.rounds_by_stage) == (exported, [3, 3])
    said = change(exported)
    with pytest.raises(UserError) as refused, find_model(str(exported), home):
        pass
    assert said in str(refused.value)
    assert (refused.value.code, refused.value.exit_code) == ("checkpoint_unusable", 1)
    assert "export it anew" in refused.value.hint


def test_reading_an_export_is_told_and_can_be_ended(tmp_path: Path, exported: Path) -> None:
    class Enough(Exception):
        pass

    heard: list[tuple[str, int]] = []

    def tell(path: Path, bytes_read: int) -> None:
        heard.append((path.name, bytes_read))
        if path.name == "model.safetensors":
            raise Enough

    home = home_at(tmp_path / "nobody")
    with pytest.raises(Enough), find_model(str(exported), home, tell):
        pass
    assert heard[-1] == ("model.safetensors", (exported / "model.safetensors").stat().st_size)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_whatever_the_hashes_say(
    tmp_path: Path, run: RunConfig, exported: Path, value: float
) -> None:
    weights, about_file = exported / "model.safetensors", exported / "swarmd.json"
    tensors = load_file(weights)
    tensors["model.embed_tokens.weight"][7, 7] = value
    save_file(tensors, weights, {"format": "pt"})
    about = json.loads(about_file.read_text())
    for file in about["files"]:
        file["bytes"], file["hash"] = size_and_hash(exported / file["name"])
    about_file.write_text(json.dumps(about))
    with find_model(str(exported), home_at(tmp_path / "nobody")) as found:
        assert found.export == exported
    with pytest.raises(UserError, match=r"embedding.weight that are not finite"):
        WholeModel.of_export(run, exported)


def test_a_model_of_another_kind_is_called_one(tmp_path: Path, exported: Path) -> None:
    (exported / "swarmd.json").unlink()
    with (
        pytest.raises(UserError, match=r"holds a model .*, but no swarmd.json") as refused,
        find_model(str(exported), home_at(tmp_path / "nobody")),
    ):
        pass
    assert (refused.value.code, refused.value.exit_code) == ("no_state", 1)
    assert "--init-from" in refused.value.hint
