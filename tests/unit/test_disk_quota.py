"""`--disk-limit` on real files: what counts, what must not be written, what makes room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from swarmd.checkpoints import CheckpointFolder
from swarmd.errors import OverDiskLimit
from swarmd.home import Home, home_at
from swarmd.net.heap_store import HeapStore
from swarmd.node.disk_quota import DiskQuota
from swarmd.node.files import FileLane
from swarmd.protocols import effects as fx

RUN = "ab" * 32
STATE_BYTES = 100_000
SMALL_BYTES = 5_000
"""More than manifest and ledger of a checkpoint take."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = home_at(tmp_path / "home")
    found.create()
    return found


def limited(home: Home, limit: int | None) -> DiskQuota:
    return DiskQuota(home, lambda: limit)


def aside(home: Home) -> Path:
    """A state as the worker leaves it."""
    folder = home.cache / "state"
    folder.mkdir(exist_ok=True)
    path = folder / "checkpoint.safetensors"
    path.write_bytes(bytes(STATE_BYTES))
    return path


def keeping(home: Home, quota: DiskQuota) -> Callable[[int], None]:
    """Keep a checkpoint as the daemon does."""
    folder = CheckpointFolder(home.checkpoints, RUN)

    def keep(round_number: int) -> None:
        state = aside(home)
        quota.require_place_for(state, folder, 0)
        folder.keep(state, stage=0, round_number=round_number, step=0, ledger=())
        quota.make_room(folder, 0)

    return keep


def rounds(home: Home) -> list[int]:
    return [found.round for found in CheckpointFolder(home.checkpoints, RUN).find(0)[0]]


def test_everything_of_a_home_counts_but_the_homes_of_further_devices(home: Home) -> None:
    quota = limited(home, None)
    before = quota.measure()
    for place, size in ((home.checkpoints, 10), (home.cache / "x", 20), (home.state, 40)):
        place.mkdir(parents=True, exist_ok=True)
        (place / "file").write_bytes(bytes(size))
    (home.devices / "2").mkdir(parents=True)
    (home.devices / "2" / "file").write_bytes(bytes(1000))
    assert quota.measure() - before == 70
    assert quota.used_bytes == before + 70


def test_a_home_whose_directories_lie_in_each_other_counts_once(tmp_path: Path) -> None:
    env = {"STATE_DIRECTORY": str(tmp_path), "HOME": str(tmp_path)}
    from swarmd.home import find_home

    home = find_home(environ=env)
    home.create()
    (home.data / "file").write_bytes(bytes(100))
    assert limited(home, None).measure() == 100


@pytest.mark.parametrize(("fit", "left"), [(3, [4, 3, 2]), (2, [4, 3]), (1, [4])])
def test_older_checkpoints_make_room_for_the_newest(home: Home, fit: int, left: list[int]) -> None:
    keep = keeping(home, limited(home, fit * STATE_BYTES + fit * SMALL_BYTES))
    for round_number in range(1, 5):
        keep(round_number)
    assert rounds(home) == left


def test_a_checkpoint_that_has_no_place_at_all_is_not_kept_and_nothing_is_lost(home: Home) -> None:
    keep = keeping(home, limited(home, None))
    keep(1)
    (home.cache / "corpus").write_bytes(bytes(STATE_BYTES))
    keep = keeping(home, limited(home, 2 * STATE_BYTES - SMALL_BYTES))
    with pytest.raises(OverDiskLimit, match="disk-limit is"):
        keep(2)
    assert rounds(home) == [1]
    assert not list((home.cache / "state").iterdir())


def test_pieces_of_a_state_are_written_up_to_the_limit(home: Home) -> None:
    quota = limited(home, 1_000_000)
    quota.require(600_000, home.cache)
    with pytest.raises(OverDiskLimit):
        quota.require(600_000, home.cache)
    quota.require(300_000, home.cache)
    free = limited(home, None)
    free.require(1 << 60, home.cache)


async def test_what_is_over_the_limit_fails_with_its_own_code(
    home: Home, nursery: trio.Nursery
) -> None:
    """Through the daemon's file lane, as the machine hears of it."""
    told: list[fx.Event] = []
    slots = HeapStore(1 << 20)
    lane = FileLane(home.cache / "state", slots, nursery, told.append, limited(home, STATE_BYTES))
    lane.checkpoints = CheckpointFolder(home.checkpoints, RUN)
    buffer = slots.acquire(STATE_BYTES + 1)
    assert buffer is not None
    lane.run_nowait(fx.WriteFile(1, "piece", 0, buffer, b""))
    aside(home)
    (home.cache / "corpus").write_bytes(bytes(SMALL_BYTES))
    lane.run_nowait(fx.KeepCheckpoint(2, "checkpoint.safetensors", 0, 1, 5, ()))
    while len(told) < 2:
        await trio.sleep(0.001)
    failed = {event.token: event.code for event in told if isinstance(event, fx.FileFailed)}
    assert failed == {1: "disk_limit", 2: "disk_limit"}
    assert not (home.cache / "state" / "piece").exists()
    slots.release(buffer)


async def test_a_checkpoint_that_cannot_be_written_has_its_cause_in_the_log(
    home: Home, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[fx.Event] = []
    lane = FileLane(home.cache / "state", HeapStore(1), nursery, told.append, limited(home, None))
    lane.checkpoints = CheckpointFolder(home.checkpoints / "no-folder", RUN)
    aside(home)
    home.checkpoints.mkdir(parents=True, exist_ok=True)
    (home.checkpoints / "no-folder").write_bytes(b"")
    lane.run_nowait(fx.KeepCheckpoint(2, "checkpoint.safetensors", 0, 1, 5, ()))
    while not told:
        await trio.sleep(0.001)
    assert isinstance(told[0], fx.FileFailed)
    (line,) = [text for text in caplog.messages if text.startswith("checkpoint_not_written")]
    assert line.startswith(f"checkpoint_not_written code={told[0].code} why=")
    assert "no-folder" in line
    assert "Not a directory" in line
