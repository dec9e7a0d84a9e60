"""Where a run's model can be found on this machine: checkpoints of homes and what they guard of
other stages, or an exported folder.

`--from` names one of

    a run           its checkpoints in this home
    a home          as with --home
    a folder        of homes (what `swarmd local --keep` leaves), each directly below it
    an export       a folder that `swarmd export` wrote

Without it: the run that this home used last. Of each stage the newest round that every stage has is
taken; where there is none, each stage's newest, and that is said.

The homes may be those of daemons that train. They remove their older checkpoints and snapshots as
they write newer ones, which may be sooner than a model is read. So what is chosen is held open: a
file that was removed stays readable to who has it open, costs no copy, and is gone by itself when
the holder ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from swarmd.checkpoints import Checkpoint, CheckpointFolder, Tell, Unusable
from swarmd.errors import StoreError, UserError
from swarmd.exported_folder import ABOUT, read_exported, what_is_in
from swarmd.home import Home, home_at
from swarmd.home_files import KnownRun, find_run, known_runs
from swarmd.protocols.saved_states import common_round
from swarmd.run_config import RunConfig
from swarmd.store import store_error

HOMES_MAX = 4_096
CHOICES_MAX = 100
"""A choice is made anew when a daemon removed what was chosen before it could be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """`states` by stage, or `export`, the folder. Readable while `find_model`'s block lasts."""

    name: str
    """As the user may call it."""
    run: RunConfig
    rounds: dict[int, int]
    """By stage."""
    states: dict[int, Path] = field(default_factory=dict)
    """Where they lay when they were chosen."""
    descriptors: dict[int, int] = field(default_factory=dict)
    """By stage: its state, open."""
    export: Path | None = None
    caches: tuple[Path, ...] = ()
    """Where the run's data and tokeniser may lie."""
    notes: tuple[str, ...] = ()
    """What was passed over, for people."""

    @property
    def round(self) -> int:
        """The newest that a stage is of."""
        return max(self.rounds.values())

    @property
    def rounds_by_stage(self) -> list[int]:
        return [self.rounds[stage] for stage in sorted(self.rounds)]

    @property
    def rounds_shown(self) -> str:
        oldest = min(self.rounds.values())
        return f"round {self.round}" if oldest == self.round else f"rounds {oldest} to {self.round}"


def _nothing(path: Path, bytes_read: int) -> None:
    pass


@contextmanager
def find_model(where: str | None, home: Home, tell: Tell = _nothing) -> Iterator[SavedModel]:
    """tell: hears how far the files are read, and may end it by raising.

    Raises UserError: nothing there, or a stage that is nowhere (exit 1).
    """
    folder = None if where is None else Path(where)
    if folder is not None and folder.is_dir() and (folder / ABOUT).exists():
        yield _of_export(folder, home, tell)
        return
    homes, name, shown = [home], where, where or ""
    if folder is not None and folder.is_dir():
        below = [home_at(path) for path in (folder, *sorted(folder.iterdir())[:HOMES_MAX])]
        homes = [h for h in below if h.checkpoints.is_dir() or h.guarded.is_dir()]
        name, shown = None, str(folder)
    known = _run_of(homes, name, shown)
    with ExitStack() as held:
        yield _of_homes(homes, known.config, shown or known.config.name, held, tell)


# ------------------------------------------------------------------------------------- checkpoints


def _of_homes(
    homes: list[Home], run: RunConfig, shown: str, held: ExitStack, tell: Tell
) -> SavedModel:
    places = [place for home in homes for place in (home.checkpoints, home.guarded)]
    folders = [CheckpointFolder(place, run.run_id) for place in places]
    holder = _Holder(held, tell)
    for _ in range(CHOICES_MAX):
        listed, passed_over = _listed(folders, run.stages)
        passed_over += holder.spoilt.values()
        sound = [checkpoint for checkpoint in listed if checkpoint.folder not in holder.spoilt]
        notes = tuple(f"passed over {item.path}: {item.why}" for item in passed_over)
        chosen, why = _choose(sound, run, shown, notes)
        if holder.take(chosen):
            return SavedModel(
                name=shown,
                run=run,
                rounds={checkpoint.stage: checkpoint.round for checkpoint in chosen},
                states={checkpoint.stage: checkpoint.state_file for checkpoint in chosen},
                descriptors={c.stage: holder.descriptor(c) for c in chosen},
                caches=tuple(home.cache for home in homes),
                notes=(*notes, why) if why else notes,
            )
    raise UserError(
        f"the checkpoints in {shown} go faster than they can be opened",
        code="checkpoint_unusable",
        exit_code=75,
        hint="the same command may work later",
    )


class _Holder:
    """Keeps the states of chosen checkpoints open, and reads each once. `spoilt`, by folder: what
    is not to be chosen again."""

    def __init__(self, held: ExitStack, tell: Tell) -> None:
        self.spoilt: dict[Path, Unusable] = {}
        self._held, self._tell = held, tell
        self._opened: dict[Path, BinaryIO] = {}
        self._read: set[Path] = set()

    def take(self, chosen: list[Checkpoint]) -> bool:
        """Opens all before it reads any, which may take long. False: choose anew."""
        return all(map(self._can_open, chosen)) and all(map(self._is_sound, chosen))

    def descriptor(self, checkpoint: Checkpoint) -> int:
        return self._opened[checkpoint.folder].fileno()

    def _can_open(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.folder in self._opened:
            return True
        try:
            file = self._held.enter_context(checkpoint.state_file.open("rb"))
        except OSError as error:
            if checkpoint.folder.exists():  # else its daemon removed it, and has a newer one
                self._spoil(checkpoint, store_error(checkpoint.state_file, error))
            return False
        self._opened[checkpoint.folder] = file
        return True

    def _is_sound(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.folder in self._read:
            return True
        try:
            checkpoint.check_state(self._opened[checkpoint.folder], self._tell)
        except StoreError as error:
            self._spoil(checkpoint, error)
            return False
        self._read.add(checkpoint.folder)
        return True

    def _spoil(self, checkpoint: Checkpoint, error: StoreError) -> None:
        self.spoilt[checkpoint.folder] = Unusable(checkpoint.folder, str(error))


def _listed(
    folders: Iterable[CheckpointFolder], stages: int
) -> tuple[list[Checkpoint], list[Unusable]]:
    listed: list[Checkpoint] = []
    passed_over: list[Unusable] = []
    for folder in folders:
        for stage in range(stages):
            try:
                found, unusable = folder.listed(stage)
            except StoreError as error:
                found, unusable = [], [Unusable(folder.path, str(error))]
            listed += found
            passed_over += unusable
    return listed, passed_over


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
        raise _no_state(shown or str(homes[0].checkpoints if homes else ""))
    return max(with_state, key=lambda run: (run.used_at, run.config.run_id))


def _no_state(place: str) -> UserError:
    other = what_is_in(Path(place)) if place else ""
    if other:
        return UserError(
            other,
            code="no_state",
            exit_code=1,
            hint="--from takes what `swarmd export` wrote, or a home that has trained; "
            "`swarmd run create --init-from` starts a run from a Llama",
        )
    return UserError(
        f"there is no checkpoint of any run in {place or 'this home'}",
        code="no_state",
        exit_code=1,
        hint="a peer writes one after its first outer round",
    )


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


def _of_export(folder: Path, home: Home, tell: Tell) -> SavedModel:
    found = read_exported(folder, tell)
    return SavedModel(
        name=str(folder),
        run=found.run,
        rounds=dict(enumerate(found.rounds)),
        export=folder,
        caches=(home.cache,),
    )
