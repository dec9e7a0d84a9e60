"""Whether a Hugging Face folder of a Llama can be what a run starts from, and what identifies it.

Only a run whose boundaries are dense has the same weights as a plain Llama: a constrained one would
need its writers projected onto the subspace, which is another model. All that does not fit is named
at once, before anything is read that takes long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swarmd.checkpoints import Tell, size_and_hash
from swarmd.errors import Corrupt, StoreError, UserError
from swarmd.run_config import RunConfig
from swarmd.store import read_json

CONFIG = "config.json"
WEIGHTS = "model*.safetensors"
FOLDER_HINT = f"give the folder of a Llama: {CONFIG} and {WEIGHTS}"
SIZES_HINT = "sizes belong into [model] of the run file, `kind = 'dense'` into [boundary]"


def check_fits(folder: Path, run: RunConfig) -> list[Path]:
    """The weight files; `run` may be one whose data are not measured yet. Reads no weights.

    Raises UserError: 78 for what does not fit the run, 1 for what cannot be read.
    """
    if not folder.is_dir():
        why = "it is no folder" if folder.exists() else "there is no such folder"
        raise _refusal(folder, why, FOLDER_HINT)
    faults = list(_faults(_config_of(folder), run))
    if faults:
        raise _refusal(folder, "; ".join(faults))
    files = sorted(folder.glob(WEIGHTS))
    if not files:
        why = f"it has no {WEIGHTS}; other formats are not read"
        raise _refusal(folder, why, FOLDER_HINT)
    return files


def init_hash_of(folder: Path, run: RunConfig, tell: Tell | None = None) -> str:
    """BLAKE2b-256 over names, sizes and hashes of the weight files. Blocking: reads all of them.

    Raises UserError as `check_fits`.
    """
    whole = hashlib.blake2b(digest_size=32)
    try:
        for file in check_fits(folder, run):
            size, digest = size_and_hash(file, tell=tell)
            whole.update(f"{file.name} {size} {digest}\n".encode())
    except StoreError as error:
        raise UserError(str(error), code="checkpoint_unusable", exit_code=1) from None
    return whole.hexdigest()


def has_tied_head(folder: Path) -> bool:
    """Whether its head is its embedding; in a run they go apart."""
    return bool(_config_of(folder).get("tie_word_embeddings", False))


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        found = read_json(path)
    except Corrupt as error:
        raise _refusal(folder, str(error), FOLDER_HINT) from None
    except StoreError as error:
        raise UserError(str(error), code="checkpoint_unusable", exit_code=1) from None
    if not isinstance(found, dict):
        raise _refusal(folder, f"it has no {CONFIG}", FOLDER_HINT)
    return found


def _faults(config: dict[str, Any], run: RunConfig) -> Iterator[str]:
    """Everything that does not fit, for people."""
    model = run.model
    if run.boundary.kind != "dense":
        yield f"the run's boundaries are {run.boundary.kind}: only dense ones take a Llama as it is"
    if config.get("model_type") != "llama":
        yield f"model_type is {config.get('model_type')!r}, not 'llama'"
    heads = config.get("num_attention_heads")
    rope = config.get("rope_parameters") or {}
    pairs = [
        ("vocab_size", config.get("vocab_size"), "model.vocab_size", model.vocab_size),
        ("hidden_size", config.get("hidden_size"), "model.width", model.width),
        ("num_hidden_layers", config.get("num_hidden_layers"), "model.layers", model.layers),
        ("num_attention_heads", heads, "model.heads", model.heads),
        (
            "num_key_value_heads",
            config.get("num_key_value_heads", heads),
            "model.kv_heads",
            model.kv_heads,
        ),
        ("intermediate_size", config.get("intermediate_size"), "model.ff_width", model.ff_width),
        ("rms_norm_eps", config.get("rms_norm_eps", 1e-6), "model.norm_eps", model.norm_eps),
        (
            "rope_theta",
            config.get("rope_theta", rope.get("rope_theta", 10_000.0)),
            "model.rope_base",
            model.rope_base,
        ),
    ]
    for theirs, value, ours, wanted in pairs:
        if value != wanted:
            yield f"{theirs} is {value}, {ours} is {wanted}"
    width = config.get("head_dim") or model.width // model.heads
    if width != model.width // model.heads:
        yield f"head_dim is {width}, model.width / model.heads is {model.width // model.heads}"
    if config.get("hidden_act", "silu") != "silu":
        yield f"hidden_act is {config['hidden_act']!r}, not 'silu'"
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            yield f"{name}: biases are not had here"
    scaling = config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        yield f"rope_type is {kind!r}: positions are not scaled here"


def _refusal(folder: Path, why: str, hint: str = SIZES_HINT) -> UserError:
    return UserError(
        f"{folder} cannot be what the run starts from: {why}",
        code="init_does_not_fit",
        exit_code=78,
        hint=hint,
    )
