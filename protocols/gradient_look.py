"""What a replica learns of its outer gradient before Mix2: its length, and how far it is apart.

    norm           norm(D); None where it is not finite
    disagreement   norm(x - xmix) / norm(D): every round, free of traffic
    divergence     Jensen-Shannon distance between what the last stage predicts at x and at xmix, on
                   the held-out tokens it met first: two forward passes, so every few rounds only

D is never a whole vector: it is looked at range by range, one job each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from swarmd.protocols.jobs import JobFailure, JobResult
from swarmd.protocols.mix_jobs import JobDesk
from swarmd.protocols.outer_rules import cut, divergence_call, gradient_call

OnEnd = Callable[[JobFailure | None, float], None]
"""(why there is no gradient, now_s)."""


class GradientLook:
    """Of one round. `on_end` is called once, when the last range was looked at or a job failed."""

    def __init__(self, desk: JobDesk, owner: object, on_end: OnEnd) -> None:
        self._desk = desk
        self._owner = owner
        self._on_end = on_end
        self._asked = 0
        self._squares = 0.0
        self._delta_squares = 0.0
        self._is_finite = True
        self.is_seen = False
        self.divergence: float | None = None

    def begin(self, covered: int, elements: int, *, owes: bool, measures_divergence: bool) -> None:
        """owes: what travels of the covered ones is sparse, so D is added to what was not sent."""
        if measures_divergence:
            self._desk.ask(self._owner, divergence_call(), self._divergence_seen)
        for first, end, owed in ((0, covered, owes), (covered, elements, False)):
            for where in cut(first, end):
                self._asked += 1
                self._desk.ask(self._owner, gradient_call(where, owes=owed), self._seen)

    def _divergence_seen(self, outcome: JobResult | JobFailure, now_s: float) -> None:
        """Where it could not be measured, nothing is told: the round does not hang on it."""
        if isinstance(outcome, JobResult):
            self.divergence = outcome.data["divergence"]

    def _seen(self, outcome: JobResult | JobFailure, now_s: float) -> None:
        if isinstance(outcome, JobFailure):
            self._on_end(outcome, now_s)
            return
        self._asked -= 1
        self._squares += outcome.data["squares"]
        self._delta_squares += outcome.data["delta_squares"]
        self._is_finite = self._is_finite and outcome.data["is_finite"]
        if not self._asked:
            self.is_seen = True
            self._on_end(None, now_s)

    @property
    def norm(self) -> float | None:
        """None also where it was not looked at."""
        return math.sqrt(self._squares) if self.is_seen and self._is_finite else None

    @property
    def delta_norm(self) -> float:
        """norm(xmix - x)."""
        return math.sqrt(self._delta_squares)

    @property
    def disagreement(self) -> float | None:
        """None where nothing was learned."""
        norm = self.norm
        return self.delta_norm / norm if norm else None
