"""Has the stage's state written down when a round has begun: the worker writes, the daemon keeps.

    round begins -> StageCall("state") to a file aside -> KeepCheckpoint -> FileWritten

One at a time; a round that begins while the one before is still being written is not written. What
fails (a full disk) is told and tried again a round later: what was kept before stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import StageCall
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.saved_states import name_of_saved
from swarmd.protocols.wire import encode

ASIDE = "checkpoint.safetensors"


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that this life has written."""

    stage: int
    round: int

    @property
    def name(self) -> str:
        return name_of_saved(self.stage, self.round)


@dataclass(slots=True)
class _Writing:
    stage: int
    round: int
    job_id: int
    token: int | None = None
    """Once the worker has written its part."""
    step: int = 0


class CheckpointKeeper:
    """For the composite: `begin` when a round begins; `owns` an event, then `handle`; `forget` when
    the worker was lost."""

    def __init__(self, leases: LeaseBook, next_number: Callable[[], int]) -> None:
        self._leases = leases
        self._next_number = next_number
        self._writing: _Writing | None = None
        self.kept: Kept | None = None
        """The newest."""
        self.failed_code = ""
        """Why the last one was not kept; empty if it was."""

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    def forget(self) -> None:
        """What the worker was writing will not come; what it has written is being kept."""
        if self._writing is not None and self._writing.token is None:
            self._writing = None

    def begin(self, stage: int, round_number: int) -> list[fx.Effect]:
        if self._writing is not None:
            return []
        self._writing = _Writing(stage, round_number, self._next_number())
        args = {"path": ASIDE, "moments": True, "outer": True}
        return [fx.Compute(self._writing.job_id, StageCall("state", args))]

    def owns(self, event: fx.Event) -> bool:
        writing = self._writing
        match event:
            case fx.ComputeDone(job_id, _) | fx.ComputeFailed(job_id, _):
                return writing is not None and writing.job_id == job_id
            case fx.FileWritten(token) | fx.FileFailed(token, _, _):
                return writing is not None and writing.token == token
        return False

    def handle(self, event: fx.Event) -> list[fx.Effect]:
        """An event that it owns."""
        assert self._writing is not None
        match event:
            case fx.ComputeDone(_, result):
                return self._written(int(result.data.get("next_step", 0)))
            case fx.ComputeFailed(_, failure):
                return self._failed(failure.code)
            case fx.FileWritten():
                return self._kept()
            case fx.FileFailed(_, code, _):
                return self._failed(code)
        return []

    def _written(self, step: int) -> list[fx.Effect]:
        writing = self._writing
        assert writing is not None
        writing.token, writing.step = self._next_number(), step
        ledger = tuple(encode(message) for message in self._leases.save())
        keep = fx.KeepCheckpoint(
            writing.token, ASIDE, writing.stage, writing.round, writing.step, ledger
        )
        return [keep]

    def _kept(self) -> list[fx.Effect]:
        assert self._writing is not None
        written, self._writing, self.failed_code = self._writing, None, ""
        self.kept = Kept(written.stage, written.round)
        fields = {"stage": written.stage, "round": written.round, "step": written.step}
        return [fx.Emit("checkpoint_written", {**fields, "name": self.kept.name})]

    def _failed(self, code: str) -> list[fx.Effect]:
        assert self._writing is not None
        failed, self._writing, self.failed_code = self._writing, None, code
        fields = {"stage": failed.stage, "round": failed.round, "code": code}
        return [fx.Emit("checkpoint_failed", fields)]
