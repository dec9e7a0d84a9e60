"""Commands that keep house: config, identity, run, schema, version, completion."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from command_line import FakeDaemon, swarmd

from swarmd import __version__
from swarmd.home import Home
from swarmd.home_files import raise_incarnation
from swarmd.home_lock import acquire_lock
from swarmd.identity import load_or_create
from swarmd.records import Run
from swarmd.run_link import ADDRESS_EXAMPLE
from swarmd.schemas import names

RUN_FILE = f"""\
[run]
name = "demo"
preset = "tiny"
entry = ["{ADDRESS_EXAMPLE}"]

[data]
content_hash = "{"ab" * 32}"
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    file = tmp_path / "demo.toml"
    file.write_text(RUN_FILE)
    return file


# ------------------------------------------------------------------------------------------- config


def test_every_value_is_shown_and_where_it_comes_from(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create()
    home.config_file.write_text("[limits]\nlimit_up = '20mbit'\n")
    monkeypatch.setenv("SWARMD_NET_NAME", "alder")
    lines = swarmd("config", "show", "--origin", home=home).lines
    assert f'limits.limit_up      = "20mbit"   # {home.config_file}' in lines
    assert 'net.name             = "alder"   # SWARMD_NET_NAME' in lines
    assert "net.port             = 4710   # built-in" in lines
    values = swarmd("config", "show", "--json", home=home).object["values"]
    assert values["limits.limit_up"] == {"value": "20mbit", "origin": str(home.config_file)}
    assert values["device.threads"] == {"value": None, "origin": "built-in"}


def test_unknown_key_is_a_warning_in_show_and_an_error_in_validate(home: Home) -> None:
    home.create()
    home.config_file.write_text("[net]\n\nprot = 1\n")
    shown = swarmd("config", "show", home=home)
    assert shown.code == 0
    assert "warning" in shown.err
    assert "config.toml:3: unknown key net.prot; did you mean net.port?" in shown.err
    checked = swarmd("config", "validate", home=home)
    assert checked.code == 78
    assert "config.toml:3: unknown key net.prot" in checked.err


@pytest.mark.parametrize("body", ["[net]\n\nport = 'x'\n", "[net]\n\nport = \n"])
def test_cli_01_broken_file_is_78_with_file_and_line(home: Home, body: str) -> None:
    home.create()
    home.config_file.write_text(body)
    for command in (["config", "validate"], ["config", "show"], ["identity", "show"]):
        if command[0] == "identity":
            load_or_create(home)
        found = swarmd(*command, "--json", home=home)
        assert (found.code, found.error["code"]) == (78, "bad_config")
        assert "config.toml:3" in found.err


def test_validate_reads_run_files_too(run_file: Path) -> None:
    assert swarmd("config", "validate", run_file).code == 0
    run_file.write_text(RUN_FILE.replace("tiny", "tyni"))
    found = swarmd("config", "validate", run_file)
    assert found.code == 78
    assert "demo.toml:3: run.preset" in found.err
    assert swarmd("config", "validate", "none.toml").code == 2


def test_set_writes_one_value_and_leaves_the_rest(home: Home) -> None:
    home.create()
    home.config_file.write_text("# mine\n[limits]\nlimit_up = '1mbit'  # slow line\n")
    assert swarmd("config", "set", "limit_up", "20mbit", home=home).code == 0
    assert swarmd("config", "set", "net.gpu", "0", home=home).code == 2
    assert swarmd("config", "set", "device.gpu", "0,1", home=home).code == 0
    assert home.config_file.read_text() == (
        '# mine\n[limits]\nlimit_up = "20mbit"  # slow line\n\n[device]\ngpu = ["0", "1"]\n'
    )
    assert swarmd("config", "get", "limits.limit_up", home=home).out == '"20mbit"\n'
    assert swarmd("config", "get", "name", home=home).out == "-\n"


def test_set_makes_the_file_of_a_fresh_home(home: Home) -> None:
    found = swarmd("config", "set", "net.port", "0", "--json", home=home)
    assert found.object["path"] == str(home.config_file)
    assert stat.S_IMODE(home.config_file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("net.port", "70000", "net.port: '70000' is no whole number in 0..65535"),
        ("net.prot", "1", "did you mean `net.port`"),
        ("run.seed", "1", "belongs to the run"),
        ("inner_steps", "1", "belongs to the run"),
        ("net.name", "", "is empty"),
    ],
)
def test_set_refuses_what_could_not_be_read_back(
    home: Home, key: str, value: str, what: str
) -> None:
    found = swarmd("config", "set", key, value, home=home)
    assert found.code == 2
    assert what in found.err
    assert not home.config_file.exists()


# ----------------------------------------------------------------------------------------- identity


def test_identity_is_shown_without_its_key(home: Home) -> None:
    home.create()
    identity = load_or_create(home)
    raise_incarnation(home)
    found = swarmd("identity", "show", home=home)
    assert found.lines[0] == f"id           {identity.peer_id}"
    assert identity.seed.hex() not in found.out
    record = swarmd("identity", "show", "--json", home=home).object
    assert (record["id"], record["mode"], record["incarnation"]) == (identity.peer_id, "0600", 1)


def test_iden_03_home_without_an_identity_gets_none_by_looking(home: Home, tmp_path: Path) -> None:
    found = swarmd("identity", "show", home=home)
    assert (found.code, "no identity yet" in found.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_iden_03_missing_key_beside_older_state_is_78(home: Home) -> None:
    home.create()
    raise_incarnation(home)
    found = swarmd("identity", "show", home=home)
    assert found.code == 78
    assert "identity restore" in found.err


def test_iden_03_wide_mode_is_repaired_with_a_warning(home: Home) -> None:
    home.create()
    load_or_create(home)
    home.identity_key.chmod(0o644)
    assert "0644" in swarmd("identity", "show", home=home).err
    assert swarmd("identity", "show", home=home).err == ""


def test_iden_03_backup_wipe_restore(home: Home, tmp_path: Path) -> None:
    home.create()
    identity = load_or_create(home)
    copy = tmp_path / "copy"
    assert swarmd("identity", "backup", copy, home=home).code == 0
    assert swarmd("identity", "backup", copy, home=home).code == 2
    assert swarmd("identity", "backup", copy, "--yes", home=home).code == 0
    home.identity_key.unlink()
    found = swarmd("identity", "restore", copy, "--json", home=home)
    assert found.object["id"] == identity.peer_id
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_restore_under_a_living_daemon_is_75(home: Home, tmp_path: Path) -> None:
    home.create()
    lock = acquire_lock(home, started_at="now", version="1")
    found = swarmd("identity", "restore", tmp_path / "x", home=home)
    assert (found.code, "home_busy" in found.err) == (75, True)
    lock.release()


# ---------------------------------------------------------------------------------------------- run


def test_created_run_is_named_linked_and_remembered(home: Home, run_file: Path) -> None:
    created = swarmd("run", "create", run_file, "--json", home=home).object
    assert created["link"] == f"swarmd://{created['id']}?peer={ADDRESS_EXAMPLE}"
    assert created["description"]["run"]["total_steps"] == 400
    for name in ("demo", created["id"][:8], str(run_file), created["link"]):
        shown = swarmd("run", "show", name, "--json", home=home).object
        assert shown["id"] == created["id"]
    assert swarmd("run", "ls", home=home).lines[1].split()[:4] == [
        created["id"][:12],
        "demo",
        "tiny",
        "2",
    ]


def test_shown_run_is_a_run_file_of_the_same_run(
    home: Home, run_file: Path, tmp_path: Path
) -> None:
    run_id = swarmd("run", "create", run_file, "--json", home=home).object["id"]
    copy = tmp_path / "copy.toml"
    copy.write_text(swarmd("run", "show", home=home).out)
    assert swarmd("run", "create", copy, "--json", home=home).object["id"] == run_id


def test_creating_a_run_makes_no_peer(home: Home, run_file: Path) -> None:
    swarmd("run", "create", run_file, home=home)
    assert not home.identity_key.exists()
    assert not home.has_older_state()


def test_run_of_the_daemon_is_the_default(home: Home, run_file: Path) -> None:
    swarmd("run", "create", run_file, home=home)
    daemon = FakeDaemon(home)
    record = Run(id="cd" * 32, name="live", link=f"swarmd://{'cd' * 32}?peer={ADDRESS_EXAMPLE}")
    daemon.replies("run", record)
    with daemon.running():
        assert swarmd("run", "show", "--json", home=home).object["name"] == "live"
        assert swarmd("run", "show", "demo", "--json", home=home).object["name"] == "demo"
        assert swarmd("run", "link", home=home).out == f"{record.link}\n"
    assert swarmd("run", "show", "--json", home=home).object["name"] == "demo"
    assert swarmd("run", "link", home=home).code == 3


def test_bad_run_file_is_78_and_unknown_run_is_2(home: Home, run_file: Path) -> None:
    run_file.write_text(RUN_FILE + "seed = 3\n")
    found = swarmd("run", "create", run_file, "--json", home=home)
    assert (found.code, found.error["code"]) == (78, "bad_config")
    assert "demo.toml:8: data.seed" in found.err
    assert swarmd("run", "create", "none.toml", home=home).code == 2
    assert swarmd("run", "show", "nothing", home=home).code == 2
    assert swarmd("run", "show", f"swarmd://{'0' * 64}", home=home).code == 1
    assert not home.state.exists()


def test_run_is_forgotten_only_after_a_yes(home: Home, run_file: Path) -> None:
    swarmd("run", "create", run_file, home=home)
    unasked = swarmd("run", "close", "demo", "--no-input", home=home)
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert swarmd("run", "close", "demo", "--yes", home=home).code == 0
    assert swarmd("run", "ls", "--json", home=home).object["data"] == {"runs": []}
    assert swarmd("run", "close", "demo", "--yes", home=home).code == 2


# --------------------------------------------------------------------------------------- the others


def test_every_schema_can_be_had() -> None:
    assert swarmd("schema").lines == [f"swarmd.{name}" for name in names()]
    for name in names():
        found = swarmd("schema", name)
        assert json.loads(found.out)["title"] == f"swarmd.{name}"
    assert len(swarmd("schema", "swarmd.status", "--json").lines) == 1
    found = swarmd("schema", "statu")
    assert (found.code, "did you mean `status`" in found.err) == (2, True)


def test_version_says_what_it_speaks() -> None:
    assert swarmd("version").lines[0] == f"swarmd    {__version__}"
    record = swarmd("version", "--json").object
    assert record["version"] == __version__
    assert record["protocol_min"] <= record["protocol_max"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell: str) -> None:
    found = swarmd("completion", shell)
    assert found.code == 0
    assert "_SWARMD_COMPLETE" in found.out
