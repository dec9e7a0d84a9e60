"""Memory of this machine, or of the container that we are in: one rule for all who ask."""

from __future__ import annotations

from pathlib import Path

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_SPACE = 1 << 62
"""An older kernel's way to say that there is no limit."""


def memory_limit_bytes() -> int | None:
    """A container's, if there is one."""
    for file in CGROUP_LIMITS:
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _SPACE:
            return int(text)
    return None


def memory_free_bytes() -> int:
    """What could be used now: what is available, within a container's limit."""
    import psutil  # type: ignore[import-untyped]

    return _within_limit(psutil.virtual_memory().available)


def memory_total_bytes() -> int:
    """The machine's, within a container's limit."""
    import psutil

    return _within_limit(psutil.virtual_memory().total)


def _within_limit(of_machine_bytes: int) -> int:
    limit = memory_limit_bytes()
    return of_machine_bytes if limit is None else min(of_machine_bytes, limit)
