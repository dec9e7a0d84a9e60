"""How healthy are we ourselves? Lifeguard's local health multiplier (arXiv 1707.00788).

A peer whose own host is starved hears nobody and, believing itself, accuses everybody. So every
sign that the fault lies here raises a score, every probe that works lowers it, and the score
stretches the time we give others before we accuse them.

Where we differ: a probe that nobody answered counts only in so far as the helpers stayed silent
too. Helpers that say "I cannot hear it either" prove that our own links work. And the driver's lag
(`LoopLag`) counts: over streams it is the surest sign that we are late, not they.
"""

from __future__ import annotations


class LocalHealth:
    """A score from 0 (healthy) to `score_max`; time-outs are multiplied by 1 + score."""

    def __init__(self, score_max: int) -> None:
        assert score_max >= 0
        self._score_max = score_max
        self._score = 0

    @property
    def score(self) -> int:
        return self._score

    @property
    def multiplier(self) -> float:
        return 1.0 + self._score

    def probe_answered(self) -> None:
        self._move(-1)

    def probe_failed(self, helpers_asked: int, helpers_answered: int) -> None:
        """Nobody could show that the target lives. Each helper that stayed silent counts against
        us; without any helper the failure itself does."""
        self._move(helpers_asked - helpers_answered if helpers_asked else 1)

    def was_accused(self) -> None:
        """Others did not hear us in time."""
        self._move(1)

    def lagged(self) -> None:
        """Our own loop was late by more than a probe may wait."""
        self._move(1)

    def _move(self, step: int) -> None:
        self._score = min(self._score_max, max(0, self._score + step))
