"""What `swarmd export`, `generate`, `eval` and `run create --init-from` do with torch and a model,
in a process of their own (look_process.py).

Asked by a JSON object on standard input, it answers with a JSON object a line: {"text": ..} as it
comes, {"result": ..} at the end, or {"error": {code, exit_code, text, hint}}.
"""

from __future__ import annotations

import codecs
import json
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swarmd.compute.failure_codes import failure_of
from swarmd.compute.hf_folder import SHARD_BYTES, write_folder
from swarmd.compute.import_hf import write_states
from swarmd.compute.whole_model import WholeModel
from swarmd.data.corpus import open_corpus
from swarmd.data.tokeniser import JsonTokeniser, Tokeniser, tokeniser_named
from swarmd.errors import SwarmdError, UserError, code_and_hint
from swarmd.protocols.ids import MicroBatchId
from swarmd.run_config import RunConfig, run_from_canonical

Asked = dict[str, Any]


def export(asked: Asked) -> dict[str, Any]:
    """to: an empty folder. shard_bytes, and what `_model` takes of checkpoints."""
    run = _run(asked)
    states = {int(stage): Path(path) for stage, path in asked["states"].items()}
    rounds = {int(stage): number for stage, number in asked["rounds"].items()}
    tokeniser = _tokeniser(run, asked)
    shard_bytes = asked.get("shard_bytes") or SHARD_BYTES
    folder = Path(asked["to"])
    files = write_folder(run, states, rounds, tokeniser, folder, shard_bytes=shard_bytes)
    return {
        "files": [{"name": file.name, "bytes": file.bytes, "hash": file.hash} for file in files]
    }


def generate(asked: Asked) -> dict[str, Any]:
    """prompt, tokens, temperature, seed."""
    run = _run(asked)
    tokeniser = _tokeniser(run, asked)
    ids = [int(number) for number in tokeniser.encode([asked["prompt"].encode()])[0]]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    model = _model(run, asked)
    new: list[int] = []
    shown = b""
    settings = {"temperature": asked["temperature"], "seed": asked["seed"]}
    for token in model.continued(ids or [tokeniser.separator], asked["tokens"], **settings):
        if token == tokeniser.separator:
            break
        new.append(token)
        # Tokens are not letters: what a token looks like depends on those before it.
        text = tokeniser.decode(np.array(new))
        if text.startswith(shown) and not text.endswith("\ufffd".encode()):
            _tell({"text": decoder.decode(text[len(shown) :])})
            shown = text
    return {"tokens": len(new)}


def evaluate(asked: Asked) -> dict[str, Any]:
    """The run's own held-out sequences: data (where they are, if not where the run says)."""
    run = _run(asked)
    model = _model(run, asked)
    corpus = open_corpus(run, Path(asked["caches"][0]), source=asked.get("data", ""))
    loss_sum, samples = 0.0, 0
    for index in range(run.shape.held_out_micro_batches):
        ids = corpus.samples(MicroBatchId(0, index, held_out=True))
        loss_sum += model.loss_sum(torch.from_numpy(ids.astype(np.int64)))
        samples += len(ids)
    if not samples:
        raise UserError("the run holds nothing out", code="data_missing", exit_code=1)
    loss = loss_sum / samples
    if not math.isfinite(loss):
        raise UserError(
            f"the held-out loss is {loss}: the model's values overflow on these data",
            code="loss_not_finite",
            exit_code=1,
            hint="its weights are finite, but no longer a model of anything; take an older round",
        )
    return {"loss": loss, "tokens": samples * run.sequence_tokens}


def _run(asked: Asked) -> RunConfig:
    return run_from_canonical(bytes.fromhex(asked["run"]))


def _model(run: RunConfig, asked: Asked) -> WholeModel:
    if asked.get("export"):
        return WholeModel.of_export(run, Path(asked["export"]))
    states = {int(stage): Path(path) for stage, path in asked["states"].items()}
    return WholeModel.of_states(run, states)


def _tokeniser(run: RunConfig, asked: Asked) -> Tokeniser:
    """From the export, or any of the caches. Raises UserError."""
    if asked.get("export") and run.data.tokeniser != "bytes":
        path = Path(asked["export"]) / "tokenizer.json"
        return JsonTokeniser(path.read_bytes(), str(path))
    missing: SwarmdError | None = None
    for cache in asked["caches"]:
        try:
            return tokeniser_named(run.data.tokeniser, Path(cache))
        except UserError as error:
            missing = missing or error
    assert missing is not None, "there is a cache to look into"
    raise missing


def import_(asked: Asked) -> dict[str, Any]:
    """folder, tied, and targets: where to write, by stage."""
    targets = {int(stage): Path(path) for stage, path in asked["targets"].items()}
    folder = Path(asked["folder"])
    return {"sketches": write_states(_run(asked), folder, targets, tied=asked["tied"])}


TASKS: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "export": export,
    "generate": generate,
    "eval": evaluate,
    "import": import_,
}


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def answer(task: str) -> int:
    """See the header. Returns the exit status."""
    asked = json.load(sys.stdin)
    if asked.get("threads"):
        torch.set_num_threads(asked["threads"])
    try:
        _tell({"result": TASKS[task](asked)})
    except Exception as error:
        told = _told(error)
        _tell({"error": told})
        return int(told["exit_code"])
    return 0


def _told(error: Exception) -> dict[str, Any]:
    """An error as the command shows it. One that nobody foresaw is a bug, and shows where."""
    if isinstance(error, SwarmdError):
        code, hint = code_and_hint(error)
        exit_code = error.exit_code if isinstance(error, UserError) else 1
        return {"code": code, "exit_code": exit_code, "text": str(error), "hint": hint}
    failure = failure_of(error)
    if failure.code == "compute_failed":
        traceback.print_exc(file=sys.stderr)
    return {"code": failure.code, "exit_code": 1, "text": failure.text, "hint": ""}
