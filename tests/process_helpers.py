"""Looking at processes and files of other processes, without luck: every wait has a deadline."""

from __future__ import annotations

from pathlib import Path

import trio


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def wait_until_gone(pid: int, timeout_s: float) -> float:
    """How long it took, s."""
    began_s = trio.current_time()
    with trio.fail_after(timeout_s):
        while is_running(pid):
            await trio.sleep(0.005)
    return trio.current_time() - began_s


async def wait_for_file(path: Path, timeout_s: float = 15.0) -> None:
    with trio.fail_after(timeout_s):
        while not path.exists():
            await trio.sleep(0.005)
