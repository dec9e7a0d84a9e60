"""A run that starts from an existing Llama: what fits, what does not, what its home then has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_state_helpers import bytes_run, real_sequences, write_states

from swarmd.checkpoints import CheckpointFolder
from swarmd.cli import init_from
from swarmd.cli.time_limit import TimeLimit
from swarmd.compute import look
from swarmd.compute.hf_folder import write_folder
from swarmd.compute.whole_model import WholeModel
from swarmd.data.tokeniser import BytesTokeniser
from swarmd.errors import UserError
from swarmd.home import Home, home_at
from swarmd.home_files import remember_run
from swarmd.json_record import utc
from swarmd.node.saved import guarded_in
from swarmd.run_config import RunConfig
from swarmd.saved_models import find_model


@pytest.fixture
def run() -> RunConfig:
    return bytes_run("dense")


@pytest.fixture
def llama(tmp_path: Path, run: RunConfig) -> Path:
    """A folder as anybody's might be."""
    folder, states = tmp_path / "llama", tmp_path / "states"
    folder.mkdir()
    states.mkdir()
    files = write_states(run, states)
    write_folder(run, files, dict.fromkeys(files, 1), BytesTokeniser(), folder)
    (folder / "swarmd.json").unlink()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = home_at(tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading torch once more for each test takes seconds, and is tested once."""

    def have_done(
        task: str, run: RunConfig, asked: dict[str, Any], *, limit: TimeLimit
    ) -> dict[str, Any]:
        asked = json.loads(json.dumps({"run": run.canonical().hex(), **asked}))
        return json.loads(json.dumps(look.TASKS[task](asked)))  # type: ignore[no-any-return]

    monkeypatch.setattr(init_from, "have_done", have_done)


def take_in(home: Home, run: RunConfig, folder: Path) -> RunConfig:
    return init_from.take_in(home, run, folder, TimeLimit(None, lambda text: None))


def change(llama: Path, **values: Any) -> None:
    path = llama / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps(config))


@pytest.mark.slow
def test_every_stage_is_there_at_round_0_and_computes_the_same(
    tmp_path: Path, run: RunConfig, llama: Path, home: Home
) -> None:
    made = take_in(home, run, llama)
    assert made.init_hash
    assert made.run_id != run.run_id
    guarded, unusable = guarded_in(CheckpointFolder(home.guarded, made.run_id, kept=1), run.stages)
    assert [(g.stage, g.round, g.step) for g in guarded] == [(n, 0, 0) for n in range(run.stages)]
    assert all(g.sketch for g in guarded)
    assert not unusable
    remember_run(home, made, (), used_at=utc())
    with find_model(None, home) as found:
        ids_BT = real_sequences(4, run.sequence_tokens)
        ours = WholeModel.of_states(made, found.states).logits(ids_BT)
    before = {stage: tmp_path / "states" / f"{stage}.safetensors" for stage in range(run.stages)}
    assert torch.equal(ours, WholeModel.of_states(run, before).logits(ids_BT))
    assert not list((home.cache / "state").iterdir())


@pytest.mark.usefixtures("in_this_process")
def test_a_tied_head_becomes_a_head_of_its_own(run: RunConfig, llama: Path, home: Home) -> None:
    tensors = load_file(llama / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    change(llama, tie_word_embeddings=True)
    made = take_in(home, run, llama)
    last = home.guarded / made.run_id[:16] / f"stage-{run.stages - 1:02}-round-000000"
    head = load_file(last / "state.safetensors")["param/head.weight"]
    assert torch.equal(head, tensors["model.embed_tokens.weight"])


@pytest.mark.usefixtures("in_this_process")
def test_other_weights_are_another_run(run: RunConfig, llama: Path, home: Home) -> None:
    first = take_in(home, run, llama)
    assert take_in(home, run, llama).run_id == first.run_id
    tensors = load_file(llama / "model.safetensors")
    tensors["model.norm.weight"][0] += 1.0
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    assert take_in(home, run, llama).run_id != first.run_id


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', not 'llama'"),
        ({"hidden_size": 25}, "hidden_size is 25, model.width is 24"),
        ({"num_hidden_layers": 5}, "num_hidden_layers is 5, model.layers is 4"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4, model.kv_heads is 2"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, model.norm_eps is 1e-06"),
        ({"rope_theta": 5e5}, "rope_theta is 500000.0, model.rope_base is 10000.0"),
        ({"head_dim": 8}, "head_dim is 8"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type is 'llama3'"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_what_does_not_fit_is_named_before_anything_is_written(
    run: RunConfig, llama: Path, home: Home, values: dict[str, Any], said: str
) -> None:
    change(llama, **values)
    with pytest.raises(UserError) as refused:
        take_in(home, run, llama)
    assert said in str(refused.value)
    assert refused.value.exit_code == 78
    assert not home.guarded.exists()


def _without_weights(llama: Path) -> None:
    (llama / "model.safetensors").unlink()


def _without_config(llama: Path) -> None:
    (llama / "config.json").unlink()


def _cut_short(llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _lacks_a_weight(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})


def _lacks_the_embedding(llama: Path) -> None:
    change(llama, tie_word_embeddings=True)
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})


def _wrong_shape(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    tensors["model.layers.2.self_attn.q_proj.weight"] = torch.zeros(24, 23)
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})


def _no_tensors_at_all(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"version https://example.org/pointer\n")


def _index_of_nonsense(llama: Path) -> None:
    (llama / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')


def _not_finite(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_weights, "it has no model*.safetensors"),
        (_without_config, "it has no config.json"),
        (_cut_short, "cannot be read"),
        (_lacks_a_weight, "lacks model.layers.1.mlp.up_proj.weight"),
        (_lacks_the_embedding, "lacks model.embed_tokens.weight"),
        (_wrong_shape, "lacks model.layers.2.self_attn.q_proj.weight of shape (24, 24)"),
        (_no_tensors_at_all, "cannot be read"),
        (_index_of_nonsense, "cannot be read"),
        (_not_finite, "not finite"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_a_folder_that_is_not_whole_is_refused_and_nothing_is_kept(
    run: RunConfig, llama: Path, home: Home, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(llama)
    with pytest.raises(UserError) as refused:
        take_in(home, run, llama)
    assert said in str(refused.value)
    assert not home.guarded.exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_run_with_subspace_boundaries_refuses(llama: Path, home: Home) -> None:
    with pytest.raises(UserError, match="the run's boundaries are subspace"):
        take_in(home, bytes_run("subspace"), llama)
