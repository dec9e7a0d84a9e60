"""Where a run's model can be found on this machine: checkpoints of homes and what they guard of
other stages, or an exported folder.

`--from` names one of

    a run           its checkpoints in this home
    a home          as with --home
    a folder        of homes (what `swarmd local --keep` leaves), each directly below it
    an export       a folder that `swarmd export` wrote

Without it: the run that this home used last. Of each stage the newest round that every stage has is
taken; where there is none, each stage's newest, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmd.checkpoints import Checkpoint, CheckpointFolder, Unusable
from swarmd.errors import Corrupt, StoreError, UserError
from swarmd.home import Home, home_at
from swarmd.home_files import KnownRun, find_run, known_runs
from swarmd.protocols.saved_states import common_round
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical
from swarmd.store import read_json

ABOUT, ABOUT_FORMAT = "swarmd.json", 1
HOMES_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """`states` by stage, or `export`, the folder."""

    name: str
    """As the user may call it."""
    run: RunConfig
    round: int
    states: dict[int, Path] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)
    """By stage."""
    export: Path | None = None
    caches: tuple[Path, ...] = ()
    """Where the run's data and tokeniser may lie."""
    notes: tuple[str, ...] = ()
    """What was passed over, for people."""


def find_model(where: str | None, home: Home) -> SavedModel:
    """Raises UserError: nothing there, or a stage that is nowhere (exit 1)."""
    folder = None if where is None else Path(where)
    if folder is None or not folder.is_dir():
        return _of_homes([home], where, where or "")
    if (folder / ABOUT).exists():
        return _of_export(folder, home)
    homes = [home_at(path) for path in (folder, *sorted(folder.iterdir())[:HOMES_MAX])]
    with_state = [h for h in homes if h.checkpoints.is_dir() or h.guarded.is_dir()]
    return _of_homes(with_state, None, str(folder))


# ------------------------------------------------------------------------------------- checkpoints


def _of_homes(homes: list[Home], name: str | None, shown: str) -> SavedModel:
    known = _run_of(homes, name, shown)
    run = known.config
    sound: list[Checkpoint] = []
    passed_over: list[Unusable] = []
    places = [place for home in homes for place in (home.checkpoints, home.guarded)]
    for place in places:
        folder = CheckpointFolder(place, run.run_id)
        for stage in range(run.stages):
            try:
                found, unusable = folder.find(stage)
            except StoreError as error:
                found, unusable = [], [Unusable(folder.path, str(error))]
            sound += found
            passed_over += unusable
    notes = tuple(f"passed over {item.path}: {item.why}" for item in passed_over)
    chosen, why = _choose(sound, run, shown or run.name, notes)
    if why:
        notes = (*notes, why)
    return SavedModel(
        name=shown or run.name,
        run=run,
        round=max(checkpoint.round for checkpoint in chosen),
        states={checkpoint.stage: checkpoint.state_file for checkpoint in chosen},
        rounds={checkpoint.stage: checkpoint.round for checkpoint in chosen},
        caches=tuple(home.cache for home in homes),
        notes=notes,
    )


def _run_of(homes: list[Home], name: str | None, shown: str) -> KnownRun:
    if name is not None:
        found = find_run(homes[0], name)
        if found is not None:
            return found
        raise UserError(
            f"{name!r} is neither a folder nor a run that this home knows",
            code="unknown_run",
            exit_code=2,
            hint="give a home, a folder of homes, an exported folder, or see `swarmd run ls`",
        )
    runs = [run for home in homes for run in known_runs(home)]
    with_state = [
        run
        for run in runs
        if any(
            (place / run.config.run_id[:16]).is_dir()
            for home in homes
            for place in (home.checkpoints, home.guarded)
        )
    ]
    if not with_state:
        place = shown or str(homes[0].checkpoints if homes else "")
        raise UserError(
            f"there is no checkpoint of any run in {place or 'this home'}",
            code="no_state",
            exit_code=1,
            hint="a peer writes one after its first outer round",
        )
    return max(with_state, key=lambda run: (run.used_at, run.config.run_id))


def _choose(
    sound: Iterable[Checkpoint], run: RunConfig, shown: str, notes: tuple[str, ...]
) -> tuple[list[Checkpoint], str]:
    """One of each stage, and what is to be said of the choice."""
    by_stage: dict[int, dict[int, Checkpoint]] = {stage: {} for stage in range(run.stages)}
    for checkpoint in sound:
        by_stage[checkpoint.stage].setdefault(checkpoint.round, checkpoint)
    missing = [str(stage) for stage, rounds in by_stage.items() if not rounds]
    if missing:
        raise UserError(
            f"no usable checkpoint of stage {', '.join(missing)} in {shown}",
            code="stage_missing",
            exit_code=1,
            hint=notes[0] if notes else "--from takes a folder that holds the homes of all peers",
            details={"stages": [int(stage) for stage in missing]},
        )
    claims = [(stage, tuple(rounds)) for stage, rounds in by_stage.items()]
    wanted, _ = common_round(claims, run.stages)
    if wanted is not None:
        return [rounds[wanted] for rounds in by_stage.values()], ""
    newest = [rounds[max(rounds)] for rounds in by_stage.values()]
    told = ", ".join(f"{checkpoint.stage} of round {checkpoint.round}" for checkpoint in newest)
    return newest, f"no round is there of every stage; taken: stage {told}"


# ------------------------------------------------------------------------------------------ exports


def _of_export(folder: Path, home: Home) -> SavedModel:
    path = folder / ABOUT
    try:
        about = read_json(path)
        run, rounds = _read_about(about, path)
    except StoreError as error:
        raise UserError(str(error), code="checkpoint_unusable", exit_code=1) from None
    return SavedModel(
        name=str(folder),
        run=run,
        round=max(rounds),
        rounds=dict(enumerate(rounds)),
        export=folder,
        caches=(home.cache,),
    )


def _read_about(about: Any, path: Path) -> tuple[RunConfig, list[int]]:
    """Raises Corrupt."""
    try:
        if about["format"] != ABOUT_FORMAT:
            text = f"has format {about['format']}; this version reads format {ABOUT_FORMAT}"
            raise Corrupt(path, text)
        if not re.fullmatch(r"([0-9a-f]{2})+", about["run"]):
            raise Corrupt(path, "describes no run")
        run = run_from_canonical(bytes.fromhex(about["run"]))
        rounds = [int(number) for number in about["rounds"]]
    except (KeyError, TypeError, ValueError, InvalidRun):
        raise Corrupt(path, "is not what `swarmd export` writes") from None
    if len(rounds) != run.stages:
        raise Corrupt(path, "has another number of stages than its run")
    return run, rounds
