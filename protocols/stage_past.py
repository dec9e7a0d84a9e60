"""What became of a stage's former pipelines at this peer: each new one counts from nothing.

A pipeline ends with its worker, with a pause, and when the peer changes its stage. Faults and what
they cost are the peer's, so they are kept here.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.pipeline_statistics import FaultLog, PipelineStatistics


@dataclass(frozen=True, slots=True)
class Spent:
    """What a peer did with its time while it held a stage."""

    micro_batches: int = 0
    """That counted."""
    compute_s: float = 0.0
    wait_s: float = 0.0

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        return Spent(
            self.micro_batches + sign * other.micro_batches,
            self.compute_s + sign * other.compute_s,
            self.wait_s + sign * other.wait_s,
        )

    def minus(self, other: Spent) -> Spent:
        return self.plus(other, -1)


def spent_by(told: PipelineStatistics) -> Spent:
    compute_s = told.wait_s.get("computing", 0.0)
    return Spent(told.counters.counted, compute_s, sum(told.wait_s.values()) - compute_s)


class StagePast:
    def __init__(self) -> None:
        self.faults = FaultLog()
        """Of all pipelines; the present one writes into it."""
        self.redone = 0
        """Micro-batches that former pipelines sent again."""
        self._spent = Spent()
        self.lost_steps = 0
        """Inner steps of the stage held that no state has any more: the worker died, or the peer
        came back, and nobody else had the stage, so it went on from a state on disk."""
        self._reached = 0
        """The step at which a worker died."""

    def ended(self, told: PipelineStatistics) -> None:
        """A pipeline, for whatever reason."""
        self.redone += told.counters.redone
        self._spent = self._spent.plus(spent_by(told))

    def spent(self, present: PipelineStatistics | None) -> Spent:
        """By all pipelines, the present one among them."""
        return self._spent if present is None else self._spent.plus(spent_by(present))

    def worker_died(self, step: int) -> None:
        self._reached = step

    def stage_changed(self) -> None:
        self._reached = 0

    def went_on(self, begun: int, saved: int) -> None:
        """From a state of `saved` steps, into a round that begins after `begun`."""
        self.lost_steps += max(self._reached, begun) - saved
        self._reached = 0
