"""Ties a process to the one that started it: it cannot outlive it, and may show that it is awake.

So are a daemon's workers, and the process in which a command has done what needs torch. Three ties,
because each has a hole. A thread waits on a pipe whose other end only the parent has: at its end of
file the process ends, even in the middle of a job (but not while C code holds the interpreter). On
Linux the kernel also kills us when the parent dies (but only from the moment we ask for it). And if
the parent was gone before that, we see it by its pid.

A worker's thread also beats the pulse (swarmd/pulse.py).

Stopping is the parent's decision: a terminal's Ctrl-C and a service manager's SIGTERM reach the
whole group, and a drain still needs the worker. So SIGINT, SIGTERM and SIGHUP are ignored here.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

from swarmd.pulse import BEAT_INTERVAL_S, Pulse

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
OOM_SCORE_RAISE = 300
"""When the host runs out of memory the kernel should take us, not the parent, which can say why."""


def tie_to_parent(lifeline_fd: int, pulse: Pulse | None, parent_pid: int) -> None:
    """Called first thing, before anything slow is imported."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # blocked by the parent until we are here
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _offer_to_be_killed_first()
    if os.getppid() != parent_pid:
        os._exit(0)
    threading.Thread(target=_watch, args=(lifeline_fd, pulse), name="lifeline", daemon=True).start()


def _watch(lifeline_fd: int, pulse: Pulse | None) -> None:
    poll = select.poll()
    poll.register(lifeline_fd, select.POLLIN | select.POLLHUP)
    while not poll.poll(BEAT_INTERVAL_S * 1000):
        if pulse is not None:
            pulse.beat()
    os._exit(0)


def _offer_to_be_killed_first() -> None:
    path = "/proc/self/oom_score_adj"
    try:
        with open(path, encoding="ascii") as file:
            score = int(file.read())
        with open(path, "w", encoding="ascii") as file:
            file.write(str(min(1000, score + OOM_SCORE_RAISE)))
    except OSError:
        pass  # a locked-down container: a nicety less
