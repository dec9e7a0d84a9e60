"""What a worker says while it loads, which may take hours where data are to be packed.

The process that was started for it (child.py) sets `listener` once, before anything is loaded, and
passes every word on to the daemon; elsewhere nobody listens. Words are proof of progress: a worker
that says something new is not given up for taking long (swarmd/node/worker_life.py).
"""

from __future__ import annotations

from collections.abc import Callable

listener: Callable[[str], None] | None = None


def say(text: str) -> None:
    """One line."""
    if listener is not None:
        listener(text)
