"""SIGTERM and SIGINT that come before the daemon's loop can take them.

A daemon needs a second or two until its loop runs. A signal that raised an exception meanwhile
would hit whatever is being imported. Here it is only noted; the loop finds it as its first event.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)
_seen: list[int] = []


@contextmanager
def noted(*, until_exit: bool = False) -> Iterator[None]:
    """Inside the block signals are noted, wherever nobody else (trio) has taken them over.

    until_exit: afterwards too, since only the process's end follows.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread, and only it may say what becomes of them
        return
    before = {number: signal.signal(number, _note) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in {} if until_exit else before.items():
            signal.signal(number, handler)
        _seen.clear()


def were_seen() -> bool:
    return bool(_seen)


def take() -> list[int]:
    """Those that came, in order; once."""
    found, _seen[:] = _seen[:], []
    return found


def _note(number: int, frame: FrameType | None) -> None:
    _seen.append(number)
