"""A disk that is full or read-only is told as that, wherever a command or a daemon meets it."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from command_line import FakeDaemon, swarmd

from swarmd.cli import exits
from swarmd.daemon import _end_of
from swarmd.home import Home

LEDGER = {"data": {"body": base64.b64encode(b"a ledger").decode(), "run_id": "ab" * 32}}


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written aside cannot be brought to the disk."""

    def fsync(descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("swarmd.store.os.fsync", fsync)


@pytest.fixture
def keeper(home: Home) -> Iterator[FakeDaemon]:
    """A daemon that has a ledger."""
    daemon = FakeDaemon(home)
    daemon.replies("ledger", LEDGER)
    with daemon.running():
        yield daemon


def refused(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([path] if path else []))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (refused(errno.ENOSPC, "/a/b"), "disk_full", "/a/b: No space left on device"),
        (refused(errno.ENOSPC), "disk_full", "a file: No space left on device"),
        (refused(errno.EDQUOT, "/a/b"), "disk_full", "/a/b: Disk quota exceeded"),
        (refused(errno.EROFS, "/a/b"), "not_permitted", "/a/b: Read-only file system"),
        (refused(errno.EBADF), "internal_error", "OSError: [Errno 9] Bad file descriptor"),
    ],
)
def test_what_a_disk_refuses_is_no_mistake_of_ours(error: OSError, code: str, message: str) -> None:
    failure = exits.failure_of(error)
    assert (failure.code, failure.exit_code, failure.message) == (code, 1, message)
    assert failure.is_ours == (code == "internal_error")
    end = _end_of(error)
    assert (end.code, end.exit_code, end.text) == (code, 1, message)


def test_a_ledger_that_finds_no_room_leaves_nothing(
    home: Home, keeper: FakeDaemon, tmp_path: Path, no_room: None
) -> None:
    file = tmp_path / "ledgers" / "mine"
    file.parent.mkdir()
    found = swarmd("data", "ledger", str(file), home=home)
    assert (found.code, found.out) == (1, "")
    assert f"{file}: No space left on device (disk_full)" in found.err
    assert list(file.parent.iterdir()) == []


def test_a_ledger_may_go_to_a_device_which_stays_one(home: Home, keeper: FakeDaemon) -> None:
    found = swarmd("data", "ledger", "/dev/full", "--yes", home=home)
    assert found.code == 1
    assert "/dev/full: No space left on device (disk_full)" in found.err
    assert Path("/dev/full").is_char_device()


def test_a_local_swarm_that_finds_no_room_names_the_place(tmp_path: Path, no_room: None) -> None:
    found = swarmd("local", "--dir", str(tmp_path / "homes"))
    assert found.code == 1
    assert f"{tmp_path}/homes/run.toml: No space left on device (disk_full)" in found.err
