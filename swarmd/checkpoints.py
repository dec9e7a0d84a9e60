"""Checkpoints on disk: what one peer held of one stage when a round began, whole or not there.

    data/checkpoints/RUN/stage-00-round-000012/
        state.safetensors    weights, both optimisers' state (compute/stage_calls.py)
        ledger.msgpack       what the swarm had done by then, in messages of the wire
        manifest.json        format, run, stage, round, step, size and BLAKE2b-256 of both files

RUN is the first 16 digits of the run's id. A checkpoint is put together in a folder aside, synced,
and renamed: at any instant it is there with its manifest, or it is not there. The newest KEPT of a
stage stay. What cannot be used (cut short, altered, another run's, a newer format's) is never
deleted and never loaded: the one before is taken, and why is told.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import msgpack

from swarmd.errors import Corrupt, StoreError
from swarmd.protocols.saved_states import name_of_saved
from swarmd.store import check_is_file, read_bytes, read_json, store_error, sync, write_json

FORMAT = 1
KEPT = 3
"""Peers of a swarm are up to one round apart when all are killed; one more for a spoilt one."""
STATE, LEDGER, MANIFEST = "state.safetensors", "ledger.msgpack", "manifest.json"
_NAME = re.compile(r"stage-(\d+)-round-(\d+)")
REPLACED = ".replaced"
LOOKS_MAX = 100
_PIECE_BYTES = 4 << 20
LEDGER_BYTES_MAX = 64 << 20


Tell = Callable[[Path, int], None]
"""Hears of a file that is read, and of how many bytes, piece by piece."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    bytes: int
    hash: str
    """BLAKE2b-256, hexadecimal."""

    def check(self, path: Path, file: BinaryIO | None = None, tell: Tell | None = None) -> None:
        """Read what lies at `path`, or what was opened there. Raises Corrupt or StoreError."""
        size, digest = size_and_hash(path, file, tell)
        if size != self.bytes:
            raise Corrupt(path, f"is {size} bytes long, not {self.bytes}")
        if digest != self.hash:
            raise Corrupt(path, "is not what was written: its hash differs")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that has a sound manifest. `check` says whether its files are what it says."""

    folder: Path
    run_id: str
    stage: int
    round: int
    """The round that begins with this state."""
    step: int
    """Inner steps behind it."""
    files: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def state_file(self) -> Path:
        return self.folder / STATE

    def check(self, only: str | None = None) -> None:
        """Read everything, or one file. Raises Corrupt or StoreError, naming the file."""
        for file in self.files:
            if only in (None, file.name):
                file.check(self.folder / file.name)

    def check_state(self, file: BinaryIO, tell: Tell) -> None:
        """Read the state that was opened as `file`, wherever it lies now. Raises as `check`."""
        (stored,) = (stored for stored in self.files if stored.name == STATE)
        stored.check(self.state_file, file, tell)

    def ledger(self) -> tuple[bytes, ...]:
        """Encoded messages. Raises Corrupt or StoreError."""
        path = self.folder / LEDGER
        try:
            bodies = msgpack.unpackb(read_bytes(path, bytes_max=LEDGER_BYTES_MAX) or b"")
        except ValueError as error:
            raise Corrupt(path, f"is no msgpack: {error}") from None
        if not isinstance(bodies, list) or not all(isinstance(body, bytes) for body in bodies):
            raise Corrupt(path, "holds no messages")
        return tuple(bodies)


@dataclass(frozen=True, slots=True)
class Unusable:
    """A checkpoint that was passed over, and why."""

    path: Path
    why: str

    def told(self) -> dict[str, str]:
        return {"path": str(self.path), "why": self.why}


class CheckpointFolder:
    """Those of one run in one home. Blocking; one thread at a time writes."""

    def __init__(self, checkpoints: Path, run_id: str, kept: int = KEPT) -> None:
        self.run_id = run_id
        self._kept = kept
        self.path = checkpoints / run_id[:16]
        self._unusable: set[str] = set()

    def state_file(self, name: str) -> Path:
        return self.path / name / STATE

    # ------------------------------------------------------------------------------------ writing

    def keep(
        self, state: Path, *, stage: int, round_number: int, step: int, ledger: Sequence[bytes]
    ) -> Path:
        """Make a checkpoint of the state file that the worker wrote; the file is gone afterwards.

        Raises StoreError (DiskFull ...) with the checkpoints before untouched.
        """
        target = self.path / name_of_saved(stage, round_number)
        aside = self.path / f".{target.name}.part"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.tidy()
            aside.mkdir(mode=0o700)
            _move(state, aside / STATE)
            (aside / LEDGER).write_bytes(msgpack.packb(list(ledger)))
            files = [_stored(aside / name) for name in (STATE, LEDGER)]
            about = {"format": FORMAT, "run_id": self.run_id, "stage": stage}
            about |= {"round": round_number, "step": step}
            write_json(aside / MANIFEST, {**about, "files": [asdict(file) for file in files]})
            replaced = self.path / f".{target.name}{REPLACED}"
            if target.exists():
                target.rename(replaced)  # of a life that ended before this round was begun anew
            aside.rename(target)
            sync(self.path)
            shutil.rmtree(replaced, ignore_errors=True)
        except OSError as error:
            raise store_error(aside, error) from error
        finally:
            with suppress(OSError):  # where nothing may be written, why is told already
                state.unlink(missing_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
        self._unusable.discard(target.name)
        self._rotate(stage)
        return target

    def drop_oldest(self, stage: int) -> bool:
        """False: there is but one that can be used, and it stays."""
        names = self._usable_names(stage)
        if len(names) < 2:
            return False
        self._remove(names[0])
        return True

    def bytes_of(self, stage: int) -> int:
        """What all that can be used of the stage take."""
        names = self._usable_names(stage)
        files = [file for name in names for file in (self.path / name).iterdir()]
        return sum(file.stat().st_size for file in files)

    def _rotate(self, stage: int) -> None:
        """The oldest of the stage go, so that `kept` usable ones stay."""
        names = self._usable_names(stage)
        for name in names[: -self._kept]:
            self._remove(name)

    def _usable_names(self, stage: int) -> list[str]:
        """The oldest first."""
        return [name for name in self._names(stage) if name not in self._unusable]

    def _remove(self, name: str) -> None:
        """Half a checkpoint never goes by a checkpoint's name."""
        aside = self.path / f".{name}.old.part"
        (self.path / name).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def tidy(self) -> None:
        """What a life that was killed left half done: for the home's daemon, before it reads."""
        for path in self.path.glob(f".*{REPLACED}"):
            name = path.name[1:].removesuffix(REPLACED)
            if not (self.path / name).exists():
                path.rename(self.path / name)
            else:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.path.glob(".*.part"):
            shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------------------------------ reading

    def find(self, stage: int | None = None) -> tuple[list[Checkpoint], list[Unusable]]:
        """Sound ones, newest first, every byte read; of one stage, or of the stage written last.

        Raises StoreError if the folder itself cannot be read.
        """
        sound: list[Checkpoint] = []
        unusable: list[Unusable] = []
        for name in reversed(self._names(stage)):
            path = self.path / name
            if stage is None and sound and sound[0].stage != _stage_of(name):
                continue
            try:
                checkpoint = self._read(path)
                checkpoint.check()
            except StoreError as error:
                self._unusable.add(name)
                unusable.append(Unusable(path, str(error)))
                continue
            sound.append(checkpoint)
        return sound, unusable

    def listed(self, stage: int) -> tuple[list[Checkpoint], list[Unusable]]:
        """Those with a sound manifest, newest first; their files are not read.

        For who is not the home's daemon: that may remove some meanwhile, but only after it has made
        newer ones, so then we look again. Raises StoreError if the folder cannot be read.
        """
        for _ in range(LOOKS_MAX):
            found: list[Checkpoint] = []
            unusable: list[Unusable] = []
            for path in [self.path / name for name in reversed(self._names(stage))]:
                try:
                    found.append(self._read(path))
                except StoreError as error:
                    if not path.exists():
                        break
                    unusable.append(Unusable(path, str(error)))
            else:
                return found, unusable
        raise StoreError(self.path, "changes faster than it can be read")

    def _read(self, path: Path) -> Checkpoint:
        checkpoint = read_checkpoint(path)
        if checkpoint.run_id != self.run_id:
            raise Corrupt(path, f"is a checkpoint of run {checkpoint.run_id[:16]}")
        if path.name != name_of_saved(checkpoint.stage, checkpoint.round):
            raise Corrupt(path, f"holds round {checkpoint.round} of stage {checkpoint.stage}")
        return checkpoint

    def newest_ledger(self) -> tuple[Checkpoint | None, list[Unusable]]:
        """The last one written whose ledger is sound, and the later ones that were passed over;
        states may be large and are not read.

        Raises StoreError if the folder itself cannot be read.
        """
        unusable: list[Unusable] = []
        for path in [self.path / name for name in reversed(self._names(None))]:
            try:
                checkpoint = self._read(path)
                checkpoint.check(LEDGER)
            except StoreError as error:
                if path.exists():  # a daemon may have made newer ones, and this may have made room
                    unusable.append(Unusable(path, str(error)))
                continue
            return checkpoint, unusable
        return None, unusable

    def _names(self, stage: int | None) -> list[str]:
        """Oldest first. Of all stages: in the order in which they were written."""
        try:
            names = sorted(path.name for path in self.path.iterdir())
            found = [name for name in names if _NAME.fullmatch(name)]
            if stage is not None:
                return sorted((n for n in found if _stage_of(n) == stage), key=_round_of)
            return sorted(found, key=lambda n: ((self.path / n).stat().st_mtime_ns, _round_of(n)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise store_error(self.path, error) from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """Its manifest. Raises Corrupt or StoreError."""
    path = folder / MANIFEST
    try:
        found = read_json(path)
    except RecursionError:
        raise Corrupt(path, "is no manifest") from None
    if found is None:
        raise Corrupt(path, "is missing")
    try:
        if found["format"] != FORMAT:
            text = f"has format {found['format']}; this version reads format {FORMAT}"
            raise Corrupt(path, text)
        files = tuple(
            StoredFile(str(item["name"]), int(item["bytes"]), str(item["hash"]))
            for item in found["files"]
        )
        numbers = (int(found[key]) for key in ("stage", "round", "step"))
        checkpoint = Checkpoint(folder, str(found["run_id"]), *numbers, files)
    except (KeyError, TypeError, ValueError):
        raise Corrupt(path, "is no manifest of a checkpoint") from None
    if {file.name for file in files} != {STATE, LEDGER}:
        raise Corrupt(path, "lists other files than a checkpoint has")
    return checkpoint


def size_and_hash(
    path: Path, file: BinaryIO | None = None, tell: Tell | None = None
) -> tuple[int, str]:
    """file: what was opened at `path`, if it was. Raises StoreError; Corrupt for a pipe or device,
    which might never end."""
    hasher, size = hashlib.blake2b(digest_size=32), 0
    try:
        if file is None:
            check_is_file(path)
        with path.open("rb") if file is None else nullcontext(file) as opened:
            opened.seek(0)
            while piece := opened.read(_PIECE_BYTES):
                size += len(piece)
                hasher.update(piece)
                if tell is not None:
                    tell(path, size)
    except OSError as error:
        raise store_error(path, error) from error
    return size, hasher.hexdigest()


def _stored(path: Path) -> StoredFile:
    """Synced, then described."""
    sync(path)
    size, digest = size_and_hash(path)
    return StoredFile(path.name, size, digest)


def _move(source: Path, target: Path) -> None:
    """Cache and data may lie on different file systems."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)


def _stage_of(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found is not None
    return int(found[1])


def _round_of(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found is not None
    return int(found[2])
