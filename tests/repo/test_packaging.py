"""One distribution, whole: what pyproject names is what lies on disk, and the wheel carries it.

The wheel is built from what the Dockerfile copies, so one build shows that both are complete. It is
tried from an empty folder: elsewhere the source tree would be found first and hide what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "swarmd": ROOT / "swarmd",
    "swarmd.cli": ROOT / "cli",
    "swarmd.protocols": ROOT / "protocols",
}
LINKS = ("cli", "protocols")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files_on_disk(pattern: str) -> set[str]:
    """As a wheel names them: `swarmd/cli/main.py`. Links are not followed."""
    found = set()
    for package, folder in FOLDERS.items():
        for file in folder.rglob(pattern):
            parts = file.relative_to(folder).parts
            if package != "swarmd" or parts[0] not in LINKS:
                found.add("/".join([*package.split("."), *parts]))
    return found


def packages_on_disk() -> set[str]:
    return {
        name.removesuffix("/__init__.py").replace("/", ".") for name in files_on_disk("__init__.py")
    }


def test_pyproject_names_every_package_on_disk() -> None:
    named = pyproject()["tool"]["setuptools"]["packages"]
    assert named == sorted(packages_on_disk())


def test_no_folder_of_modules_lacks_its_init() -> None:
    folders = {name.rpartition("/")[0].replace("/", ".") for name in files_on_disk("*.py")}
    assert folders == packages_on_disk()


def test_links_make_the_source_tree_one_package() -> None:
    for name in LINKS:
        link = ROOT / "swarmd" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name


def normalised(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_has_a_tested_version_that_it_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    tested = {normalised(name): version for name, version in pinned.items()}
    project = pyproject()["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["test"]]:
        name = normalised(requirement)
        bound = re.fullmatch(r"[\w.-]+(==|>=)([\d.]+)", requirement)
        assert bound, f"a bound that this test does not know: {requirement}"
        have, need = (tuple(map(int, v.split("."))) for v in (tested[name], bound[2]))
        assert have == need if bound[1] == "==" else have >= need, requirement


def test_every_dependency_is_explained() -> None:
    """docs/design.md has a row for each."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## Dependencies")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([\w, ]+?) \|", table, re.MULTILINE)
    explained = {name.strip() for cell in cells for name in cell.split(",")} - {"package"}
    assert explained == {normalised(item) for item in pyproject()["project"]["dependencies"]}


def copied_into_the_image() -> list[str]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    return [source.rstrip("/") for line in lines for source in line.split()[:-1]]


@pytest.mark.process
def test_a_wheel_of_what_the_image_copies_is_whole_and_runs(tmp_path: Path) -> None:
    source, built, unpacked, empty = (
        tmp_path / n for n in ("source", "built", "unpacked", "empty")
    )
    source.mkdir()
    empty.mkdir()
    for name in copied_into_the_image():
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, source / name)
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", built, source],
        timeout=180,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        found = HeaderParser().parsestr(archive.read(metadata).decode())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"swarmd"}
    carried = ("*.py", "*.toml", "py.typed", "*.html", "*.js", "*.css")
    expected = {name for pattern in carried for name in files_on_disk(pattern)}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert found["Requires-Python"] == pyproject()["project"]["requires-python"]
    assert (ROOT / "README.md").read_text(encoding="utf-8").strip() in found.get_payload().strip()

    code = "import swarmd, swarmd.cli.main; print(swarmd.__file__, swarmd.cli.main.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "SWARMD_HOME": str(empty / "home")}
    for arguments in (["-c", code], ["-m", "swarmd", "version"]):
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=empty,
            env=environment,
            timeout=60,
            capture_output=True,
            text=True,
            check=True,
        )
        if arguments[0] == "-c":
            assert all(path.startswith(str(unpacked)) for path in ran.stdout.split()), ran.stdout
        else:
            assert "protocol" in ran.stdout
    assert not list(empty.iterdir()), "looking at a version makes no home"
