"""export, generate, eval and run create --init-from, as far as no model is loaded for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import swarmd
from saved_state_helpers import bytes_run, write_home

from swarmd.cli import model_process
from swarmd.errors import UserError
from swarmd.home import Home


@pytest.fixture
def trained(home: Home) -> Home:
    """A home that holds all of a run."""
    assert home.root is not None
    write_home(home.root, bytes_run("subspace"), [0, 1], [4])
    return home


def test_export_takes_no_place_that_is_taken(trained: Home, tmp_path: Path) -> None:
    place = tmp_path / "afile"
    place.write_text("mine")
    found = swarmd("export", "--to", "hf-safetensors", place, "--json", home=trained)
    assert found.code == 2
    assert found.error["code"] == "usage"
    assert "is there already" in found.error["message"]
    assert place.read_text() == "mine"


def test_the_hint_of_a_half_given_option_names_the_command(home: Home) -> None:
    found = swarmd("export", "--to", "hf-safetensors", home=home)
    assert found.code == 2
    assert "`swarmd export --help`" in found.err


@pytest.mark.process
@pytest.mark.parametrize(
    "words", [["generate", "--prompt", "x"], ["eval"], ["export", "--to", "hf-safetensors", "out"]]
)
def test_timeout_ends_the_command_and_leaves_nothing(
    trained: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    started: list[Any] = []
    start = model_process.subprocess.Popen

    def popen(*args: Any, **settings: Any) -> Any:
        started.append(start(*args, **settings))
        return started[-1]

    monkeypatch.setattr(model_process.subprocess, "Popen", popen)
    monkeypatch.setattr("swarmd.cli.time_limit.TimeLimit.check", lambda self: None)
    found = swarmd(*words, "--timeout", "50ms", home=trained)
    assert found.code == 124
    assert found.out == ""
    assert "was not done within 0.05 s (timed_out)" in found.err
    assert [process.returncode for process in started] == [-9]
    assert sorted(tmp_path.iterdir()) == before


def test_timeout_holds_while_the_files_are_checked(trained: Home) -> None:
    found = swarmd("eval", "--timeout", "1ms", "--json", home=trained)
    assert found.error["code"] == "timed_out"
    assert found.code == 124


@pytest.mark.parametrize("pieces", [[], ["one", " tw"]])
def test_an_error_in_the_middle_of_a_text_has_a_line_of_its_own(
    trained: Home, monkeypatch: pytest.MonkeyPatch, pieces: list[str]
) -> None:
    def fails(*args: Any, on_text: Any, **settings: Any) -> None:
        for piece in pieces:
            on_text(piece)
        raise UserError("it broke", code="compute_failed", exit_code=1)

    monkeypatch.setattr(model_process, "look", fails)
    found = swarmd("generate", "--prompt", "zero ", home=trained)
    assert found.out == ("zero one tw\n" if pieces else "")
    assert found.code == 1


def test_eval_tells_the_rounds_that_the_stages_are_of(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bytes_run("subspace")
    write_home(tmp_path / "p0", run, [0], [5])
    write_home(tmp_path / "p1", run, [1], [3])
    monkeypatch.setattr(
        model_process, "look", lambda *args, **settings: {"loss": 800.0, "tokens": 64}
    )
    words = ("eval", "--from", str(tmp_path))
    found = swarmd(*words, home=home)
    assert found.lines == ["loss 800.0000, perplexity -, on 64 tokens held out, rounds 3 to 5"]
    told = swarmd(*words, "--json", home=home).object
    assert (told["round"], told["rounds"], told["perplexity"]) == (5, [5, 3], None)


# --------------------------------------------------------------------------- run create --init-from

RUN_FILE = """
[run]
name = "again"
preset = "tiny"
stages = 2
[boundary]
kind = "dense"
"""


def _no_folder(place: Path) -> str:
    return "there is no such folder"


def _a_file(place: Path) -> str:
    place.write_text("")
    return "it is no folder"


def _only_pickles(place: Path) -> str:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(llama_of_tiny()))
    (place / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    return "it has no model*.safetensors; other formats are not read"


def llama_of_tiny() -> dict[str, Any]:
    from swarmd.run_file import preset_sections

    model = preset_sections("tiny")["model"]
    return {
        "model_type": "llama",
        "vocab_size": model["vocab_size"],
        "hidden_size": model["width"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "intermediate_size": model["ff_width"],
        "rms_norm_eps": model.get("norm_eps", 1e-5),
        "rope_theta": model.get("rope_base", 10_000.0),
    }


@pytest.mark.parametrize("make", [_no_folder, _a_file, _only_pickles])
def test_what_no_run_can_start_from_is_refused_before_the_data_are_read(
    home: Home, tmp_path: Path, make: Any
) -> None:
    file, place = tmp_path / "run.toml", tmp_path / "llama"
    file.write_text(RUN_FILE)
    said = make(place)
    found = swarmd("run", "create", file, "--init-from", place, "--json", home=home)
    assert found.code == 78
    assert found.error["code"] == "init_does_not_fit"
    assert found.error["message"] == f"{place} cannot be what the run starts from: {said}"
    assert "config.json and model*.safetensors" in (found.error["hint"] or "")
    assert not home.cache.exists()
