"""A Hugging Face folder of a run's model: `transformers` and llama.cpp's tools read it as it is.

config.json              LlamaForCausalLM
model*.safetensors       weights, multiplied out; several files above SHARD_BYTES, with an index
tokenizer.json ...       the run's tokeniser
generation_config.json
modeling_swarmd.py       anchored runs only: a Llama whose stages have tables of their own
swarmd.json              where it is from: run, rounds, and the hash of every other file
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swarmd.checkpoints import StoredFile, size_and_hash
from swarmd.compute.state_file import save_state
from swarmd.compute.whole_model import read_parameters
from swarmd.data.packing import reporting_store_errors
from swarmd.data.tokeniser import BytesTokeniser, Tokeniser
from swarmd.errors import DiskFull, JobFailed, StoreError
from swarmd.exported_folder import ABOUT, ABOUT_FORMAT
from swarmd.model.export import dense_state
from swarmd.model.stage import build_stage
from swarmd.run_config import RunConfig

SHARD_BYTES = 5_000_000_000
MODELLING = "modeling_swarmd.py"


def write_folder(
    run: RunConfig,
    states: Mapping[int, Path],
    rounds: Mapping[int, int],
    tokeniser: Tokeniser,
    folder: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> list[StoredFile]:
    """Fill an empty folder. states, rounds: by stage. Raises UserError and StoreError."""
    with reporting_store_errors(folder):
        return _fill(run, states, rounds, tokeniser, folder, shard_bytes)


def _fill(
    run: RunConfig,
    states: Mapping[int, Path],
    rounds: Mapping[int, int],
    tokeniser: Tokeniser,
    folder: Path,
    shard_bytes: int,
) -> list[StoredFile]:
    _write_weights(_tensors(run, states), folder, shard_bytes)
    _write_json(folder / "config.json", llama_config(run, tokeniser))
    ends = {"bos_token_id": tokeniser.separator, "eos_token_id": tokeniser.separator}
    _write_json(folder / "generation_config.json", {**ends, "do_sample": False})
    body = tokeniser.body or json.dumps(bytes_tokeniser_json()).encode()
    (folder / "tokenizer.json").write_bytes(body)
    _write_json(folder / "tokenizer_config.json", tokeniser_config(run))
    if run.boundary.kind == "anchored":
        (folder / MODELLING).write_bytes((Path(__file__).parent / MODELLING).read_bytes())
    files = [_stored(path) for path in sorted(folder.iterdir())]
    about = {
        "format": ABOUT_FORMAT,
        "run_id": run.run_id,
        "run": run.canonical().hex(),
        "round": max(rounds.values()),
        "rounds": [rounds[stage] for stage in sorted(rounds)],
        "files": [asdict(file) for file in files],
    }
    _write_json(folder / ABOUT, about)
    return [*files, _stored(folder / ABOUT)]


def llama_config(run: RunConfig, tokeniser: Tokeniser) -> dict[str, Any]:
    """Read by every version of `transformers`: newer ones have the base in `rope_parameters`."""
    model = run.model
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.width,
        "intermediate_size": model.ff_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.width // model.heads,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "max_position_embeddings": run.sequence_tokens,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": tokeniser.separator,
        "eos_token_id": tokeniser.separator,
    }
    if run.boundary.kind == "anchored":
        config["architectures"] = ["SwarmdForCausalLM"]
        config["auto_map"] = {"AutoModelForCausalLM": "modeling_swarmd.SwarmdForCausalLM"}
        config["swarmd_first_layers"] = [first for first, _ in run.layer_ranges]
    return config


def tokeniser_config(run: RunConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.sequence_tokens,
        "clean_up_tokenization_spaces": False,
    }


def bytes_tokeniser_json() -> dict[str, Any]:
    """A byte is a token, and its id is its value."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = False
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {_letter_of(byte): byte for byte in range(BytesTokeniser.vocab_size)},
            "merges": [],
        },
    }


def _letter_of(byte: int) -> str:
    """How byte-level vocabularies write a byte: itself where that can be seen, else from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in plain:
        return chr(byte)
    return chr(0x100 + sum(other not in plain for other in range(byte)))


def _tensors(run: RunConfig, states: Mapping[int, Path]) -> Iterator[tuple[str, Tensor]]:
    """One stage's at a time."""
    for index in range(run.stages):
        stage = build_stage(run, index, dtype=torch.float32)
        yield from dense_state(stage, read_parameters(stage, states[index])).items()


def _write_weights(tensors: Iterator[tuple[str, Tensor]], folder: Path, shard_bytes: int) -> None:
    """No more than one file's worth is held."""
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = size = 0

    def flush() -> None:
        nonlocal held, size
        try:
            save_state(held, folder / f"shard-{len(shards)}", {"format": "pt"})
        except JobFailed as error:
            kind = DiskFull if error.code == "disk_full" else StoreError
            raise kind(folder, error.text) from None
        shards.append(list(held))
        held, size = {}, 0

    for name, value in tensors:
        bytes_of = value.numel() * value.element_size()
        if held and size + bytes_of > shard_bytes:
            flush()
        held[name] = value
        size, total = size + bytes_of, total + bytes_of
    flush()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    places = {}
    for number, names in enumerate(shards):
        file_name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{number}").rename(folder / file_name)
        places |= dict.fromkeys(names, file_name)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    _write_json(folder / "model.safetensors.index.json", index)


def _stored(path: Path) -> StoredFile:
    return StoredFile(path.name, *size_and_hash(path))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
