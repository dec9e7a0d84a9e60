"""One worker process, from its start until it is reaped, on trio.

Knows nothing of jobs: it carries messages, forwards what the process prints, watches that it is
awake, and ends it. Whatever the cause (exit, kill, silence, a job over its deadline, a device that
is lost), the end goes one way: kill, reap, say why. A life is lived once; a restart is a new one.

A worker is judged by time in which the daemon itself was awake: a laptop that slept, or a process
group that was stopped, must not cost the stage.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from swarmd.errors import ComputeLost
from swarmd.job_wire import FrameReader, pack_frame
from swarmd.protocols.load_pace import LOADED_WITHIN_S
from swarmd.worker_spawn import SpawnedWorker, describe_exit

output_log = logging.getLogger("swarmd.worker.output")
"""What the worker prints, tracebacks included: a name of its own, for who wants it elsewhere."""

READ_BYTES = 1 << 16
LOG_LINE_BYTES_MAX = 2_000
EXIT_S = 0.5
"""A process that closed its channel gets so long to end by itself, so that its status is told."""
REAP_S = 5.0
"""So long may the system take to end a killed process before we go on without it."""
LOG_DRAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Every wait on a worker, in seconds during which the daemon was awake."""

    start_timeout_s: float = LOADED_WITHIN_S
    """Counted anew whenever the worker tells of progress."""
    job_timeout_s: float = 300.0
    """Until a job of its kind has been seen; afterwards `job_timeout_ratio` times the slowest, but
    at least `job_timeout_s_min` and at most this."""
    job_timeout_s_min: float = 60.0
    job_timeout_ratio: float = 20.0
    silence_s: float = 25.0
    """Without a beat; below `stall_after_s`. Guess: copying gigabytes of state, or a starved
    machine, can hold the interpreter for seconds."""
    loading_silence_s: float = 60.0
    stop_s: float = 3.0
    """Between asking a worker to end and killing it."""
    tick_s: float = 1.0


class WorkerLife:
    """`loss` says why it ends, once that is known."""

    def __init__(self, spawned: SpawnedWorker, limits: WorkerLimits) -> None:
        self._spawned = spawned
        self._limits = limits
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(spawned.control))
        self._log = trio.lowlevel.FdStream(spawned.log_fd)
        self._log_ended = trio.Event()
        self._last_line = ""
        self.started_s = trio.current_time()
        self.is_loaded = False
        self._loading_s = 0.0
        """Since it was started, or last told of progress."""
        self.is_reaped = False
        """False after the end: the system cannot end it, and it may still write to its slots."""
        self.loss: ComputeLost | None = None

    @property
    def pid(self) -> int:
        return self._spawned.process.pid

    async def run(
        self,
        *,
        speak: Callable[[], Awaitable[None]],
        take: Callable[[list[Any]], None],
        overdue: Callable[[float], str | None],
    ) -> None:
        """Until the process is reaped. Cancelling kills it.

        speak: a task that sends for as long as it likes.
        take: told of every message.
        overdue: told how many seconds have passed; says what has taken too long, if anything has.
        """
        has_hung_up = False
        try:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._speak, speak)
                tasks.start_soon(self._watch, overdue)
                tasks.start_soon(self._forward_log)
                await self._listen(take)
                has_hung_up = True
                with trio.move_on_after(LOG_DRAIN_S):
                    await self._log_ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            if not has_hung_up:
                self.kill("cancelled", "the worker was stopped")
            with trio.CancelScope(shield=True):
                await self._reap()

    async def send(self, message: list[Any]) -> None:
        await self._stream.send_all(pack_frame(message))

    def kill(self, code: str, text: str) -> None:
        """The end begins; the first cause given is the one that is told."""
        self.loss = self.loss or ComputeLost(code, text)
        self._spawned.process.kill()

    # ---------------------------------------------------------------------------------------- tasks

    async def _speak(self, speak: Callable[[], Awaitable[None]]) -> None:
        try:
            await speak()
        except trio.BrokenResourceError:
            pass  # it is gone; the listener sees that too, and tells

    async def _listen(self, take: Callable[[list[Any]], None]) -> None:
        reader = FrameReader()
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                return
            if not data:
                return
            for message in reader.feed(bytes(data)):
                if message[0] == "lost":
                    self.loss = self.loss or ComputeLost(message[1], message[2])
                elif message[0] == "loading":
                    self._loading_s = 0.0
                    output_log.info("worker_loading pid=%d %s", self.pid, message[1])
                else:
                    take(message)

    async def _watch(self, overdue: Callable[[float], str | None]) -> None:
        limits = self._limits
        beats = self._spawned.pulse.count
        silent_s = 0.0
        looked_s = trio.current_time()
        while True:
            await trio.sleep(limits.tick_s)
            now_s = trio.current_time()
            awake_s = min(now_s - looked_s, 2 * limits.tick_s)
            looked_s = now_s
            silent_s = silent_s + awake_s if self._spawned.pulse.count == beats else 0.0
            beats = self._spawned.pulse.count
            if not self.is_loaded:
                self._loading_s += awake_s
            silence_s = limits.silence_s if self.is_loaded else limits.loading_silence_s
            if silent_s > silence_s:
                self.kill("worker_died", f"silent for {silent_s:.1f} s")
            elif not self.is_loaded and self._loading_s > limits.start_timeout_s:
                self.kill("worker_died", f"not loaded after {self._loading_s:.1f} s")
            elif (late := overdue(awake_s)) is not None:
                self.kill("worker_died", late)

    async def _forward_log(self) -> None:
        """What the worker prints, line by line, into our log."""
        rest = b""
        async for data in self._log:
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LOG_LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._log_line(line)
        self._log_line(rest)
        self._log_ended.set()

    def _log_line(self, line: bytes) -> None:
        text = line[:LOG_LINE_BYTES_MAX].decode(errors="replace").rstrip()
        if text:
            self._last_line = text
            output_log.info("worker_output pid=%d %s", self.pid, text)

    async def _reap(self) -> None:
        """Bounded by EXIT_S + REAP_S."""
        process = self._spawned.process
        status = None
        if self.loss is None:
            status = await self._exit_status(EXIT_S)
        if status is None:
            process.kill()
            status = await self._exit_status(REAP_S)
        self.is_reaped = status is not None
        text = describe_exit(status, self._last_line)
        self.loss = self.loss or ComputeLost("worker_died", text)
        await self._stream.aclose()
        await self._log.aclose()
        self._spawned.close_lifeline()

    async def _exit_status(self, timeout_s: float) -> int | None:
        """None after `timeout_s`. Looked for ever less often: this happens once a life."""
        pause_s = 0.001
        deadline_s = trio.current_time() + timeout_s
        while (status := self._spawned.process.poll()) is None:
            if trio.current_time() >= deadline_s:
                break
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return status
