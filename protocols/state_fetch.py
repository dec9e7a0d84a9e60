"""Fetches a stage's state from peers that hold it: whole, verified, from whoever goes on giving.

One manifest at a time. Its pieces are asked for a few at once; each is checked by its hash as it is
written, and a piece that is there already (from an interrupted try) is not asked for again. A donor
that gives nothing for STALL_S, gives wrong bytes, or refuses, is left for the next one; pieces of
the old manifest that the new one has too (equal hashes) are kept.

Ends with Emit("state/fetched", {path, round, step, donor}), or goes on for ever, saying why.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef
from swarmd.protocols.messages.state import (
    Chunk,
    ChunkRequest,
    Manifest,
    StateRefused,
    StateRequest,
)
from swarmd.protocols.reasons import Reason

STALL_S = 5.0
"""`state_stall_s`: no byte from a donor for so long, and another is asked."""
WINDOW = 4
"""Pieces asked for at once: enough to fill a link, few enough that others are served too."""
TICK = "state/tick"
TICK_S = 0.5
AVOID_S = 30.0
"""A donor that failed is asked again after so long, if there is nobody else."""
RATE_WEIGHT = 0.3


@dataclass(slots=True)
class Donor:
    """What became of a peer that was asked."""

    bytes_received: int = 0
    outcome: str = "asked"
    avoid_until_s: float = 0.0


@dataclass(slots=True)
class _Transfer:
    """One manifest being fetched."""

    donor: PeerId
    manifest: Manifest
    path: str
    missing: deque[int] = field(default_factory=deque)
    asked: dict[int, float] = field(default_factory=dict)
    writing: dict[int, int] = field(default_factory=dict)
    """Token to piece."""
    bytes_done: int = 0


class StateFetch:
    """Of one stage. `start`, then `handle`; `donors` are told by `set_donors`."""

    def __init__(self, stage: int, next_token: Callable[[], int]) -> None:
        self.stage = stage
        self._next_token = next_token
        self._donors: tuple[PeerId, ...] = ()
        self.donors: dict[PeerId, Donor] = {}
        self._asked: PeerId | None = None
        self._heard_s = 0.0
        self._transfer: _Transfer | None = None
        self._rate_bytes_per_s: float | None = None
        self._done = False
        self.bytes_refetched = 0

    # ---------------------------------------------------------------------------- the composite

    def start(self, now_s: float) -> list[fx.Effect]:
        return [fx.SetTimer(TICK, TICK_S), *self._ask_somebody(now_s)]

    def set_donors(self, peers: Iterable[PeerId], now_s: float) -> list[fx.Effect]:
        """Linked peers that hold the stage, best first."""
        self._donors = tuple(peers)
        if self._asked is not None and self._asked not in self._donors:
            return self._leave_donor("gone", now_s)
        return [] if self._asked is not None or self._done else self._ask_somebody(now_s)

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        if self._done:
            return _release_of(event)
        match event:
            case fx.Arrived(peer, Manifest() as manifest):
                return self._manifest_arrived(peer, manifest, now_s)
            case fx.Arrived(peer, Chunk() as chunk, payload):
                return self._chunk_arrived(peer, chunk, payload, now_s)
            case fx.Arrived(peer, StateRefused() as refused):
                return self._refused(peer, refused, now_s)
            case fx.FileWritten(token):
                return self._written(token, now_s)
            case fx.FileFailed(token, code, _):
                return self._not_written(token, code, now_s)
            case fx.TimerFired(name) if name == TICK:
                return [fx.SetTimer(TICK, TICK_S), *self._look(now_s)]
        return []

    def reason(self, now_s: float) -> Reason:
        """What to show meanwhile."""
        transfer = self._transfer
        if transfer is None:
            tried = ", ".join(f"{p[-4:]} {d.outcome}" for p, d in sorted(self.donors.items()))
            if self._asked is None:
                text = f"nobody gives the state of stage {self.stage}: {tried or 'none linked'}"
                return Reason(code="state_no_donor", text=text, stage=self.stage)
            text = f"asked {self._asked[-4:]} for the state of stage {self.stage}"
            return Reason(code="state_downloading", text=text, stage=self.stage)
        total, done = transfer.manifest.size_bytes, transfer.bytes_done
        eta_at_s = None
        if self._rate_bytes_per_s:
            eta_at_s = now_s + (total - done) / self._rate_bytes_per_s
        return Reason(
            code="state_downloading",
            text=f"{done} of {total} bytes from {transfer.donor[-4:]}",
            stage=self.stage,
            peer=transfer.donor,
            eta_at_s=eta_at_s,
            eta_basis="measured" if eta_at_s is not None else "unknown",
        )

    @property
    def manifest(self) -> Manifest | None:
        return None if self._transfer is None else self._transfer.manifest

    @property
    def bytes_done(self) -> int:
        return 0 if self._transfer is None else self._transfer.bytes_done

    # ------------------------------------------------------------------------------------- donors

    def _ask_somebody(self, now_s: float) -> list[fx.Effect]:
        willing = [
            peer for peer in self._donors if self.donors.get(peer, Donor()).avoid_until_s <= now_s
        ]
        if not willing:
            self._asked = None
            return []
        self._asked, self._heard_s = willing[0], now_s
        self.donors.setdefault(willing[0], Donor()).outcome = "asked"
        return [fx.Send(willing[0], StateRequest(stage=self.stage), priority=fx.Priority.STATE)]

    def _leave_donor(self, outcome: str, now_s: float) -> list[fx.Effect]:
        assert self._asked is not None
        donor = self.donors.setdefault(self._asked, Donor())
        donor.outcome, donor.avoid_until_s = outcome, now_s + AVOID_S
        left, self._asked, self._transfer = self._asked, None, None
        return [
            fx.Emit("donor_changed", {"peer": left, "code": outcome}),
            *self._ask_somebody(now_s),
        ]

    def _look(self, now_s: float) -> list[fx.Effect]:
        if self._asked is None:
            return self._ask_somebody(now_s)
        if now_s - self._heard_s >= STALL_S:
            return self._leave_donor("silent", now_s)
        return []

    def _refused(self, peer: PeerId, refused: StateRefused, now_s: float) -> list[fx.Effect]:
        if peer != self._asked:
            return []
        transfer = self._transfer
        if refused.code == "rate_exceeded" and transfer is not None and refused.index is not None:
            if transfer.asked.pop(refused.index, None) is not None:
                transfer.missing.append(refused.index)
            return [] if transfer.asked else self._ask_for_pieces(now_s)
        return self._leave_donor(refused.code, now_s)

    # ------------------------------------------------------------------------------------- pieces

    def _manifest_arrived(self, peer: PeerId, manifest: Manifest, now_s: float) -> list[fx.Effect]:
        if peer != self._asked or self._transfer is not None:
            return []
        self._heard_s = now_s
        why = why_not(manifest, self.stage)
        if why is not None:
            return self._leave_donor(why, now_s)
        path = f"fetch-{self.stage}-{manifest.digest.hex()[:16]}.safetensors"
        transfer = _Transfer(peer, manifest, path, deque(range(len(manifest.hashes))))
        self._transfer = transfer
        started = {"peer": peer, "round": manifest.round, "bytes": manifest.size_bytes}
        return [fx.Emit("transfer_started", started), *self._ask_for_pieces(now_s)]

    def _ask_for_pieces(self, now_s: float) -> list[fx.Effect]:
        transfer = self._transfer
        assert transfer is not None
        effects: list[fx.Effect] = []
        while transfer.missing and len(transfer.asked) < WINDOW:
            index = transfer.missing.popleft()
            transfer.asked[index] = now_s
            request = ChunkRequest(digest=transfer.manifest.digest, index=index)
            effects.append(fx.Send(transfer.donor, request, priority=fx.Priority.STATE))
        return effects

    def _chunk_arrived(
        self, peer: PeerId, chunk: Chunk, payload: BufferRef | None, now_s: float
    ) -> list[fx.Effect]:
        transfer = self._transfer
        is_ours = (
            transfer is not None
            and peer == transfer.donor
            and chunk.digest == transfer.manifest.digest
            and chunk.index in transfer.asked
        )
        if transfer is None or not is_ours:
            return [] if payload is None else [fx.Release(payload)]
        self._note_rate(transfer.manifest.chunk_bytes, now_s - transfer.asked.pop(chunk.index))
        self._heard_s = now_s
        if payload is None:  # no slot was free for it here
            transfer.missing.append(chunk.index)
            return self._ask_for_pieces(now_s)
        self.donors[peer].bytes_received += payload.size_bytes
        if payload.size_bytes != piece_bytes(transfer.manifest, chunk.index):
            return [fx.Release(payload), *self._leave_donor("wrong_shape", now_s)]
        token = self._next_token()
        transfer.writing[token] = chunk.index
        write = fx.WriteFile(
            token,
            transfer.path,
            chunk.index * transfer.manifest.chunk_bytes,
            payload,
            transfer.manifest.hashes[chunk.index],
        )
        return [write, fx.Release(payload), *self._ask_for_pieces(now_s)]

    def _written(self, token: int, now_s: float) -> list[fx.Effect]:
        transfer = self._transfer
        if transfer is None or token not in transfer.writing:
            return []
        index = transfer.writing.pop(token)
        transfer.bytes_done += piece_bytes(transfer.manifest, index)
        if transfer.missing or transfer.asked or transfer.writing:
            return []
        self._done = True
        self.donors[transfer.donor].outcome = "done"
        manifest = transfer.manifest
        fields = {"peer": transfer.donor, "round": manifest.round, "step": manifest.step}
        return [
            fx.ClearTimer(TICK),
            fx.Emit("transfer_verified", fields),
            fx.Emit("state/fetched", {"path": transfer.path, **fields}),
        ]

    def _not_written(self, token: int, code: str, now_s: float) -> list[fx.Effect]:
        transfer = self._transfer
        if transfer is None or token not in transfer.writing:
            return []
        index = transfer.writing.pop(token)
        if code == "hash_mismatch":
            return self._leave_donor(code, now_s)
        transfer.missing.append(index)
        self.bytes_refetched += piece_bytes(transfer.manifest, index)
        return [fx.Emit("state/disk", {"code": code}), *self._ask_for_pieces(now_s)]

    def _note_rate(self, size_bytes: int, took_s: float) -> None:
        rate = WINDOW * size_bytes / max(took_s, 1e-4)
        before = self._rate_bytes_per_s
        self._rate_bytes_per_s = rate if before is None else before + RATE_WEIGHT * (rate - before)


def piece_bytes(manifest: Manifest, index: int) -> int:
    """How long a piece is; the last may be shorter."""
    return min(manifest.chunk_bytes, manifest.size_bytes - index * manifest.chunk_bytes)


def why_not(manifest: Manifest, stage: int) -> str | None:
    """The rejection code of a manifest that cannot be right, or None."""
    if manifest.stage != stage:
        return "wrong_stage"
    if not manifest.hashes or any(len(item) != 32 for item in manifest.hashes):
        return "malformed"
    if len(manifest.hashes) != -(-manifest.size_bytes // manifest.chunk_bytes):
        return "malformed"
    whole = hashlib.blake2b(b"".join(manifest.hashes), digest_size=32).digest()
    return None if whole == manifest.digest else "hash_mismatch"


def _release_of(event: fx.Event) -> list[fx.Effect]:
    if isinstance(event, fx.Arrived) and event.payload is not None:
        return [fx.Release(event.payload)]
    return []
