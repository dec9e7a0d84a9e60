"""Gives a stage's state to peers that need it, without holding up the own training.

Of the own stage the worker writes, between two jobs, what the round began with: one file a round,
however many ask, and equal files at all replicas that agree. What is guarded of other stages lies
on the disk already. The daemon hashes a file once and hands out pieces when asked, no faster than
SERVE_BYTES_PER_S. A file stays as long as somebody asks for its pieces, and HOLD_S longer: a joiner
that was killed goes on with it, also when newer rounds have begun.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef, StageCall
from swarmd.protocols.limits import CHUNK_BYTES, MIB
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.state import (
    SKETCH_MAX,
    SKETCH_VALUES_MAX,
    Chunk,
    ChunkRequest,
    Manifest,
    StateRefused,
    StateRequest,
)

SERVE_BYTES_PER_S = 64.0 * MIB
"""For everybody together: at 2 CPU seconds a GB, an eighth of one core. One second may come at
once."""
HOLD_S = 120.0
SNAPSHOTS_MAX = 3
"""Files of own rounds. The one asked for least lately goes."""
READS_MAX = 8
"""Pieces on their way from the disk at once, for everybody together."""
WAITING_MAX = 64
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """A file with the state of a stage that is not ours.

    ledger: what the swarm had done by then; of a former life's snapshots only.
    """

    stage: int
    round: int
    step: int
    path: str
    sketch: tuple[float, ...] = ()
    size_bytes: int = 0
    ledger: tuple[Message, ...] = ()


@dataclass(slots=True)
class _Snapshot:
    path: str
    manifest: Manifest
    asked_s: float
    is_own: bool


@dataclass(slots=True)
class _Making:
    """A manifest that is not ready yet, and who waits for it."""

    stage: int
    path: str
    is_own: bool
    job_id: int | None = None
    token: int | None = None
    round: int = 0
    step: int = 0
    sketch: tuple[float, ...] = ()
    waiting: list[PeerId] = field(default_factory=list)


class StateDonor:
    """For the composite: `handle` for messages of messages/state.py and for its jobs and files;
    `stage` and `round` are told before. `forget` when the worker was lost."""

    def __init__(
        self,
        next_number: Callable[[], int],
        *,
        guarded: Mapping[int, Guarded] | None = None,
        serve_bytes_per_s: float = SERVE_BYTES_PER_S,
    ) -> None:
        self._next_number = next_number
        self._rate = serve_bytes_per_s
        self._allowance = serve_bytes_per_s
        self._allowed_at_s: float | None = None
        self._making: dict[int, _Making] = {}
        """By stage."""
        self._snapshots: dict[bytes, _Snapshot] = {}
        self._reads: dict[int, tuple[PeerId, Chunk]] = {}
        self._count = 0
        self.stage: int | None = None
        """The stage whose worker is ready; None: nothing of our own to give."""
        self.round = 0
        self._guarded = {} if guarded is None else guarded
        self.bytes_served = 0

    @property
    def serving_now(self) -> int:
        """Peers with a piece on its way."""
        return len({peer for peer, _ in self._reads.values()})

    def forget(self) -> None:
        """The worker is gone: a snapshot that it was making will not come."""
        self._making = {s: one for s, one in self._making.items() if one.job_id is None}
        self.stage = None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Arrived(peer, StateRequest() as request):
                return self._requested(peer, request, now_s)
            case fx.Arrived(peer, ChunkRequest() as request):
                return self._chunk_requested(peer, request, now_s)
            case fx.ComputeDone(job_id, result):
                making = self._made_by(job_id)
                return [] if making is None else self._written(making, result.data)
            case fx.ComputeFailed(job_id, _):
                making = self._made_by(job_id)
                return [] if making is None else self._failed(making)
            case fx.FileHashed(token, size_bytes, hashes):
                return self._hashed(token, size_bytes, hashes, now_s)
            case fx.FileRead(token, buffer):
                return self._read(token, buffer)
            case fx.FileFailed(token, code, _):
                return self._file_failed(token, code)
        return []

    # ---------------------------------------------------------------------------------- manifests

    def _requested(self, peer: PeerId, request: StateRequest, now_s: float) -> list[fx.Effect]:
        stage = request.stage
        guarded = None if stage == self.stage else self._guarded.get(stage)
        if stage != self.stage and guarded is None:
            return [_refuse(peer, "wrong_stage" if self.stage is not None else "no_state")]
        ready = self._ready(request, self.round if guarded is None else guarded.round)
        if ready is not None:
            ready.asked_s = now_s
            return [fx.Send(peer, ready.manifest, priority=fx.Priority.STATE)]
        making = self._making.get(stage)
        if making is None:
            return self._make(peer, stage, guarded)
        if len(making.waiting) >= WAITING_MAX:
            return [_refuse(peer, "rate_exceeded", retry_in_s=RETRY_S)]
        if peer not in making.waiting:
            making.waiting.append(peer)
        return []

    def _ready(self, request: StateRequest, newest: int) -> _Snapshot | None:
        """One of the round that is asked for, else of the newest."""
        found = {
            snapshot.manifest.round: snapshot
            for snapshot in self._snapshots.values()
            if snapshot.manifest.stage == request.stage
        }
        wanted = None if request.round is None else found.get(request.round)
        return wanted or found.get(newest)

    def _make(self, peer: PeerId, stage: int, guarded: Guarded | None) -> list[fx.Effect]:
        if guarded is not None:
            making = _Making(stage, guarded.path, is_own=False, waiting=[peer])
            making.round, making.step = guarded.round, guarded.step
            making.sketch = guarded.sketch
            self._making[stage] = making
            return self._hash(making)
        self._count += 1
        path = f"snapshot-{self._count}.safetensors"
        making = _Making(stage, path, is_own=True, job_id=self._next_number(), waiting=[peer])
        self._making[stage] = making
        assert making.job_id is not None
        return [fx.Compute(making.job_id, round_state_call(path, self.round))]

    def _made_by(self, job_id: int) -> _Making | None:
        return next((one for one in self._making.values() if one.job_id == job_id), None)

    def _written(self, making: _Making, data: dict[str, object]) -> list[fx.Effect]:
        making.job_id = None
        making.round, making.step = int(str(data["round"])), int(str(data["next_step"]))
        making.sketch = sketch_in(data)
        return self._hash(making)

    def _hash(self, making: _Making) -> list[fx.Effect]:
        making.token = self._next_number()
        return [fx.HashFile(making.token, making.path, CHUNK_BYTES)]

    def _failed(self, making: _Making) -> list[fx.Effect]:
        del self._making[making.stage]
        return [_refuse(peer, "no_state", retry_in_s=RETRY_S) for peer in making.waiting]

    def _hashed(
        self, token: int, size_bytes: int, hashes: tuple[bytes, ...], now_s: float
    ) -> list[fx.Effect]:
        making = next((one for one in self._making.values() if one.token == token), None)
        if making is None:
            return []
        del self._making[making.stage]
        manifest = Manifest(
            stage=making.stage,
            round=making.round,
            step=making.step,
            size_bytes=size_bytes,
            chunk_bytes=CHUNK_BYTES,
            hashes=hashes,
            digest=digest_of(hashes),
            sketch=making.sketch,
        )
        before = self._snapshots.pop(manifest.digest, None)
        gone = [] if before is None or before.path == making.path else self._gone(before)
        gone += self._drop_idle(now_s)
        self._snapshots[manifest.digest] = _Snapshot(making.path, manifest, now_s, making.is_own)
        told = [fx.Send(p, manifest, priority=fx.Priority.STATE) for p in making.waiting]
        return [*gone, *told]

    def _drop_idle(self, now_s: float) -> list[fx.Effect]:
        """Room for one more."""
        ordered = sorted(self._snapshots.items(), key=lambda item: (-item[1].asked_s, item[0]))
        idle = [
            digest
            for place, (digest, snapshot) in enumerate(ordered)
            if now_s - snapshot.asked_s >= HOLD_S or place >= SNAPSHOTS_MAX - 1
        ]
        return [effect for digest in idle for effect in self._gone(self._snapshots.pop(digest))]

    def _gone(self, snapshot: _Snapshot) -> list[fx.Effect]:
        """Its file too, unless it is guarded."""
        return [fx.RemoveFile(snapshot.path)] if snapshot.is_own else []

    # ------------------------------------------------------------------------------------- pieces

    def _chunk_requested(
        self, peer: PeerId, request: ChunkRequest, now_s: float
    ) -> list[fx.Effect]:
        snapshot = self._snapshots.get(request.digest)
        if snapshot is None or request.index >= len(snapshot.manifest.hashes):
            return [_refuse(peer, "unknown_manifest", request)]
        snapshot.asked_s = now_s
        if len(self._reads) >= READS_MAX:
            return [_refuse(peer, "rate_exceeded", request, retry_in_s=0.05)]
        size = piece_bytes(snapshot.manifest, request.index)
        wait_s = self._wait_s(size, now_s)
        if wait_s > 0.0:
            return [_refuse(peer, "rate_exceeded", request, retry_in_s=wait_s)]
        token = self._next_number()
        self._reads[token] = (peer, Chunk(digest=request.digest, index=request.index))
        offset = request.index * snapshot.manifest.chunk_bytes
        return [fx.ReadFile(token, snapshot.path, offset, size)]

    def _wait_s(self, size_bytes: int, now_s: float) -> float:
        """Take so many bytes from what may be served now; else how long until they may."""
        if self._allowed_at_s is not None:
            self._allowance += (now_s - self._allowed_at_s) * self._rate
        self._allowance = min(self._allowance, max(self._rate, float(size_bytes)))
        self._allowed_at_s = now_s
        if self._allowance < size_bytes:
            return (size_bytes - self._allowance) / self._rate
        self._allowance -= size_bytes
        return 0.0

    def _read(self, token: int, buffer: BufferRef) -> list[fx.Effect]:
        found = self._reads.pop(token, None)
        if found is None:
            return []
        peer, chunk = found
        self.bytes_served += buffer.size_bytes
        return [fx.Send(peer, chunk, buffer, fx.Priority.STATE), fx.Release(buffer)]

    def _file_failed(self, token: int, code: str) -> list[fx.Effect]:
        making = next((one for one in self._making.values() if one.token == token), None)
        if making is not None:
            return self._failed(making)
        found = self._reads.pop(token, None)
        if found is None:
            return []
        peer, chunk = found
        retry_s = 0.05 if code == "no_slot" else 0.0
        known = "rate_exceeded" if code == "no_slot" else "disk_error"
        return [_refuse(peer, known, chunk, retry_in_s=retry_s)]


def round_state_call(path: str, round_number: int) -> StageCall:
    """data: round (not an earlier one), next_step, sketch (swarmd/compute/round_state.py)."""
    return StageCall("round_state", {"path": path, "round": round_number})


def sketch_in(data: dict[str, object]) -> tuple[float, ...]:
    """A worker's, as it may stand in a message."""
    values = data.get("sketch")
    assert isinstance(values, (list, tuple)), "a worker gives a sketch"
    assert len(values) <= SKETCH_VALUES_MAX, "one that fits"
    return tuple(_bounded(float(value)) for value in values)


def _bounded(value: float) -> float:
    return min(max(value, -SKETCH_MAX), SKETCH_MAX) if math.isfinite(value) else SKETCH_MAX


def digest_of(hashes: tuple[bytes, ...]) -> bytes:
    return hashlib.blake2b(b"".join(hashes), digest_size=32).digest()


def piece_bytes(manifest: Manifest, index: int) -> int:
    """How long a piece is; the last may be shorter."""
    return min(manifest.chunk_bytes, manifest.size_bytes - index * manifest.chunk_bytes)


def _refuse(
    peer: PeerId,
    code: str,
    about: ChunkRequest | Chunk | None = None,
    *,
    retry_in_s: float = 0.0,
) -> fx.Effect:
    message: Message = StateRefused(
        code=code,
        digest=None if about is None else about.digest,
        index=None if about is None else about.index,
        retry_in_s=retry_in_s,
    )
    return fx.Send(peer, message, priority=fx.Priority.STATE)
