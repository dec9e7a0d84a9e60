"""Imports go down only. Each ban stands with its reason, as in docs/design.md.

Read from the source with `ast`, so that a forbidden import fails even where no test runs it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {
    "swarmd.protocols": ROOT / "protocols",
    "swarmd.cli": ROOT / "cli",
    "swarmd": ROOT / "swarmd",
}

CLOCKS_AND_IO = {
    "asyncio": "floor 0 has no event loop",
    "datetime": "time comes in as now_s",
    "logging": "machines emit, drivers log",
    "os": "floor 0 has no operating system",
    "pathlib": "floor 0 has no files",
    "secrets": "randomness comes in as random.Random",
    "socket": "floor 0 has no sockets",
    "subprocess": "floor 0 starts nothing",
    "multiprocessing": "floor 0 starts nothing",
    "sys": "floor 0 has no process around it",
    "threading": "a machine belongs to one caller",
    "time": "time comes in as now_s",
    "uuid": "ids come in",
}
HEAVY = {
    "torch": "takes seconds to load and holds the GIL; compute worker only",
    "libp2p": "quarantined in net/libp2p_host.py, which has the guards",
    "multiaddr": "part of libp2p's world",
}
PACKAGE_BANS: dict[str, dict[str, str]] = {
    "swarmd.protocols": CLOCKS_AND_IO
    | HEAVY
    | {
        "trio": "floor 0 never awaits",
        "numpy": "floor 0 handles references, not tensors",
        "click": "floor 5",
        "rich": "floor 5",
    },
    "swarmd.sim": HEAVY
    | {"trio": "its order is random on purpose", "socket": "opens none", "numpy": "must be exact"},
    "swarmd.data": HEAVY | {"trio": "runs in the worker and in the CLI"},
    "swarmd.model": {"trio": "compute worker only", "libp2p": HEAVY["libp2p"]},
    "swarmd.optim": {"trio": "compute worker only", "libp2p": HEAVY["libp2p"]},
    "swarmd.compute": {"libp2p": HEAVY["libp2p"]},
    "swarmd.net": {"torch": HEAVY["torch"], "click": "floor 5", "rich": "floor 5"},
    "swarmd.node": {"torch": HEAVY["torch"], "click": "floor 5", "rich": "floor 5"},
    "swarmd.web": HEAVY | {"click": "floor 5", "rich": "floor 5"},
    "swarmd.local_api": HEAVY | {"click": "floor 5", "rich": "floor 5"},
    "swarmd.cli": HEAVY | {"numpy": "reading commands answer at once"},
}
FLOOR_ABOVE: dict[str, tuple[str, ...]] = {
    "swarmd.protocols": ("swarmd",),
    "swarmd.sim": ("swarmd.node", "swarmd.net", "swarmd.compute", "swarmd.model", "swarmd.optim"),
    "swarmd.data": ("swarmd.node", "swarmd.net", "swarmd.compute", "swarmd.model"),
    "swarmd.model": ("swarmd.node", "swarmd.net", "swarmd.compute"),
    "swarmd.optim": ("swarmd.node", "swarmd.net", "swarmd.compute", "swarmd.model"),
    "swarmd.net": ("swarmd.node", "swarmd.compute", "swarmd.model", "swarmd.optim", "swarmd.sim"),
    "swarmd.compute": ("swarmd.node", "swarmd.net", "swarmd.sim"),
    "swarmd.web": ("swarmd.node", "swarmd.net", "swarmd.compute", "swarmd.sim"),
    "swarmd.node": ("swarmd.compute", "swarmd.model", "swarmd.optim", "swarmd.sim"),
}
"""Packages that the key must not import (itself and swarmd.protocols excepted)."""

ONE_FILE = {
    "libp2p": ("swarmd/net/libp2p_host.py",),
    "ssl": ("swarmd/net/tls_bulk.py", "swarmd/net/tls_identity.py"),
}
"""Modules that only the named files may import."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""(file, module): why it may."""


def sources() -> Iterator[tuple[str, Path]]:
    """(dotted package, file) of every source file; links are not followed."""
    for package, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*.py")):
            relative = file.relative_to(folder)
            if package == "swarmd" and relative.parts[0] in ("cli", "protocols"):
                continue
            yield ".".join([package, *relative.parts[:-1]]), file


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))))


def imports(file: Path) -> Iterator[tuple[str, int]]:
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def violations() -> Iterator[str]:
    for package, file in sources():
        name = str(file.relative_to(ROOT))
        for module, line in imports(file):
            where = f"{name}:{line} imports {module}"
            if (name, module) in EXCEPTIONS:
                continue
            for base, bans in PACKAGE_BANS.items():
                if is_inside(package, base):
                    for banned, why in bans.items():
                        if is_inside(module, banned) and not allowed_in(name, banned):
                            yield f"{where}: {why}"
            for base, above in FLOOR_ABOVE.items():
                if is_inside(package, base) and not is_inside(module, base):
                    if not is_inside(module, "swarmd.protocols"):
                        yield from (
                            f"{where}: imports go down only"
                            for upper in above
                            if is_inside(module, upper)
                        )
            for quarantined, files in ONE_FILE.items():
                if is_inside(module, quarantined) and name not in files:
                    yield f"{where}: only {files[0]} may"


def allowed_in(name: str, banned: str) -> bool:
    return banned in ONE_FILE and name in ONE_FILE[banned]


def test_imports_go_down_only() -> None:
    found = sorted(set(violations()))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("package", "line", "why"),
    [
        ("swarmd.protocols", "import time", "now_s"),
        ("swarmd.protocols", "from swarmd.errors import UserError", "down only"),
        ("swarmd.net", "import torch", "compute worker only"),
        ("swarmd.node", "import libp2p.peer", "libp2p_host.py may"),
    ],
)
def test_a_forbidden_import_is_found(
    package: str, line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "made_up.py"
    file.write_text(line, encoding="utf-8")
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "sources", lambda: iter([(package, file)]))
    monkeypatch.setattr(here, "ROOT", tmp_path)
    assert any(why in found for found in violations())


def test_every_banned_package_exists() -> None:
    known = {package for package, _ in sources()}
    named = set(PACKAGE_BANS) | set(FLOOR_ABOVE)
    assert named <= known, f"bans for packages that are gone: {named - known}"


@pytest.mark.parametrize(
    "call",
    ["random.random", "random.choice", "random.shuffle", "random.seed", "print", "hash", "id"],
)
def test_floor_0_calls_nothing_global(call: str) -> None:
    found = []
    for package, file in sources():
        if not is_inside(package, "swarmd.protocols"):
            continue
        for node in nodes(file):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == call:
                found.append(f"{file.relative_to(ROOT)}:{node.lineno} calls {call}")
    assert not found, found
