"""What became of a stage's former pipelines at this peer: each new one counts from nothing.

A pipeline ends with its worker, with a pause, and when the peer changes its stage. Faults and what
they cost are the peer's, so they are kept here.
"""

from __future__ import annotations

from swarmd.protocols.pipeline_statistics import FaultLog, PipelineStatistics


class StagePast:
    def __init__(self) -> None:
        self.faults = FaultLog()
        """Of all pipelines; the present one writes into it."""
        self.redone = 0
        """Micro-batches that former pipelines sent again."""
        self.lost_steps = 0
        """Inner steps of the stage held that no state has any more: the worker died, or the peer
        came back, and nobody else had the stage, so it went on from a state on disk."""
        self._reached = 0
        """The step at which a worker died."""

    def ended(self, told: PipelineStatistics) -> None:
        """A pipeline, for whatever reason."""
        self.redone += told.counters.redone

    def worker_died(self, step: int) -> None:
        self._reached = step

    def stage_changed(self) -> None:
        self._reached = 0

    def went_on(self, begun: int, saved: int) -> None:
        """From a state of `saved` steps, into a round that begins after `begun`."""
        self.lost_steps += max(self._reached, begun) - saved
        self._reached = 0
