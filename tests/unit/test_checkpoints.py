"""Checkpoints on disk: whole or not there, the newest ones kept, what is spoilt passed over."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from swarmd.checkpoints import KEPT, LEDGER, MANIFEST, STATE, CheckpointFolder, read_checkpoint
from swarmd.errors import Corrupt, DiskFull, NotPermitted, StoreError

RUN = "ab" * 32


def keep(
    folder: CheckpointFolder,
    tmp_path: Path,
    round_number: int,
    *,
    stage: int = 0,
    body: bytes = b"",
) -> Path:
    state = tmp_path / "aside.safetensors"
    state.write_bytes(body or f"weights of round {round_number}".encode() * 100)
    return folder.keep(
        state, stage=stage, round_number=round_number, step=round_number * 5, ledger=(b"a", b"bc")
    )


def rounds_of(folder: CheckpointFolder, stage: int | None = None) -> list[int]:
    return [checkpoint.round for checkpoint in folder.find(stage)[0]]


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", RUN)


def test_what_was_kept_is_found_with_all_that_was_said(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    path = keep(folder, tmp_path, 3, stage=1, body=b"12345")
    assert not (tmp_path / "aside.safetensors").exists()
    (found,), unusable = folder.find()
    assert unusable == []
    assert (found.run_id, found.stage, found.round, found.step) == (RUN, 1, 3, 15)
    assert found.state_file == path / STATE == folder.state_file(found.name)
    assert found.state_file.read_bytes() == b"12345"
    assert found.ledger() == (b"a", b"bc")


def test_the_newest_of_a_stage_are_kept(folder: CheckpointFolder, tmp_path: Path) -> None:
    keep(folder, tmp_path, 1, stage=1)
    for number in range(1, 8):
        keep(folder, tmp_path, number)
    assert rounds_of(folder, 0) == [7, 6, 5][:KEPT]
    assert rounds_of(folder, 1) == [1]
    assert rounds_of(folder) == [7, 6, 5], "of the stage written last"


def test_a_round_that_is_done_anew_takes_the_place_of_the_old_one(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    keep(folder, tmp_path, 2, body=b"old")
    keep(folder, tmp_path, 2, body=b"new")
    (found,), _ = folder.find()
    assert found.state_file.read_bytes() == b"new"


def spoil(path: Path, how: str) -> None:
    match how:
        case "cut short":
            os.truncate(path / STATE, (path / STATE).stat().st_size // 2)
        case "one bit":
            body = bytearray((path / STATE).read_bytes())
            body[len(body) // 2] ^= 1
            (path / STATE).write_bytes(body)
        case "no state":
            (path / STATE).unlink()
        case "no manifest":
            (path / MANIFEST).unlink()
        case "no JSON":
            (path / MANIFEST).write_bytes(b"{")
        case "ledger":
            (path / LEDGER).write_bytes(b"\xc1")
        case _:
            about = json.loads((path / MANIFEST).read_text())
            key, value = how.split("=")
            about[key] = json.loads(value)
            (path / MANIFEST).write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("cut short", "bytes long"),
        ("one bit", "hash differs"),
        ("no state", "No such file"),
        ("no manifest", "missing"),
        ("no JSON", "no JSON"),
        ("ledger", "bytes long"),
        ("format=2", "format 2; this version reads format 1"),
        ('run_id="cdcdcdcd"', "of run cdcdcdcd"),
        ("files=[]", "other files"),
        ("stage=null", "no manifest"),
    ],
)
def test_a_spoilt_checkpoint_is_passed_over_with_a_reason_and_left_alone(
    folder: CheckpointFolder, tmp_path: Path, how: str, why: str
) -> None:
    for number in (4, 5):
        path = keep(folder, tmp_path, number)
    spoil(path, how)
    before = {file: file.read_bytes() for file in path.iterdir()}
    sound, (unusable,) = folder.find()
    assert [checkpoint.round for checkpoint in sound] == [4]
    assert unusable.path == path
    assert why in unusable.why
    for number in (6, 7, 8):
        keep(folder, tmp_path, number)
    assert {file: file.read_bytes() for file in path.iterdir()} == before
    assert rounds_of(folder) == [8, 7, 6], "the spoilt one takes nobody's place"


class Died(BaseException):
    """As SIGKILL: nothing below runs, and nothing above tidies up."""


@pytest.mark.parametrize("seed", range(50))
def test_a_life_that_ends_at_any_system_call_leaves_a_loadable_checkpoint(
    folder: CheckpointFolder, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes the disk may be the last; what follows it never happens."""
    keep(folder, tmp_path, 1)
    left = [seed % 25]

    def dying(real: object) -> object:
        def call(*args: object, **settings: object) -> object:
            if left[0] <= 0:
                raise Died
            left[0] -= 1
            return real(*args, **settings)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "mkdir", dying(Path.mkdir))
        patch.setattr(Path, "unlink", dying(Path.unlink))
        patch.setattr(Path, "replace", dying(Path.replace))
        patch.setattr(Path, "write_bytes", dying(Path.write_bytes))
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(shutil, "rmtree", dying(shutil.rmtree))
        try:
            keep(folder, tmp_path, 1 if seed >= 25 else 2)
            keep(folder, tmp_path, 3)
        except Died:
            pass
    again = CheckpointFolder(tmp_path / "checkpoints", RUN)
    again.tidy()
    sound, unusable = again.find()
    assert unusable == [], seed
    assert sound, seed
    keep(again, tmp_path, 9)
    assert rounds_of(again)[0] == 9
    assert not list(again.path.glob(".*.part")), "the next life tidies up"


def write_for_ever(folder: CheckpointFolder, tmp_path: Path, number: int, told: int) -> None:
    """A byte for each checkpoint that is done."""
    while True:
        number += 1
        keep(folder, tmp_path, number, body=number.to_bytes(4, "big") * 100_000)
        os.write(told, b".")


@pytest.mark.process
def test_fifty_kills_while_checkpoints_are_written_leave_a_loadable_one_each_time(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    rng, newest = random.Random(1), 0
    for _ in range(50):
        heard, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                write_for_ever(folder, tmp_path, newest, told)
            finally:
                os._exit(1)
        os.close(told)
        for _ in range(rng.randrange(1, 4)):
            assert os.read(heard, 1) == b"."
        os.kill(pid, signal.SIGKILL)  # in the midst of the next one
        os.waitpid(pid, 0)
        os.close(heard)
        sound, unusable = CheckpointFolder(folder.path.parent, RUN).find()
        assert unusable == []
        assert sound[0].round > newest, "what was told to be done is there"
        newest = sound[0].round
        body = sound[0].state_file.read_bytes()
        assert body == newest.to_bytes(4, "big") * 100_000


def test_a_full_disk_leaves_the_one_before(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(folder, tmp_path, 1)

    def full(path: Path, body: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        state = tmp_path / "aside.safetensors"
        state.touch()
        with pytest.raises(DiskFull):
            folder.keep(state, stage=0, round_number=2, step=10, ledger=())
    assert rounds_of(folder) == [1]
    assert not list(folder.path.glob(".*.part"))
    keep(folder, tmp_path, 3)
    assert rounds_of(folder) == [3, 1], "it goes on when there is room"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_is_forbidden_says_so(folder: CheckpointFolder, tmp_path: Path) -> None:
    path = keep(folder, tmp_path, 1)
    (path / MANIFEST).chmod(0)
    with pytest.raises(NotPermitted):
        read_checkpoint(path)


def test_no_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Corrupt):
        read_checkpoint(tmp_path)
    assert issubclass(Corrupt, StoreError)
