"""Donors and a joiner with real bytes, and a wire between them that a test can look into and cut.

Each message takes TRIP_S, each file effect none; the clock is the test's. What is on the wire when
a peer dies is lost.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef, JobResult
from swarmd.protocols.messages.state import Chunk
from swarmd.protocols.state_donor import StateDonor
from swarmd.protocols.state_fetch import StateFetch

STAGE = 1
PIECE = 1 << 20
TRIP_S = 0.01
JOINER = PeerId("joiner")


@cache
def made_up(pieces: int, seed: str = "state") -> bytes:
    """So many pieces, the last one shorter; the same bytes for the same seed."""
    parts = [
        hashlib.blake2b(f"{seed}/{n}".encode()).digest() * (PIECE // 64) for n in range(pieces)
    ]
    return b"".join(parts)[: pieces * PIECE - 100]


@dataclass
class Donating:
    """A peer that holds the stage."""

    machine: StateDonor
    body: bytes
    sketch: tuple[float, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    is_silent: bool = False
    spoils: set[int] = field(default_factory=set)
    """Pieces that it sends with a byte flipped."""


class StateWorld:
    """`add` donors, then `join`; `run` until `is_fetched`."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.donors: dict[PeerId, Donating] = {}
        self.fetch: StateFetch | None = None
        self.disk: dict[str, bytearray] = {}
        """The joiner's."""
        self.is_full = False
        self.told: list[fx.Emit] = []
        self.received: Counter[tuple[PeerId, int]] = Counter()
        """How often a piece came, by donor and number."""
        self.slots: dict[int, bytes] = {}
        """Taken and not released yet, by generation."""
        self.before_chunk: Callable[[], None] = lambda: None
        self._numbers = count(1)
        self._wire: deque[tuple[float, PeerId, fx.Event]] = deque()
        self._timers: dict[str, float] = {}

    def number(self) -> int:
        return next(self._numbers)

    # -------------------------------------------------------------------------------------- peers

    def add(
        self,
        name: str,
        body: bytes,
        *,
        round_number: int = 3,
        sketch: tuple[float, ...] = (1.0, -2.0),
        **settings: Any,
    ) -> Donating:
        machine = StateDonor(self.number, **settings)
        machine.stage, machine.round = STAGE, round_number
        donor = self.donors[PeerId(name)] = Donating(machine, body, sketch)
        return donor

    def remove(self, name: str) -> None:
        """SIGKILL: what it was sending is lost, and its end is seen."""
        peer = PeerId(name)
        del self.donors[peer]
        self._wire = deque(item for item in self._wire if getattr(item[2], "peer", "") != peer)
        self.know()

    def join(self, partial_round: int | None = None) -> StateFetch:
        self.fetch = StateFetch(STAGE, JOINER, self.number, partial_round=partial_round)
        self.know()
        self._do(JOINER, self.fetch.start(self.now_s))
        return self.fetch

    def kill_joiner(self) -> None:
        self.fetch = None
        self._wire.clear()
        self._timers.clear()
        self.slots.clear()

    def know(self) -> None:
        if self.fetch is not None:
            self._do(JOINER, self.fetch.set_donors(self.donors, self.now_s))

    # --------------------------------------------------------------------------------------- time

    def run(self, seconds: float = 60.0) -> None:
        """Until nothing is on the wire and it is fetched, or the time is over."""
        until_s = self.now_s + seconds
        while self.fetch is not None and not self.fetch.is_done:
            due = [self._wire[0][0]] if self._wire else []
            next_s = min([*due, *self._timers.values()], default=until_s)
            if next_s >= until_s:
                break
            self.now_s = max(self.now_s, next_s)
            self._step()
        if self.fetch is None or not self.fetch.is_done:
            self.now_s = until_s

    def _step(self) -> None:
        for name, due_s in list(self._timers.items()):
            if due_s <= self.now_s:
                del self._timers[name]
                self._tell(JOINER, fx.TimerFired(name))
        if self._wire and self._wire[0][0] <= self.now_s:
            _, target, event = self._wire.popleft()
            self._tell(target, event)

    def _tell(self, target: PeerId, event: fx.Event) -> None:
        if target != JOINER:
            donor = self.donors.get(target)
            if donor is not None and not donor.is_silent:
                self._do(target, donor.machine.handle(event, self.now_s))
            return
        if isinstance(event, fx.Arrived) and isinstance(event.message, Chunk):
            self.before_chunk()
        if self.fetch is None:
            return
        if isinstance(event, fx.Arrived):
            if not self.fetch.expects(event.peer, event.message):
                if event.payload is not None:
                    del self.slots[event.payload.generation]
                return
            if isinstance(event.message, Chunk):
                self.received[event.peer, event.message.index] += 1
        self._do(JOINER, self.fetch.handle(event, self.now_s))

    # ------------------------------------------------------------------------------------ effects

    def _do(self, who: PeerId, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Send(peer, message, payload):
                    ref = None if payload is None else self._sent(who, message, payload)
                    event = fx.Arrived(who, message, ref)
                    self._wire.append((self.now_s + TRIP_S, peer, event))
                case fx.SetTimer(name, delay_s):
                    self._timers[name] = self.now_s + delay_s
                case fx.ClearTimer(name):
                    self._timers.pop(name, None)
                case fx.Emit():
                    self.told.append(effect)
                case fx.Release(buffer):
                    del self.slots[buffer.generation]
                case fx.RemoveFile(path):
                    files: dict[str, Any] = self.disk if who == JOINER else self._files(who)
                    files.pop(path, None)
                case fx.Compute(job_id, job):
                    self._written(who, job_id, job.args)  # type: ignore[union-attr]
                case fx.HashFile() | fx.ReadFile() | fx.WriteFile():
                    self._tell(who, self._file(who, effect))

    def _files(self, who: PeerId) -> dict[str, bytes]:
        return self.donors[who].files

    def _sent(self, who: PeerId, message: object, payload: BufferRef) -> BufferRef:
        body = self.slots[payload.generation]
        assert isinstance(message, Chunk)
        if message.index in self.donors[who].spoils:
            body = bytes([body[0] ^ 1]) + body[1:]
        return self._slot(body)

    def _slot(self, body: bytes) -> BufferRef:
        ref = BufferRef(0, self.number(), len(body))
        self.slots[ref.generation] = body
        return ref

    def _written(self, who: PeerId, job_id: int, args: dict[str, Any]) -> None:
        donor = self.donors[who]
        donor.files[args["path"]] = donor.body
        data = {"round": args["round"], "next_step": 7, "sketch": list(donor.sketch)}
        self._tell(who, fx.ComputeDone(job_id, JobResult(data=data)))

    def _file(self, who: PeerId, effect: fx.HashFile | fx.ReadFile | fx.WriteFile) -> fx.Event:
        files: dict[str, Any] = self.disk if who == JOINER else self._files(who)
        match effect:
            case fx.HashFile(token, path, size):
                if path not in files:
                    return fx.FileFailed(token, "missing", path)
                body = bytes(files[path])
                pieces = [body[at : at + size] for at in range(0, len(body), size)]
                return fx.FileHashed(token, len(body), tuple(map(hash_of, pieces)))
            case fx.ReadFile(token, path, offset, size):
                return fx.FileRead(token, self._slot(bytes(files[path][offset : offset + size])))
            case fx.WriteFile(token, path, offset, buffer, wanted):
                body = self.slots[buffer.generation]
                if self.is_full:
                    return fx.FileFailed(token, "disk_full", path)
                if hash_of(body) != wanted:
                    return fx.FileFailed(token, "hash_mismatch", path)
                file = files.setdefault(path, bytearray())
                file.extend(bytes(max(0, offset + len(body) - len(file))))
                file[offset : offset + len(body)] = body
                return fx.FileWritten(token)

    # ------------------------------------------------------------------------------------- looking

    @property
    def fetched(self) -> bytes | None:
        """The whole state, once it is there."""
        paths = [emit.fields["path"] for emit in self.told if emit.name == "state/fetched"]
        return bytes(self.disk[paths[-1]]) if paths else None

    @property
    def pieces_done(self) -> int:
        assert self.fetch is not None
        assert self.fetch.pieces is not None
        return self.fetch.pieces.bytes_done // PIECE

    def codes(self, name: str) -> list[tuple[str, str]]:
        """(peer, code) of what was told under that name."""
        return [(e.fields["peer"], e.fields["code"]) for e in self.told if e.name == name]

    def gave(self) -> dict[str, int]:
        """Pieces that came, by donor."""
        found: Counter[str] = Counter()
        for (peer, _), times in self.received.items():
            found[peer] += times
        return dict(found)


def hash_of(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
