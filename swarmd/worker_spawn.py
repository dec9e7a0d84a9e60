"""Starts a compute worker's process and holds the daemon's ends of everything between the two.

Spawned, never forked: the daemon has threads, sockets and TLS state, which a fork copies half-way.

Two traps, found the hard way by others and guarded here:
  * The kernel's parent-death signal is tied to the *thread* that started the child. So the child is
    started from the calling thread, which must live as long as the daemon: not from a thread pool,
    whose threads end when idle.
  * A signal that reaches the child before it ignores it would end it. So those it will ignore are
    blocked while it is started; it inherits that, and unblocks them once it ignores them.

The child's environment is ours. Its import path is ours too: it does not look into the current
folder unless we do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from swarmd.pulse import Pulse

HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a worker ignores (compute/lifeline.py)."""
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(256 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""glibc would give what a step has freed back to the system, and the next step would fault it in
again, page by page: half the time of a step on a processor. Other libraries ignore these."""


@contextmanager
def holding_back_signals() -> Iterator[None]:
    """Around the start of a process that will ignore them, and is to inherit that they wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class SpawnedWorker:
    """`control`: jobs and answers. `log_fd`: what it prints. Closing `lifeline_fd` ends it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    log_fd: int
    lifeline_fd: int
    pulse: Pulse

    def close_lifeline(self) -> None:
        """Gives up what keeps the child alive, and the pulse. The rest has owners of its own."""
        os.close(self.lifeline_fd)
        self.pulse.close()


def spawn_worker(
    slots_fd: int, environment: Mapping[str, str] | None = None, *, imports: str = ""
) -> SpawnedWorker:
    """Returns at once; the child is importing. Raises OSError if the system cannot start it.

    environment: added to ours. imports: a module to load before it is told what to do.
    """
    with ExitStack() as undo, ExitStack() as theirs:
        ours_control, their_control = socket.socketpair()
        undo.callback(ours_control.close)
        theirs.callback(their_control.close)
        their_lifeline, lifeline_fd = os.pipe()
        undo.callback(os.close, lifeline_fd)
        theirs.callback(os.close, their_lifeline)
        log_fd, their_log = os.pipe()
        undo.callback(os.close, log_fd)
        theirs.callback(os.close, their_log)
        pulse = Pulse.create()
        undo.callback(pulse.close)
        inherited = (their_control.fileno(), their_lifeline, slots_fd, pulse.fd)
        arguments = map(str, (*inherited, os.getpid()))
        with holding_back_signals():
            process = subprocess.Popen(
                [*python_command(), "-m", "swarmd.compute.child", *arguments, imports],
                stdin=subprocess.DEVNULL,
                stdout=their_log,
                stderr=their_log,
                pass_fds=inherited,
                env={**KEEPS_MEMORY, **os.environ, **(environment or {})},
            )
        undo.pop_all()
    return SpawnedWorker(process, ours_control, log_fd, lifeline_fd, pulse)


def describe_exit(status: int | None, last_line: str) -> str:
    """For people: how a process ended. `status` as in Popen.returncode; None: it has not yet."""
    if status is None:
        return "does not end, not even when killed"
    if status < 0:
        text = f"killed by {signal.Signals(-status).name}"
        return text + (" (out of memory on this machine?)" if status == -signal.SIGKILL else "")
    return f"exited with status {status}" + (f": {last_line}" if status and last_line else "")


def python_command() -> list[str]:
    """This interpreter. -P keeps the current folder off the import path, unless it is on ours: a
    stray numpy.py there must not be what the worker imports."""
    try:
        looks_here = "" in sys.path or os.getcwd() in sys.path
    except FileNotFoundError:  # the folder that we were started in has been removed
        looks_here = False
    return [sys.executable, "-X", "faulthandler", *([] if looks_here else ["-P"])]
