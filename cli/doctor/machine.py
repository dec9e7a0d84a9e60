"""The machine: system, processor, memory, disk, clock and what the system allows."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from swarmd.cli import format as f
from swarmd.home import Home
from swarmd.machine_memory import memory_free_bytes, memory_limit_bytes
from swarmd.result_records import Finding

GIB = 1 << 30
MEMORY_FREE_MIN_BYTES = GIB
"""A daemon and an idle worker take 0.4 GiB."""
DISK_FREE_MIN_BYTES = 2 * GIB
FILES_MIN = 1024
RELEASED_UNIX_S = 1_790_000_000
"""No clock that is right shows less: this version was made later."""
_TIME_ERROR = 5


def findings(home: Home) -> Iterator[Finding]:
    yield _platform()
    yield _processor()
    yield _memory()
    yield _disk(home)
    yield _clock()
    yield _open_files()


def _platform() -> Finding:
    import platform

    from swarmd.versions import is_supported, platform_text

    text = f"{platform_text()}, Python {platform.python_version()}"
    if is_supported():
        return Finding(check="platform", severity="ok", text=f"{text}, supported")
    return Finding(
        check="platform",
        severity="error",
        text=f"{text} is not supported",
        fix="Linux or macOS on 64 bits, with Python 3.11 or newer",
    )


def _processor() -> Finding:
    from swarmd.device_probe import cpu_name, thread_count

    cores, load = thread_count(), os.getloadavg()[0]
    text, data = f"{cpu_name()}, load {load:.1f}", {"threads": cores, "load": load}
    if load <= cores + 0.5:
        return Finding(check="processor", severity="ok", text=text, data=data)
    return Finding(
        check="processor",
        severity="warn",
        text=f"{text}: others keep it busy, so what is measured here is too slow",
        fix="look again when it is quiet; `--threads 1` where peers share one machine",
        data=data,
    )


def _memory() -> Finding:
    free = memory_free_bytes()
    limit = memory_limit_bytes()
    text = f"{f.size(free)} free"
    if limit is not None:
        text += f", limited to {f.size(limit)} here"
    data = {"free_bytes": free, "limit_bytes": limit}
    if free >= MEMORY_FREE_MIN_BYTES:
        return Finding(check="memory", severity="ok", text=text, data=data)
    return Finding(
        check="memory",
        severity="warn",
        text=f"{text}; a peer with the smallest model takes 0.5 GB",
        fix="end other programs, or raise the container's limit",
        data=data,
    )


def existing_parent(path: Path) -> Path:
    """The nearest folder above that is there: a home may not be made yet."""
    while not path.exists():
        path = path.parent
    return path


def disk_free_bytes(home: Home) -> int:
    return shutil.disk_usage(existing_parent(home.data)).free


def _disk(home: Home) -> Finding:
    place = existing_parent(home.data)
    free = disk_free_bytes(home)
    text, data = f"{f.size(free)} free below {place}", {"free_bytes": free}
    if not os.access(place, os.W_OK):
        return Finding(
            check="disk",
            severity="error",
            text=f"{place} cannot be written",
            fix="another place with `--home DIR`, or the right owner",
            data=data,
        )
    if free >= DISK_FREE_MIN_BYTES:
        return Finding(check="disk", severity="ok", text=text, data=data)
    return Finding(
        check="disk", severity="warn", text=text, fix="free some, or use `--home DIR`", data=data
    )


def _clock() -> Finding:
    """Nothing in a swarm depends on wall clocks; people who read logs do."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < RELEASED_UNIX_S:
        return Finding(
            check="clock",
            severity="error",
            text=f"it shows {at}, which is before this version was made",
            fix="set it: certificates of other programs will not be valid either",
        )
    is_kept = _is_synchronised()
    if is_kept is False:
        return Finding(
            check="clock",
            severity="warn",
            text=f"{at}; the system does not keep it in step with others",
            fix="switch on time synchronisation; only what you read depends on it",
        )
    kept = ", kept in step with others" if is_kept else ""
    return Finding(check="clock", severity="ok", text=f"{at}{kept}")


def _is_synchronised() -> bool | None:
    """What the kernel says (adjtimex); None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    room = ctypes.create_string_buffer(256)  # struct timex, all zeros: only look
    state = ctypes.CDLL(None, use_errno=True).adjtimex(room)
    return None if state < 0 else state != _TIME_ERROR


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text, data = f"{soft} open files allowed", {"soft": soft, "hard": hard}
    if soft >= FILES_MIN:
        return Finding(check="limits", severity="ok", text=text, data=data)
    return Finding(
        check="limits",
        severity="warn",
        text=f"{text}; a large swarm needs more",
        fix=f"`ulimit -n {FILES_MIN}`, or LimitNOFILE in the unit",
        data=data,
    )
