"""Scripts and the image: they can run, they say what is missing before they begin, and agree.

What the Dockerfile refers to is checked without a container engine, and the wheel test
(test_packaging.py) builds from what it copies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted(ROOT.glob("scripts/*")), ROOT / ".ci" / "run"]
SYSTEMS = ("Debian, Ubuntu", "Fedora", "Arch", "macOS")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound_and_can_be_run(path: Path) -> None:
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    if path.name != "lib.sh":
        assert os.access(path, os.X_OK)
        assert path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


def run_check(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """scripts/check with a place for the environment where nothing is yet."""
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "check")],
        env={**os.environ, "SWARMD_VENV": str(tmp_path / "venv"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.process
def test_without_a_compiler_nothing_is_begun_and_the_way_out_is_named(tmp_path: Path) -> None:
    ran = run_check(tmp_path, CC=str(tmp_path / "no-such-compiler"))
    assert ran.returncode == 1
    assert ran.stderr.startswith("swarmd needs a C compiler")
    assert all(f"\n  {system} " in ran.stderr for system in SYSTEMS)
    assert not (tmp_path / "venv").exists()


@pytest.mark.process
@pytest.mark.parametrize(("header", "words"), [("gmp.h", "the GMP"), ("Python.h", "the Python")])
def test_without_a_header_it_is_named(tmp_path: Path, header: str, words: str) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n! grep -q '{header}'\n", encoding="utf-8")
    compiler.chmod(0o755)
    ran = run_check(tmp_path, CC=str(compiler))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"swarmd needs {words} headers to install")


@pytest.mark.process
def test_without_a_python_it_is_named(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    ran = run_check(tmp_path, PATH=str(tools), PYTHON="", CC="cc")
    assert ran.returncode == 1
    assert ran.stderr.startswith("swarmd needs Python 3.11 or newer with venv, a C compiler")


def test_readme_and_scripts_name_the_same_commands() -> None:
    named = dict(re.findall(r'say "  (\S.*?)   +(\S.*)"', read("scripts/lib.sh")))
    shown = dict(re.findall(r"^\| ([\w, ]+) \| `([^`]+)` \|$", read("README.md"), re.MULTILINE))
    assert set(named) == set(SYSTEMS)
    assert {system: shown[system] for system in SYSTEMS} == named


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "scripts/test" in read("README.md")
    assert 'scripts/test" -q' in read(".ci/run")


def test_no_file_names_a_place_on_one_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    place = re.compile(r"(?<![\w.$~/])/(?:root|work|home/\w+|Users/\w+)/\w")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path != Path(__file__).resolve():
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{name}: {match[0]}" for match in place.finditer(text)]
    assert not found, "\n".join(found)


# ---------------------------------------------------------------------------------------- the image


def stages() -> list[str]:
    """The Dockerfile's stages, comments left out, continued lines joined."""
    lines = [line for line in read("Dockerfile").splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    head, *found = re.split(r"^FROM ", text, flags=re.MULTILINE)
    assert "ARG BASE=" in head
    return found


def test_the_image_is_built_in_one_stage_and_runs_in_another_without_rights() -> None:
    build, final = stages()
    assert build.startswith("${BASE} AS build")
    assert final.startswith("${BASE}\n")
    assert "build-essential" in build
    assert "build-essential" not in final
    assert build.count("-c constraints.txt") == build.count("pip install") == 2
    user = re.search(r"^USER (\w+)$", final, re.MULTILINE)
    assert user
    assert user[1] != "root"
    assert final.index("USER") < final.index("ENTRYPOINT")
    assert re.search(r"^HEALTHCHECK .*CMD swarmd status ", final, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in final


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    build, _ = stages()
    copied = {
        source.rstrip("/")
        for line in re.findall(r"^COPY (.+)$", build, re.MULTILINE)
        for source in line.split()[:-1]
    }
    lines = read(".dockerignore").splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert lines[lines.index("*")] == "*"
    assert sent == copied
    assert all((ROOT / name).exists() for name in copied)


def test_ports_and_home_agree_everywhere() -> None:
    from swarmd.settings import SETTINGS

    port = next(item.default for item in SETTINGS if item.name == "port")
    _, final = stages()
    compose = read("deploy/compose.yaml")
    assert f"EXPOSE {port} {port + 1}" in final
    assert [f"{p}:{p}" in compose for p in (port, port + 1)] == [True, True]
    home = re.search(r"SWARMD_HOME=(\S+)", final)
    assert home
    assert f"VOLUME {home[1]}" in final
    assert f"home:{home[1]}\n" in compose


def test_a_stop_may_take_as_long_as_a_drain() -> None:
    from swarmd.cli.service_unit import make_unit
    from swarmd.home import home_at
    from swarmd.named_limits import WAN

    longest_s = WAN.drain_deadline_s + WAN.stop_grace_s
    grace = re.search(r"stop_grace_period: (\d+)s", read("deploy/compose.yaml"))
    unit = re.search(r"TimeoutStopSec=(\d+)", make_unit(home_at(ROOT), is_user=False).text)
    assert grace
    assert unit
    assert int(grace[1]) > longest_s
    assert int(unit[1]) > longest_s
