"""How a peer has answered of late, and whether it may be asked now. Our view alone, never gossip.

Three things that must not be mixed up (algorithms.md 4.2):

  score   falls with each micro-batch that a peer took and did not deliver, rises with each that it
          delivered, forgives with time. Work is given in proportion to its square: who drops three
          of four keeps about a twentieth of its share, which is the trickle that finds it healed.
          Never zero, and never a reason not to ask the only peer of a stage.
  ban     it could not be reached, or its link broke. 1 s, doubling to 60 s; a success ends it, and
          so does a new incarnation. Long fixed bans would cost a small swarm a replica for an hour.
  pause   it said BUSY. No fault: a moment's patience, which ends with its next answer.

The rates were chosen so that one mishap costs little (0.36 of the share, back above 0.7 after seven
deliveries) while 75 % of losses settle near a score of 0.2. Guesses beyond that, never tuned.
"""

from __future__ import annotations

SCORE_AFTER_MISS = 0.6
SCORE_GAIN = 0.2
SCORE_MIN = 0.1
FORGIVEN_HALF_S = 120.0
BAN_S_FIRST = 1.0
BAN_S_MAX = 60.0
PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 5.0
"""However long a peer says that it is busy."""

_NEVER = float("-inf")


class Standing:
    """One peer as one caller sees it."""

    def __init__(self) -> None:
        self.ban_s = 0.0
        """The present ban, or the one that the next will double."""
        self._banned_until_s = _NEVER
        self._paused_until_s = _NEVER
        self._score = 1.0
        self._score_at_s = _NEVER

    def score(self, now_s: float) -> float:
        """SCORE_MIN..1."""
        if self._score == 1.0:
            return 1.0
        age_s = max(0.0, now_s - self._score_at_s)
        unforgiven: float = 0.5 ** (age_s / FORGIVEN_HALF_S)
        return max(self._score, 1.0 - (1.0 - self._score) * unforgiven)

    def quality(self, now_s: float) -> float:
        """What its share of the work is multiplied by."""
        return self.score(now_s) ** 2

    def banned_for_s(self, now_s: float) -> float:
        return max(0.0, self._banned_until_s - now_s)

    def paused_for_s(self, now_s: float) -> float:
        return max(0.0, self._paused_until_s - now_s)

    def delivered(self, now_s: float) -> None:
        """It answered with what was asked for."""
        score = self.score(now_s)
        self._set_score(score + SCORE_GAIN * (1.0 - score), now_s)
        self.ban_s = 0.0
        self._banned_until_s = _NEVER
        self._paused_until_s = _NEVER

    def missed(self, now_s: float) -> None:
        """It took work and did not deliver."""
        self._set_score(self.score(now_s) * SCORE_AFTER_MISS, now_s)

    def redeemed(self, now_s: float) -> None:
        """What counted as missed came after all: late is not lost."""
        self._set_score(self.score(now_s) / SCORE_AFTER_MISS, now_s)

    def unreachable(self, now_s: float) -> None:
        """A dial failed or its link broke. While banned already, that is no further news."""
        if self.banned_for_s(now_s):
            return
        self.ban_s = min(BAN_S_MAX, max(BAN_S_FIRST, 2.0 * self.ban_s))
        self._banned_until_s = now_s + self.ban_s

    def pause(self, seconds: float, now_s: float) -> None:
        self._paused_until_s = now_s + min(PAUSE_S_MAX, max(PAUSE_S_MIN, seconds))

    def end_pause(self) -> None:
        self._paused_until_s = _NEVER

    def _set_score(self, score: float, now_s: float) -> None:
        self._score = min(1.0, max(SCORE_MIN, score))
        self._score_at_s = now_s
