"""A simulated peer's state files: names with made-up content, whole in three pieces.

Enough to carry a stage from one peer to another: equal pieces have equal hashes, whatever their
file, and pieces of several files make a whole.
Files live on the peer's simulated disk, so they survive a crash unless the disk does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.saved_states import SavedState, name_of_guarded, name_of_saved
from swarmd.protocols.state_donor import Guarded
from swarmd.protocols.wire import decode
from swarmd.sim.slots import SimSlots

PIECES = 3
KEPT = 3
"""Checkpoints, as on a real disk."""
FileEffect = fx.ReadFile | fx.WriteFile | fx.HashFile | fx.KeepCheckpoint
FILE_EFFECTS = (fx.ReadFile, fx.WriteFile, fx.HashFile, fx.KeepCheckpoint)
READ_S = 0.01
"""What any file effect takes."""


class SimFiles:
    """Answers file effects at once; whoever asks delays the answer by READ_S."""

    def __init__(self, disk: dict[str, Any], slots: SimSlots) -> None:
        self._disk = disk
        self._files: dict[str, dict[int, str]] = disk.setdefault("files", {})
        self._slots = slots

    def create(self, name: str, pieces: Sequence[str]) -> None:
        """What the compute worker wrote down."""
        assert len(pieces) == PIECES, "every file has as many"
        self._files[name] = dict(enumerate(pieces))

    def content_of(self, name: str) -> list[str] | None:
        """The pieces; None if one is missing."""
        pieces = self._files.get(name, {})
        return [pieces[n] for n in range(PIECES)] if len(pieces) == PIECES else None

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def answer(self, effect: FileEffect, piece: int) -> fx.Event:
        """`piece`: the size of a piece in bytes, to tell offsets apart."""
        match effect:
            case fx.HashFile(token, path):
                found = self._files.get(path)
                if found is None:
                    return fx.FileFailed(token, "missing", path)
                hashes = tuple(hash_of(found[index]) for index in sorted(found))
                return fx.FileHashed(token, PIECES * piece, hashes)
            case fx.ReadFile(token, path, offset, size):
                content = self._files.get(path, {}).get(offset // piece)
                if content is None:
                    return fx.FileFailed(token, "missing", path)
                buffer = self._slots.acquire(size, content)
                if buffer is None:
                    return fx.FileFailed(token, "no_slot", path)
                return fx.FileRead(token, buffer)
            case fx.WriteFile(token, path, offset, buffer, wanted):
                content = self._slots.content(buffer)
                if not isinstance(content, str) or hash_of(content) != wanted:
                    return fx.FileFailed(token, "hash_mismatch", path)
                self._files.setdefault(path, {})[offset // piece] = content
                return fx.FileWritten(token)
            case fx.KeepCheckpoint():
                self._keep(effect)
                return fx.FileWritten(effect.token)

    def _keep(self, effect: fx.KeepCheckpoint) -> None:
        name_of = name_of_guarded if effect.guarded else name_of_saved
        name = name_of(effect.stage, effect.round)
        self._files[name] = self._files.pop(effect.path)
        place, kept = ("guarded", 1) if effect.guarded else ("saved", KEPT)
        saved = self._disk.setdefault(place, {})
        saved[name] = (effect.stage, effect.round, effect.step, effect.ledger)
        stage = [other for other in sorted(saved) if saved[other][0] == effect.stage]
        for oldest in stage[:-kept]:
            del saved[oldest], self._files[oldest]


def saved_on(disk: dict[str, Any]) -> tuple[SavedState, ...]:
    """The checkpoints of a peer's disk, newest first."""
    found = [
        SavedState(stage, number, step, tuple(decode(body) for body in ledger))
        for stage, number, step, ledger in disk.get("saved", {}).values()
    ]
    return tuple(sorted(found, key=lambda saved: saved.round, reverse=True))


def guarded_on(disk: dict[str, Any]) -> tuple[Guarded, ...]:
    return tuple(
        Guarded(stage, number, step, name, ledger=tuple(decode(body) for body in ledger[1:]))
        for name, (stage, number, step, ledger) in sorted(disk.get("guarded", {}).items())
    )


def hash_of(content: str) -> bytes:
    return hashlib.blake2b(content.encode(), digest_size=32).digest()
