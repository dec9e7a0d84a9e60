"""A folder that `swarmd export` wrote: which run it is of, and whether it still is as written.

`swarmd.json` has the size and the hash of every other file. All of them are read before a model is
used: a weight that changed on a disk gives text like any other, only not the run's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.checkpoints import StoredFile, Tell
from swarmd.errors import Corrupt, StoreError, UserError
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical
from swarmd.store import read_json

ABOUT, ABOUT_FORMAT = "swarmd.json", 1
WEIGHTS = "model*.safetensors*"
"""Names from which weights are read, or the place of weights."""


@dataclass(frozen=True, slots=True)
class ExportedFolder:
    run: RunConfig
    rounds: tuple[int, ...]
    """By stage."""
    files: tuple[StoredFile, ...]


def read_exported(folder: Path, tell: Tell) -> ExportedFolder:
    """Blocking: reads every file. Raises UserError, naming the file that is not as it was."""
    path = folder / ABOUT
    try:
        found = _about(read_json(path), path)
        for file in found.files:
            file.check(folder / file.name, tell=tell)
        known = {file.name for file in found.files}
        for weights in sorted(folder.glob(WEIGHTS)):
            if weights.name not in known:
                raise Corrupt(weights, f"is not of this export: {ABOUT} does not list it")
    except StoreError as error:
        raise UserError(
            str(error),
            code="checkpoint_unusable",
            exit_code=1,
            hint="an export is used as it was written or not at all: export it anew",
        ) from None
    return found


def what_is_in(folder: Path) -> str:
    """For people, of a folder that is no export and holds no checkpoint. Empty: nothing of note."""
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.gguf")]
    if not weights and not (folder / "config.json").exists():
        return ""
    names = sorted(path.name for path in weights) or ["config.json"]
    return f"{folder} holds a model ({names[0]}), but no {ABOUT}, which would say of which run"


def _about(found: Any, path: Path) -> ExportedFolder:
    """Raises Corrupt."""
    try:
        if found["format"] != ABOUT_FORMAT:
            text = f"has format {found['format']}; this version reads format {ABOUT_FORMAT}"
            raise Corrupt(path, text)
        if not re.fullmatch(r"([0-9a-f]{2})+", found["run"]):
            raise Corrupt(path, "describes no run")
        run = run_from_canonical(bytes.fromhex(found["run"]))
        rounds = tuple(int(number) for number in found["rounds"])
        files = tuple(_files(found["files"]))
    except (KeyError, TypeError, ValueError, InvalidRun):
        raise Corrupt(path, "is not what `swarmd export` writes") from None
    if len(rounds) != run.stages:
        raise Corrupt(path, "has another number of stages than its run")
    return ExportedFolder(run, rounds, files)


def _files(listed: Any) -> Iterator[StoredFile]:
    """Raises KeyError, TypeError or ValueError."""
    for item in listed:
        name = str(item["name"])
        if name != Path(name).name:
            raise ValueError("a file elsewhere")
        yield StoredFile(name, int(item["bytes"]), str(item["hash"]))
