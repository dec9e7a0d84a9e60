"""What goes into a bug report, file by file, before anything is taken out of it.

A report is made when something is broken, so each part may be missing: then its place says why, and
the others are there all the same. Only files that are named here are read; the identity key, the
checkpoints and the data never are.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmd.errors import SwarmdError

if TYPE_CHECKING:
    from swarmd.cli.framework import Session

TAIL_BYTES_MAX = 2 << 20
"""Of each log: more is more to send, and the cause is mostly near the end."""
PACKAGES = (
    "torch", "numpy", "safetensors", "libp2p", "trio", "msgpack", "click", "rich", "psutil",
    "cryptography", "hypercorn", "starlette", "pyarrow", "datasets", "tokenizers", "transformers",
)  # fmt: skip


def parts(session: Session) -> Iterator[tuple[str, str]]:
    """(name in the archive, text) of everything there is."""
    home = session.home
    makers: list[tuple[str, Callable[[], str]]] = [
        ("machine.json", lambda: _json(_machine())),
        ("paths.json", lambda: _json(_paths(session))),
        ("config.json", lambda: _json(_config(session))),
        ("config.toml", lambda: _tail(home.config_file)),
        ("last_exit.json", lambda: _tail(home.last_exit_file)),
        ("last_status.json", lambda: _tail(home.last_status_file)),
        ("events.jsonl", lambda: _tail(home.events_file)),
        ("swarmd.log", lambda: _tail(home.log_file)),
        ("run.json", lambda: _json(session.ask("run"))),
        ("status.json", lambda: _json(session.ask("status"))),
        ("peers.json", lambda: _json(session.ask("peers", {"all": True}))),
        ("plan.json", lambda: _json(session.ask("plan"))),
        ("dump.json", lambda: _json(session.ask("dump"))),
    ]
    for name, make in makers:
        try:
            yield name, make()
        except FileNotFoundError:
            continue
        except (OSError, SwarmdError) as error:
            yield f"{name}.missing", f"{type(error).__name__}: {error}\n"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


def _machine() -> dict[str, Any]:
    import psutil  # type: ignore[import-untyped]

    from swarmd import __version__

    memory = psutil.virtual_memory()
    return {
        "swarmd": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "variables": sorted(name for name in os.environ if name.startswith("SWARMD_")),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _paths(session: Session) -> dict[str, Any]:
    return {
        name: {"path": str(path), "exists": path.exists(), "mode": _mode(path)}
        for name, path in session.home.places().items()
    }


def _mode(path: Path) -> str | None:
    try:
        return f"{path.stat().st_mode & 0o7777:04o}"
    except OSError:
        return None


def _config(session: Session) -> dict[str, Any]:
    from swarmd.peer_config import effective_config

    found = effective_config(session.home)
    return {
        key: {"value": value, "origin": str(origin)}
        for key, (value, origin) in found.shown().items()
    }


def _tail(path: Path) -> str:
    """The end of a file, from the beginning of a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES_MAX))
        body = file.read()
    if size > TAIL_BYTES_MAX:
        body = body.partition(b"\n")[2]
    return body.decode("utf-8", "replace")
