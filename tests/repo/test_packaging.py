"""One distribution, whole: what pyproject names is what lies on disk, and the wheel carries it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def packages_on_disk() -> set[str]:
    found = set()
    for package, folder in {
        "swarmd": ROOT / "swarmd",
        "swarmd.cli": ROOT / "cli",
        "swarmd.protocols": ROOT / "protocols",
    }.items():
        for init in folder.rglob("__init__.py"):
            parts = init.relative_to(folder).parts[:-1]
            if package == "swarmd" and parts and parts[0] in ("cli", "protocols"):
                continue
            found.add(".".join([package, *parts]))
    return found


def test_pyproject_names_every_package_on_disk() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        named = tomllib.load(file)["tool"]["setuptools"]["packages"]
    assert sorted(named) == sorted(packages_on_disk())


def test_links_make_the_source_tree_one_package() -> None:
    for name in ("cli", "protocols"):
        link = ROOT / "swarmd" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name


@pytest.mark.process
def test_wheel_holds_every_module_and_nothing_at_the_top(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, ROOT],
        check=True,
        timeout=180,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"swarmd"}
    missing = [
        name
        for package, folder in (("cli", ROOT / "cli"), ("protocols", ROOT / "protocols"))
        for file in folder.rglob("*.py")
        if (name := f"swarmd/{package}/{file.relative_to(folder).as_posix()}") not in names
    ]
    assert not missing
    assert "swarmd/presets/tiny.toml" in names
