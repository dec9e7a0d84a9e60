"""A paused peer gives its device back: the stage goes into a file, then its worker ends.

    held and nothing under way -> StageCall("state") to a file aside -> UnloadStage
    resumed -> the seat is taken again: from a replica, or from the file where there is none

The file is written in the middle of a round, so it is no checkpoint: it serves this life of this
peer alone. Without it the only holder of a stage would lose what the round had learned so far. If
it cannot be written (a full disk), the worker stays, and so does the memory it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import StageCall

PAUSED_STATE = "paused.safetensors"


@dataclass(frozen=True, slots=True)
class Aside:
    """A stage as it was when its peer was paused."""

    stage: int
    round: int
    name: str = PAUSED_STATE


class SetAside:
    """For the composite: `begin` when nothing is under way; `owns` an event, then `handle`."""

    def __init__(self, next_number: Callable[[], int]) -> None:
        self._next_number = next_number
        self._job_id: int | None = None
        self._was_tried = False

    def begin(self) -> list[fx.Effect]:
        """Once a pause."""
        if self._was_tried:
            return []
        self._was_tried, self._job_id = True, self._next_number()
        args = {"path": PAUSED_STATE, "moments": True, "outer": True}
        return [fx.Compute(self._job_id, StageCall("state", args))]

    def cancel(self) -> None:
        """The peer is resumed, or the worker is gone: what is being written is not wanted."""
        self._was_tried, self._job_id = False, None

    def owns(self, event: fx.Event) -> bool:
        return (
            isinstance(event, (fx.ComputeDone, fx.ComputeFailed)) and event.job_id == self._job_id
        )

    def handle(self, event: fx.Event) -> tuple[bool, list[fx.Effect]]:
        """An event that it owns. True: the stage is in the file, the worker may end."""
        self._job_id = None
        if isinstance(event, fx.ComputeFailed):
            return False, [fx.Emit("device_kept", {"code": event.failure.code})]
        return True, [fx.UnloadStage(), fx.Emit("device_freed", {})]
