"""Starts a daemon as a child that cannot outlive us: peers of `local`, and a machine's further
devices.

It inherits one end of a pipe whose other end only we have (SWARMD_LIFELINE): when we are gone,
however we went, it reads the end and stops.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIFELINE_VARIABLE = "SWARMD_LIFELINE"
"""Number of the inherited descriptor whose end tells a peer to stop at once."""


def spawn_daemon(
    words: Sequence[str], environment: Mapping[str, str], *, lifeline: int, output: Path
) -> subprocess.Popen[bytes]:
    """`swarmd WORDS`; what it says is appended to `output`. Raises OSError.

    From a thread that lives as long as we do: the kernel ends a child whose parent thread is gone
    (node/stopping.py).
    """
    with output.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "swarmd", *words, "--no-input"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, LIFELINE_VARIABLE: str(lifeline)},
            pass_fds=(lifeline,),
            start_new_session=True,  # a terminal's Ctrl-C is for us; we pass it on once
        )
