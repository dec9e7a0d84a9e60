"""Inner steps that a stage has taken and that no state has any more."""

from __future__ import annotations


class LostSteps:
    """Of the stage that this peer holds. They are lost when a worker dies, or a peer comes back,
    and nobody else has the stage: it goes on from a state on disk."""

    def __init__(self) -> None:
        self.count = 0
        self._reached = 0
        """Where a worker that died was."""

    def worker_died(self, step: int) -> None:
        self._reached = step

    def stage_changed(self) -> None:
        self._reached = 0

    def went_on(self, begun: int, saved: int) -> None:
        """From a state of `saved` steps, into a round that begins after `begun`."""
        self.count += max(self._reached, begun) - saved
        self._reached = 0
