"""`swarmd bugreport`: everything that helps is in it, and nothing that is secret."""

from __future__ import annotations

import base64
import io
import json
import stat
import tarfile
from pathlib import Path

import pytest
from command_line import FakeDaemon, swarmd

from swarmd.cli.redaction import Redaction
from swarmd.home import Home
from swarmd.identity import load_or_create
from swarmd.records import Done

SECRETS = (
    "hf_abcdefghijklmnopqrstuvwxyz",
    "hunter2hunter2",
    "eyJhbGciOiJIUzI1NiJ9.payload.signature",
    "s3cr3t-web-token",
)


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def write_log(home: Home) -> None:
    home.create()
    home.log_file.write_text(
        f"INFO fetching https://me:{SECRETS[1]}@example.org/data with HF_TOKEN={SECRETS[0]}\n"
        f"INFO Authorization: Bearer {SECRETS[2]}\n"
        f"INFO web token={SECRETS[3]} for 127.0.0.1, seen from 203.0.113.7 and 198.51.100.9\n"
        "INFO dialled 8.8.8.8 and again 8.8.8.8, then 1.1.1.1\n"
    )


def test_report_holds_what_the_daemon_knows_and_what_lies_on_disk(home: Home) -> None:
    write_log(home)
    home.config_file.write_text("[limits]\nlimit_up = '20mbit'\n")
    daemon = FakeDaemon(home)
    daemon.replies("dump", Done(command="debug dump", data={"reason": "training"}))
    with daemon.running():
        found = swarmd("bugreport", "--json", home=home)
    assert found.code == 0
    path = Path(found.object["path"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert home.cache in path.parents
    inside = members(path)
    for name in ("machine.json", "paths.json", "config.json", "config.toml", "swarmd.log",
                 "status.json", "peers.json", "dump.json"):  # fmt: skip
        assert name in inside
    assert json.loads(inside["status.json"])["schema"] == "swarmd.status"
    assert json.loads(inside["config.json"])["limits.limit_up"]["value"] == "20mbit"


def test_no_secret_and_no_key_is_in_a_report(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMD_HF_TOKEN", SECRETS[0])
    write_log(home)
    identity = load_or_create(home)
    found = swarmd("bugreport", "--json", home=home)
    inside = members(Path(found.object["path"]))
    whole = "".join(inside.values())
    for secret in SECRETS:
        assert secret not in whole
    seed = identity.seed
    for form in (seed.hex(), base64.b64encode(seed).decode()[:-1]):
        assert form not in whole
    assert "identity.key" in inside["paths.json"]
    assert home.identity_key.read_bytes() not in io.BytesIO(whole.encode()).read()


def test_key_that_was_logged_stops_the_report(home: Home, tmp_path: Path) -> None:
    write_log(home)
    seed = load_or_create(home).seed
    home.log_file.write_text(f"INFO by mistake {seed.hex()}\n")
    found = swarmd("bugreport", "report.tar.gz", "--json", home=home)
    assert (found.code, found.error["code"]) == (1, "key_in_report")
    assert seed.hex() not in found.out + found.err
    assert not (Path.cwd() / "report.tar.gz").exists()


def test_report_without_a_daemon_says_what_is_missing_and_why(home: Home) -> None:
    write_log(home)
    inside = members(Path(swarmd("bugreport", "--json", home=home).object["path"]))
    assert "no daemon runs" in inside["status.json.missing"]
    assert "swarmd.log" in inside
    assert "events.jsonl" not in inside


def test_file_that_exists_is_not_replaced(home: Home, tmp_path: Path) -> None:
    there = tmp_path / "there.tar.gz"
    there.write_text("mine")
    assert swarmd("bugreport", there, home=home).code == 2
    assert there.read_text() == "mine"
    fresh = tmp_path / "fresh.tar.gz"
    assert swarmd("bugreport", fresh, home=home).out == f"{fresh}\n"


def test_public_addresses_become_numbers_that_stay_the_same() -> None:
    redaction = Redaction()
    shown = redaction.apply("dialled 8.8.8.8 and 1.1.1.1, then 8.8.8.8; 127.0.0.1, 192.168.1.4")
    assert shown == "dialled ip-1 and ip-2, then ip-1; 127.0.0.1, 192.168.1.4"
    assert redaction.apply("2606:4700:4700::1111 ::1") == "ip-3 ::1"


@pytest.mark.parametrize(
    "text",
    [
        "at 12:00:03 version 0.1.0 of 4.10.0.99x",
        "tokens 4210 tokens_per_s=1840.0 token ids",
        "swarmd://7f3a?peer=/ip4/10.0.0.3/tcp/4710/p2p/12D3KooWAbCd",
        '{"tokens_total": 44000000, "by_reason": {"training": 3.5}}',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redaction(user_directory="/home/alder", user_name="alder").apply(text) == text


def test_user_and_host_are_taken_out() -> None:
    redaction = Redaction(user_directory="/home/alder", user_name="alder", host_name="tower")
    shown = redaction.apply("/home/alder/.local/x of alder on tower; alder-tree, towers")
    assert shown == "~/.local/x of USER on HOST; alder-tree, towers"
