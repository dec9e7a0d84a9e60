"""Runs one machine for real: the only interpreter of effects on trio.

One task takes events in the order in which they came and carries their effects out before the next
event is looked at, so that a machine never sees the world half changed. What can wait (sockets,
the worker) waits elsewhere and comes back as an event; only the wait for the next event blocks.

The same machine runs under swarmd/sim with virtual time; nothing here decides anything.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import trio

from swarmd.errors import TransportError
from swarmd.net.transport import (
    DialEnded,
    FrameArrived,
    LinkEnded,
    LinkOpened,
    PayloadStore,
    Transport,
    TransportEvent,
)
from swarmd.node.files import FileLane
from swarmd.protocols import effects as fx
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import Job, StageCall
from swarmd.protocols.messages import Message
from swarmd.protocols.wire import decode, encode

log = logging.getLogger("swarmd.node")

EVENTS_AT_ONCE_MAX = 256
"""Then other tasks get their turn, whatever is still in the inbox."""
LAG_S_MIN = 0.05
"""A timer later than this is told to the machine: local health, not the others' fault."""


class Compute(Protocol):
    """What the driver needs of the lane (swarmd/node/lane.py)."""

    def submit_nowait(self, job_id: int, job: Any) -> None: ...

    def unload_nowait(self) -> None: ...


class Driver:
    """Feeds `machine` and carries out what it asks.

    on_emit: told of every Emit, in order, synchronously.
    on_load: told of every LoadStage; answers later through `put`.
    """

    def __init__(
        self,
        machine: fx.Machine,
        transport: Transport,
        slots: PayloadStore,
        *,
        on_emit: Callable[[fx.Emit], None],
        on_load: Callable[[fx.LoadStage], None],
    ) -> None:
        self._machine = machine
        self._transport = transport
        self._slots = slots
        self._on_emit = on_emit
        self._on_load = on_load
        self.lane: Compute | None = None
        self.files: FileLane | None = None
        self._inbox: deque[fx.Event] = deque()
        self._linked: set[PeerId] = set()
        self._wake = trio.Event()
        self._timers: dict[str, tuple[float, int]] = {}
        self._timer_heap: list[tuple[float, int, str]] = []
        self._sequence = itertools.count()
        self.events_handled = 0
        self.lag_s_max = 0.0
        self.malformed: Counter[str] = Counter()
        self.cut: set[str] = set()
        """Peers to and from whom everything is silently lost (docs/cli.md section 16)."""
        self.told: Callable[[Message], Message] | None = None
        """What is sent in place of a message, where a fault on purpose says so."""

    # ------------------------------------------------------------------------------ the outside

    def put(self, event: fx.Event) -> None:
        """Hand the machine an event. From the trio thread only."""
        self._inbox.append(event)
        self._wake.set()

    def replace_machine(self, machine: fx.Machine) -> None:
        """From now on `machine` runs here: Started, then LinkUp for each link there is. Old timers
        are gone."""
        self._machine = machine
        self._timers.clear()
        self._timer_heap.clear()
        self.put(fx.Started())
        for peer in sorted(self._linked):
            self.put(fx.LinkUp(peer))

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. An exception out of the machine is our bug and ends the daemon."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump_transport)
            self.put(fx.Started())
            task_status.started()
            while True:
                await self._wait_for_work()
                self._work()
                await trio.lowlevel.checkpoint()

    # ------------------------------------------------------------------------------------ loop

    async def _wait_for_work(self) -> None:
        if self._inbox:
            return
        self._wake = trio.Event()
        with trio.move_on_at(self._timer_heap[0][0] if self._timer_heap else float("inf")):
            await self._wake.wait()

    def _work(self) -> None:
        for _ in range(EVENTS_AT_ONCE_MAX):
            event = self._next_event()
            if event is None:
                return
            self._step(event)

    def _next_event(self) -> fx.Event | None:
        due = self._pop_due_timer()
        if due is not None:
            return due
        return self._inbox.popleft() if self._inbox else None

    def _pop_due_timer(self) -> fx.Event | None:
        now_s = trio.current_time()
        while self._timer_heap and self._timer_heap[0][0] <= now_s:
            due_s, sequence, name = heapq.heappop(self._timer_heap)
            if self._timers.get(name) != (due_s, sequence):
                continue  # set again or cleared since
            del self._timers[name]
            lag_s = now_s - due_s
            self.lag_s_max = max(self.lag_s_max, lag_s)
            if lag_s >= LAG_S_MIN:
                self._step(fx.LoopLag(lag_s))
            return fx.TimerFired(name)
        return None

    def _step(self, event: fx.Event) -> None:
        self.events_handled += 1
        for effect in self._machine.handle(event, trio.current_time()):
            self._carry_out(effect)

    # --------------------------------------------------------------------------------- effects

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send():
                self._send(effect)
            case fx.SetTimer(name, delay_s):
                entry = (trio.current_time() + delay_s, next(self._sequence))
                self._timers[name] = entry
                heapq.heappush(self._timer_heap, (*entry, name))
            case fx.ClearTimer(name):
                self._timers.pop(name, None)
            case fx.Compute(job_id, job):
                assert self.lane is not None, "a job before a stage was loaded"
                self.lane.submit_nowait(job_id, self._located(job))
            case fx.ReadFile() | fx.WriteFile() | fx.HashFile() | fx.KeepCheckpoint():
                assert self.files is not None, "a file effect without files"
                self.files.run_nowait(effect)
            case fx.RemoveFile():
                assert self.files is not None, "a file effect without files"
                self.files.remove_nowait(effect)
            case fx.Release(buffer):
                self._slots.release(buffer)
            case fx.Emit():
                self._on_emit(effect)
            case fx.Dial(peer, addresses):
                self._transport.dial(peer, addresses)
            case fx.Locate(peer, bulk_addresses):
                self._transport.tell_bulk_addresses(peer, bulk_addresses)
            case fx.Drop(peer, reason):
                self._transport.drop(peer, reason)
            case fx.LoadStage():
                self._on_load(effect)
            case fx.UnloadStage():
                assert self.lane is not None, "nothing was loaded"
                self.lane.unload_nowait()

    def _located(self, job: Job) -> Job:
        """Machines name files; the worker needs to know where they lie."""
        if isinstance(job, StageCall) and "path" in job.args:
            assert self.files is not None, "a file without a place"
            path = str(self.files.path_of(job.args["path"]))
            return replace(job, args={**job.args, "path": path})
        return job

    def _send(self, effect: fx.Send) -> None:
        if effect.peer in self.cut:
            return
        payload = effect.payload
        message = effect.message if self.told is None else self.told(effect.message)
        if payload is not None:
            self._slots.retain(payload)

        def on_sent(_sent: bool) -> None:
            if payload is not None:
                self._slots.release(payload)

        try:
            self._transport.send(
                effect.peer,
                encode(message),
                priority=effect.priority,
                payload=payload,
                on_sent=on_sent,
            )
        except TransportError as error:
            on_sent(False)
            cause = "full" if error.cause == "full" else "no_link"
            self.put(fx.SendFailed(effect.peer, effect.message, cause))

    # ------------------------------------------------------------------------------- transport

    async def _pump_transport(self) -> None:
        while True:
            happened = await self._transport.next_event()
            if isinstance(happened, FrameArrived) and happened.peer in self.cut:
                if happened.payload is not None:
                    self._slots.release(happened.payload)
                continue
            self.put(self._translate(happened))

    def _translate(self, happened: TransportEvent) -> fx.Event:
        match happened:
            case FrameArrived():
                return self._arrived(happened)
            case LinkOpened(peer):
                self._linked.add(peer)
                return fx.LinkUp(peer)
            case LinkEnded(peer, cause):
                self._linked.discard(peer)
                return fx.LinkDown(peer, cause)
            case DialEnded(peer, causes):
                return fx.DialFailed(peer, causes)

    def _arrived(self, frame: FrameArrived) -> fx.Event:
        try:
            message: Message = decode(frame.body)
        except RemoteProtocolError as error:
            if frame.payload is not None:
                self._slots.release(frame.payload)
            self.malformed[frame.peer] += 1
            return fx.Malformed(frame.peer, error.code, error.text)
        return fx.Arrived(frame.peer, message, frame.payload, frame.refused)
