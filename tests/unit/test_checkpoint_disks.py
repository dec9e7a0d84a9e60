"""Checkpoints on disks that really refuse: a file system that is full, somebody else's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swarmd.checkpoints import CheckpointFolder

pytestmark = pytest.mark.process

RUN = "ab" * 32
NOBODY = 65_534
TRY = """
import json, os, sys
from pathlib import Path
from swarmd.checkpoints import CheckpointFolder
from swarmd.errors import StoreError
place, source, before = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if before == "mount":
    import subprocess
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=True)
elif before:
    os.setuid(int(before))
folder, told = CheckpointFolder(place, sys.argv[4]), []
for number in (1, 2):
    state = source / f"{number}.safetensors"
    try:
        folder.keep(state, stage=0, round_number=number, step=0, ledger=())
        told.append("kept")
    except StoreError as error:
        told.append([type(error).__name__, str(error)])
if before == "mount":  # it is gone with this process
    sound, unusable = folder.find(0)
    left = sorted(path.name for path in folder.path.iterdir())
    told += [[c.round for c in sound], left, [item.why for item in unusable]]
print(json.dumps(told))
"""


def tried(tmp_path: Path, before: str, *prefix: str) -> list[Any]:
    """Two checkpoints of 600 kB, written by another process."""
    place, source = tmp_path / "checkpoints", tmp_path / "source"
    place.mkdir(exist_ok=True)
    source.mkdir()
    source.chmod(0o777)
    for number in (1, 2):
        (source / f"{number}.safetensors").write_bytes(os.urandom(600_000))
    words = [str(place), str(source), before, RUN]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", TRY, *words], capture_output=True, text=True, timeout=60
    )
    if prefix and done.returncode != 0 and "mount" in done.stderr + str(done.args):
        pytest.skip(f"no file system of its own is to be had here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_file_system_that_is_full_keeps_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    found = tried(tmp_path, "mount", "unshare", "-rm")
    first, (kind, text), rounds, left, unusable = found
    assert first == "kept"
    assert kind == "DiskFull"
    assert "No space left" in text
    assert (rounds, unusable) == ([1], [])
    assert left == ["stage-00-round-000001"], "nothing half written stays"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_folder_of_somebody_else_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    place = tmp_path / "checkpoints"
    place.mkdir()
    own = CheckpointFolder(place, RUN)
    state = tmp_path / "own.safetensors"
    state.write_bytes(b"x" * 1000)
    own.keep(state, stage=0, round_number=1, step=0, ledger=())
    own.path.chmod(0o755)
    found = tried(tmp_path, str(NOBODY))
    assert [kind for kind, _ in found] == ["NotPermitted", "NotPermitted"]
    assert all(str(place) in text for _, text in found)
    (kept,), unusable = own.find(0)
    assert kept.round == 1
    assert not unusable
