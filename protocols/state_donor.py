"""Gives the own stage's state to peers that need it, without holding up its training.

A snapshot is made by the compute worker between two micro-batches, into a file; the daemon hashes
it and hands out pieces when asked. One snapshot serves whoever asks while it is fresh, so a storm
of joiners costs one pause of the worker. What is being served stays until nobody has asked for a
piece for a while, also when a newer snapshot has been made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef, StageCall
from swarmd.protocols.limits import CHUNK_BYTES
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.state import (
    Chunk,
    ChunkRequest,
    Manifest,
    StateRefused,
    StateRequest,
)

FRESH_S = 10.0
"""A snapshot this young is given again rather than made anew. A guess: a few rounds of `tiny`."""
IDLE_S = 30.0
"""Served no longer once nobody has asked for so long."""
READS_MAX = 8
"""Pieces on their way from the disk at once, for everybody together."""
WAITING_MAX = 64
RETRY_S = 1.0


@dataclass(slots=True)
class _Snapshot:
    path: str
    manifest: Manifest
    made_s: float
    asked_s: float


@dataclass(slots=True)
class _Making:
    """A snapshot that is not ready yet, and who waits for it."""

    path: str
    round: int
    job_id: int
    token: int | None = None
    step: int = 0
    waiting: list[PeerId] = field(default_factory=list)


class StateDonor:
    """For the composite: `handle` for messages of messages/state.py and for its jobs and files;
    `stage` and `round` are told before. `forget` when the worker was lost."""

    def __init__(self, next_job_id: Callable[[], int], next_token: Callable[[], int]) -> None:
        self._next_job_id = next_job_id
        self._next_token = next_token
        self._making: _Making | None = None
        self._snapshots: dict[bytes, _Snapshot] = {}
        self._reads: dict[int, tuple[PeerId, Chunk]] = {}
        self._count = 0
        self.stage: int | None = None
        """The stage whose worker is ready; None: nothing to give."""
        self.round = 0
        self.bytes_served = 0

    @property
    def serving_now(self) -> int:
        """Peers with a piece on its way."""
        return len({peer for peer, _ in self._reads.values()})

    def forget(self) -> None:
        """The worker is gone: a snapshot that was being made will not come."""
        self._making = None
        self.stage = None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Arrived(peer, StateRequest() as request):
                return self._requested(peer, request, now_s)
            case fx.Arrived(peer, ChunkRequest() as request):
                return self._chunk_requested(peer, request, now_s)
            case fx.ComputeDone(job_id, result) if self._is_making(job_id):
                return self._written(int(result.data.get("next_step", 0)))
            case fx.ComputeFailed(job_id, failure) if self._is_making(job_id):
                return self._failed(failure.code)
            case fx.FileHashed(token, size_bytes, hashes):
                return self._hashed(token, size_bytes, hashes, now_s)
            case fx.FileRead(token, buffer):
                return self._read(token, buffer)
            case fx.FileFailed(token, code, _):
                return self._file_failed(token, code)
        return []

    # ---------------------------------------------------------------------------------- snapshots

    def _requested(self, peer: PeerId, request: StateRequest, now_s: float) -> list[fx.Effect]:
        if self.stage is None or request.stage != self.stage:
            return [_refuse(peer, "wrong_stage" if self.stage is not None else "no_state")]
        fresh = [s for s in self._snapshots.values() if now_s - s.made_s < FRESH_S]
        if fresh:
            newest = max(fresh, key=lambda snapshot: snapshot.made_s)
            newest.asked_s = now_s
            return [fx.Send(peer, newest.manifest, priority=fx.Priority.STATE)]
        if self._making is None:
            self._count += 1
            path = f"snapshot-{self._count}.safetensors"
            self._making = _Making(path, self.round, self._next_job_id(), waiting=[peer])
            call = StageCall("state", {"path": path, "moments": True})
            return [fx.Compute(self._making.job_id, call)]
        if len(self._making.waiting) >= WAITING_MAX:
            return [_refuse(peer, "rate_exceeded", retry_in_s=RETRY_S)]
        if peer not in self._making.waiting:
            self._making.waiting.append(peer)
        return []

    def _is_making(self, job_id: int) -> bool:
        return self._making is not None and self._making.job_id == job_id

    def _written(self, step: int) -> list[fx.Effect]:
        assert self._making is not None
        self._making.step = step
        self._making.token = self._next_token()
        return [fx.HashFile(self._making.token, self._making.path, CHUNK_BYTES)]

    def _failed(self, code: str) -> list[fx.Effect]:
        assert self._making is not None
        waiting, self._making = self._making.waiting, None
        return [_refuse(peer, "no_state", retry_in_s=RETRY_S) for peer in waiting]

    def _hashed(
        self, token: int, size_bytes: int, hashes: tuple[bytes, ...], now_s: float
    ) -> list[fx.Effect]:
        making = self._making
        if making is None or making.token != token or self.stage is None:
            return []
        self._making = None
        digest = hashlib.blake2b(b"".join(hashes), digest_size=32).digest()
        manifest = Manifest(
            stage=self.stage,
            round=making.round,
            step=making.step,
            size_bytes=size_bytes,
            chunk_bytes=CHUNK_BYTES,
            hashes=hashes,
            digest=digest,
        )
        gone = self._drop_idle(now_s)
        self._snapshots[digest] = _Snapshot(making.path, manifest, now_s, now_s)
        told = [fx.Send(p, manifest, priority=fx.Priority.STATE) for p in making.waiting]
        return [*gone, *told]

    def _drop_idle(self, now_s: float) -> list[fx.Effect]:
        idle = [d for d, s in self._snapshots.items() if now_s - s.asked_s >= IDLE_S]
        return [
            fx.Emit("snapshot_dropped", {"path": self._snapshots.pop(digest).path})
            for digest in idle
        ]

    # ------------------------------------------------------------------------------------- pieces

    def _chunk_requested(
        self, peer: PeerId, request: ChunkRequest, now_s: float
    ) -> list[fx.Effect]:
        snapshot = self._snapshots.get(request.digest)
        if snapshot is None or request.index >= len(snapshot.manifest.hashes):
            return [_refuse(peer, "unknown_manifest", request)]
        if len(self._reads) >= READS_MAX:
            return [_refuse(peer, "rate_exceeded", request, retry_in_s=0.05)]
        snapshot.asked_s = now_s
        token = self._next_token()
        self._reads[token] = (peer, Chunk(digest=request.digest, index=request.index))
        offset = request.index * snapshot.manifest.chunk_bytes
        size = min(snapshot.manifest.chunk_bytes, snapshot.manifest.size_bytes - offset)
        return [fx.ReadFile(token, snapshot.path, offset, size)]

    def _read(self, token: int, buffer: BufferRef) -> list[fx.Effect]:
        found = self._reads.pop(token, None)
        if found is None:
            return []
        peer, chunk = found
        self.bytes_served += buffer.size_bytes
        return [fx.Send(peer, chunk, buffer, fx.Priority.STATE), fx.Release(buffer)]

    def _file_failed(self, token: int, code: str) -> list[fx.Effect]:
        if self._making is not None and self._making.token == token:
            return self._failed(code)
        found = self._reads.pop(token, None)
        if found is None:
            return []
        peer, chunk = found
        retry_s = 0.05 if code == "no_slot" else 0.0
        known = "rate_exceeded" if code == "no_slot" else "disk_error"
        return [_refuse(peer, known, chunk, retry_in_s=retry_s)]


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
