"""A process and all that it started: who they are, what they hold, how to stop them together.

Read from /proc, so Linux only; elsewhere a tree is its root, of unknown size.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class TreeSize:
    processes: int
    rss_bytes: int | None
    """Resident memory, added up: what processes share is counted for each."""


def tree_of(root: int) -> list[int]:
    """Parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += sorted(children.get(pid, []))
    return found


def size_of(root: int) -> TreeSize:
    pids = set(tree_of(root))
    pages = [int(fields[21]) for pid, fields in _stats() if pid in pids]
    if not pages:
        return TreeSize(len(pids), None)
    return TreeSize(len(pids), sum(pages) * os.sysconf("SC_PAGE_SIZE"))


def signal_tree(root: int, number: signal.Signals) -> None:
    """Parents first, so that none of them sees a child end before it is stopped itself."""
    for pid in tree_of(root):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stats() -> Iterator[tuple[int, list[str]]]:
    """(pid, what follows the name in its stat: state, parent, ... resident pages as the 22nd)."""
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()
