"""What `swarmd export` writes, read back by us and by `transformers` where that is installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_state_helpers import bytes_run, real_sequences, write_home, write_states
from torch import Tensor

from swarmd.checkpoints import size_and_hash
from swarmd.cli.model_process import look
from swarmd.cli.time_limit import TimeLimit
from swarmd.compute.hf_folder import bytes_tokeniser_json, write_folder
from swarmd.compute.whole_model import WholeModel
from swarmd.data.tokeniser import BytesTokeniser
from swarmd.errors import UserError
from swarmd.home import home_at
from swarmd.run_config import RunConfig
from swarmd.saved_models import find_model

KINDS = [("dense", 0), ("subspace", 0), ("anchored", 5), ("anchored", -1)]


def exported(
    tmp_path: Path, run: RunConfig, *, shard_bytes: int = 1 << 30
) -> tuple[Path, WholeModel]:
    states = write_states(run, tmp_path)
    folder = tmp_path / "hf"
    folder.mkdir()
    rounds = dict.fromkeys(states, 3)
    write_folder(run, states, rounds, BytesTokeniser(), folder, shard_bytes=shard_bytes)
    return folder, WholeModel.of_states(run, states)


def furthest(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / ours.abs().max())


@pytest.mark.parametrize(("kind", "anchor_rank"), KINDS)
@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000])
def test_an_exported_folder_is_the_model_that_its_states_were(
    tmp_path: Path, kind: str, anchor_rank: int, shard_bytes: int
) -> None:
    run = bytes_run(kind, anchor_rank)
    folder, model = exported(tmp_path, run, shard_bytes=shard_bytes)
    shards = list(folder.glob("*.safetensors"))
    assert (len(shards) > 1) == (shard_bytes < 1 << 30)
    ids_BT = real_sequences(8, run.sequence_tokens)
    again = WholeModel.of_export(run, folder)
    assert furthest(model.logits(ids_BT), again.logits(ids_BT)) <= 1e-5
    assert again.loss_sum(ids_BT) == pytest.approx(model.loss_sum(ids_BT), rel=1e-5)


def test_the_manifest_names_every_file_by_its_hash(tmp_path: Path) -> None:
    folder, _ = exported(tmp_path, bytes_run("subspace"))
    about = json.loads((folder / "swarmd.json").read_text())
    listed = {file["name"]: (file["bytes"], file["hash"]) for file in about["files"]}
    others = [path for path in folder.iterdir() if path.name != "swarmd.json"]
    assert listed == {path.name: size_and_hash(path) for path in others}
    assert (about["round"], about["rounds"]) == (3, [3, 3])
    assert "modeling_swarmd.py" not in listed, "a plain Llama needs no code of ours"


def test_the_byte_tokeniser_gives_each_byte_its_value(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    found = tokenizers.Tokenizer.from_str(json.dumps(bytes_tokeniser_json()))
    text = "def f(x):\n\treturn 'ü€𝄞' + \x7f\x00 x  \r\n"
    assert found.encode(text).ids == list(text.encode())
    assert found.decode(list(text.encode())) == text


# ------------------------------------------------------------------------------------ transformers


def their_model(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.float32
    )
    return model.eval()


@pytest.mark.parametrize(("kind", "anchor_rank"), KINDS)
def test_transformers_computes_our_logits_on_a_hundred_real_sequences(
    tmp_path: Path, kind: str, anchor_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    run = bytes_run(kind, anchor_rank)
    folder, model = exported(tmp_path, run)
    theirs = their_model(folder)
    ids_BT = real_sequences(100, run.sequence_tokens)
    with torch.no_grad():
        found = theirs(ids_BT).logits
    assert float((found - model.logits(ids_BT)).abs().max()) <= 1e-4
    prompt = ids_BT[0, :20].tolist()
    ours = list(model.continued(prompt, 24, temperature=0.0, seed=0))
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = theirs.generate(ids_BT[:1, :20], **settings)[0, 20:].tolist()
    assert text == ours, "greedy text, by a cache of keys there and without one here"


def test_transformers_loads_the_tokeniser(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder, _ = exported(tmp_path, bytes_run("subspace"))
    found = transformers.AutoTokenizer.from_pretrained(folder)
    assert found("a line\n")["input_ids"] == list(b"a line\n")
    assert found.decode(list(b"a line\n")) == "a line\n"


# ------------------------------------------------------------------------------ by another process


@pytest.mark.slow
@pytest.mark.process
def test_a_process_of_its_own_exports_and_generates(tmp_path: Path) -> None:
    run = bytes_run("anchored", 5)
    home = home_at(write_home(tmp_path / "p0", run, [0, 1], [4]))
    limit = TimeLimit(None, lambda text: None)
    target = tmp_path / "hf"
    target.mkdir()
    with find_model(None, home) as model:
        settings = {"to": str(target), "threads": 1}
        made = look("export", model, settings, limit=limit)
        assert {file["name"] for file in made["files"]} == {path.name for path in target.iterdir()}
        os.truncate(model.states[0], 1000)
        with pytest.raises(UserError, match=r"stage-00-round-000004/state.*cannot be read"):
            look("export", model, {"to": str(tmp_path), "threads": 1}, limit=limit)
    heard: list[str] = []
    asked = {"prompt": "import ", "tokens": 12, "temperature": 0.0, "seed": 0, "threads": 1}
    with find_model(str(target), home) as model:
        written = look("generate", model, asked, limit=limit, on_text=heard.append)
    assert 0 <= written["tokens"] <= 12
    assert "".join(heard).encode() or written["tokens"] < 12
