"""Where a home lies, who may hold it, and the small files in it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.errors import Corrupt, DiskFull, NotPermitted, UserError
from swarmd.home import SYSTEM_CONFIG, Home, find_home
from swarmd.home_files import (
    KnownPeer,
    LastExit,
    raise_incarnation,
    read_incarnation,
    read_known_peers,
    read_last_exit,
    write_known_peers,
    write_last_exit,
)
from swarmd.home_lock import acquire_lock, holder_of
from swarmd.peer_id import peer_id_of
from swarmd.protocols.ids import RunId
from swarmd.store import read_json, store_error, write_json, writing

RUN = RunId("7f3a" * 16)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = find_home(str(tmp_path / "home"))
    found.create()
    return found


# ------------------------------------------------------------------------------------------- places


def test_flag_wins_over_variable_service_and_user(tmp_path: Path) -> None:
    env = {"SWARMD_HOME": "/b", "STATE_DIRECTORY": "/c", "HOME": "/d"}
    assert find_home("/a", env).state == Path("/a/state")
    assert find_home(None, env).state == Path("/b/state")
    del env["SWARMD_HOME"]
    assert find_home(None, env).state == Path("/c")
    del env["STATE_DIRECTORY"]
    assert find_home(None, env).state == Path("/d/.local/state/swarmd")


def test_service_uses_the_directories_systemd_names() -> None:
    env = {
        "STATE_DIRECTORY": "/var/lib/swarmd:/var/lib/more",
        "CACHE_DIRECTORY": "/var/cache/swarmd",
        "RUNTIME_DIRECTORY": "/run/swarmd",
    }
    home = find_home(None, env)
    assert (home.state, home.data) == (Path("/var/lib/swarmd"), Path("/var/lib/swarmd/data"))
    assert (home.cache, home.runtime) == (Path("/var/cache/swarmd"), Path("/run/swarmd"))
    assert home.config_file == SYSTEM_CONFIG


def test_xdg_variables_decide_and_relative_ones_are_ignored() -> None:
    env = {
        "HOME": "/d",
        "XDG_CONFIG_HOME": "/x/config",
        "XDG_STATE_HOME": "relative",
        "XDG_RUNTIME_DIR": "/run/user/7",
    }
    home = find_home(None, env)
    assert home.config_file == Path("/x/config/swarmd/config.toml")
    assert home.state == Path("/d/.local/state/swarmd")
    assert home.control_socket == Path("/run/user/7/swarmd/control.sock")


@pytest.mark.parametrize(("flag", "env"), [("", {}), (" ", {}), (None, {"SWARMD_HOME": ""})])
def test_empty_home_is_refused_and_never_means_the_default(
    flag: str | None, env: dict[str, str]
) -> None:
    with pytest.raises(UserError) as caught:
        find_home(flag, {"HOME": "/d", **env})
    assert caught.value.exit_code == 2


def test_finding_a_home_touches_nothing(tmp_path: Path) -> None:
    find_home(str(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


def test_relative_home_is_fixed_when_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = find_home("h")
    monkeypatch.chdir("/")
    assert home.root == tmp_path / "h"


def test_directories_are_private_and_wider_ones_are_repaired(tmp_path: Path) -> None:
    home = find_home(str(tmp_path / "ä home"))
    assert home.create() == []
    modes = {stat.S_IMODE(folder.stat().st_mode) for folder in (home.root, *home.directories())}
    assert modes == {0o700}
    home.state.chmod(0o755)
    (repair,) = home.create()
    assert str(home.state) in repair
    assert stat.S_IMODE(home.state.stat().st_mode) == 0o700


def test_home_that_is_a_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="home cannot be used"):
        find_home(str(tmp_path / "file" / "home")).create()


# ------------------------------------------------------------------------------------ atomic writes


def test_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_json(file, {"a": 1})

    def fail_half_way() -> None:
        with writing(file) as out:
            out.write(b"half")
            raise EOFError

    with pytest.raises(EOFError):
        fail_half_way()
    assert read_json(file) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_nan_never_reaches_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_broken_json_is_corrupt_and_absent_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(Corrupt, match=r"x\.json"):
        read_json(tmp_path / "x.json")


def test_what_the_system_says_becomes_our_error() -> None:
    path = Path("/x")
    assert isinstance(store_error(path, OSError(28, "no space")), DiskFull)
    assert isinstance(store_error(path, OSError(13, "denied")), NotPermitted)


# --------------------------------------------------------------------------------------------- lock

HOLD = """
import sys
from swarmd.home import find_home
from swarmd.home_lock import acquire_lock
lock = acquire_lock(find_home(sys.argv[1]), started_at="2026-11-30T12:00:00Z", version="9")
print("held", flush=True)
sys.stdin.read()
"""


def hold(home: Home) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


@pytest.mark.process
def test_second_holder_is_told_who_holds_the_home(home: Home) -> None:
    with hold(home) as child:
        try:
            holder = holder_of(home)
            assert holder is not None
            assert (holder.pid, holder.version) == (child.pid, "9")
            with pytest.raises(UserError) as caught:
                acquire_lock(home, started_at="", version="")
            assert caught.value.exit_code == 75
            assert f"pid {child.pid}" in str(caught.value)
        finally:
            child.kill()


@pytest.mark.process
def test_lock_of_a_killed_holder_is_taken_over_without_asking(home: Home) -> None:
    with hold(home) as child:
        child.kill()
        child.wait()
    assert home.lock_file.exists()
    assert holder_of(home) is None
    lock = acquire_lock(home, started_at="now", version="1")
    assert holder_of(home).pid == os.getpid()
    lock.release()


@pytest.mark.process
def test_state_is_covered_even_where_the_runtime_directory_differs(
    home: Home, tmp_path: Path
) -> None:
    from dataclasses import replace

    elsewhere = replace(home, runtime=tmp_path / "other session")
    elsewhere.create()
    with hold(home) as child:
        try:
            assert holder_of(elsewhere) is not None
            with pytest.raises(UserError, match="another daemon"):
                acquire_lock(elsewhere, started_at="", version="")
        finally:
            child.kill()


def test_released_lock_leaves_no_file(home: Home) -> None:
    lock = acquire_lock(home, started_at="now", version="1")
    lock.release()
    assert holder_of(home) is None
    assert list(home.runtime.iterdir()) == []


def test_reading_who_holds_it_does_not_free_it(home: Home) -> None:
    lock = acquire_lock(home, started_at="now", version="1")
    for _ in range(3):
        assert holder_of(home) is not None
    lock.release()


# -------------------------------------------------------------------------------------- small files


def test_incarnation_rises_with_each_start_and_never_repeats(home: Home) -> None:
    assert read_incarnation(home) == 0
    assert [raise_incarnation(home) for _ in range(3)] == [1, 2, 3]
    assert raise_incarnation(home, at_least=10) == 10
    assert raise_incarnation(home, at_least=5) == 11


def test_broken_incarnation_is_not_taken_for_the_first(home: Home) -> None:
    home.incarnation_file.write_text("x")
    with pytest.raises(Corrupt):
        raise_incarnation(home)


def test_last_exit_reads_back_and_broken_one_is_unknown(home: Home) -> None:
    last = LastExit(code="drained", exit_code=0, text="", at="2026-11-30T11:40:02.118Z", pid=7)
    assert read_last_exit(home) is None
    write_last_exit(home, last)
    assert read_last_exit(home) == last
    for broken in ("{", "[]", '{"code": "x"}'):
        home.last_exit_file.write_text(broken)
        assert read_last_exit(home) is None


def test_known_peers_are_those_of_the_run_last_seen_first(home: Home) -> None:
    peers = [
        KnownPeer(
            peer=peer_id_of(bytes([n]) * 32),
            name=f"p{n}",
            addresses=(f"/ip4/10.0.0.{n}/tcp/4710",),
            seen_at=f"2026-11-30T12:00:0{n}Z",
        )
        for n in (1, 3, 2)
    ]
    write_known_peers(home, RUN, peers)
    assert [peer.name for peer in read_known_peers(home, RUN)] == ["p3", "p2", "p1"]
    assert str(read_known_peers(home, RUN)[0].entries()[0]).startswith("/ip4/10.0.0.3/tcp/4710/p2p")
    assert read_known_peers(home, RunId("0" * 64)) == ()


def test_unreadable_memory_of_peers_is_no_obstacle(home: Home) -> None:
    for broken in ("{", "[]", f'{{"run_id": "{RUN}", "peers": [1, {{}}, {{"peer": "x"}}]}}'):
        home.known_peers_file.write_text(broken)
        assert read_known_peers(home, RUN) == ()


# --------------------------------------------------------------------------------------- no place


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_home_that_is_no_directory_is_refused_by_name(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is no directory") as caught:
        find_home(f"{tmp_path}/file{below}")
    assert (caught.value.code, caught.value.exit_code) == ("home_unusable", 1)


def test_relative_path_in_a_removed_directory_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="current directory is gone") as caught:
        find_home("home")
    assert (caught.value.code, caught.value.exit_code) == ("no_directory", 1)
    assert find_home(str(tmp_path)).root == tmp_path
