"""How long an exchange may take: as long as exchanges took, and a margin for their spread.

    deadline = clamp(median + 6 MAD of the last 32, 2 s, 3 median + 2 s)      (round_deadline_s)

Until five have ended it is at most `first_s`. An exchange that was cut off says nothing of how long
it would have taken, unless parts were still flowing: then it teaches what it would have needed, and
the next one gets twice the time.

A deadline is spent in this order: who gives no sign of life for `patience_s` is not waited for any
longer; nobody is waited for after `wait_until_s`, or `grace_until_s` if it lives and says that it
comes; what has been gathered by then is reduced and sent; at the end everybody goes on with
what they have. Reducers so stop waiting before senders do, and one slow member does not make
everyone blame the reducers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

WINDOW = 32
DEVIATIONS = 6.0
OBSERVATIONS_MIN = 5
FLOOR_S = 2.0
CEILING_MEDIANS, CEILING_S = 3.0, 2.0
LAST_WORDS_SHARE, LAST_WORDS_S_MIN = 0.25, 0.5
"""After a deadline, for what was gathered to be reduced and its means to arrive."""
GRACE_S_MIN, GRACE_S_MAX = 1.0, 5.0
GRACE_SHARE = 0.1
"""Of the median round."""
PATIENCE_SHARE_MIN, PATIENCE_SHARE_MAX = 0.25, 0.5
PATIENCE_TURNS = 4.0
"""A part comes after two turns of its sender's queue, if all goes well."""


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """On the machine's own clock."""

    start_s: float
    patience_s: float
    wait_until_s: float
    grace_until_s: float
    last_words_s: float
    """From the end of waiting to the end."""


class MixDeadline:
    """Of one kind of exchange."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._durations_s: deque[float] = deque(maxlen=WINDOW)
        self._patience = 1.0

    def observe(self, elapsed_s: float) -> None:
        """All members were in it, after so long."""
        self._durations_s.append(elapsed_s)
        self._patience = 1.0

    def missed(self, needed_s: float) -> None:
        """It was cut off while parts were flowing: at that pace it would have taken so long."""
        self._durations_s.append(needed_s)
        self._patience *= 2.0

    @property
    def typical_s(self) -> float | None:
        return median(self._durations_s) if self._durations_s else None

    @property
    def seconds(self) -> float:
        middle_s = self.typical_s
        if middle_s is None:
            return self._first_s
        ceiling_s = CEILING_MEDIANS * middle_s + CEILING_S
        if len(self._durations_s) < OBSERVATIONS_MIN:
            return min(max(FLOOR_S, self._first_s), ceiling_s)
        spread_s = median(abs(value - middle_s) for value in self._durations_s)
        plain_s = max(FLOOR_S, middle_s + DEVIATIONS * spread_s)
        return min(ceiling_s, self._patience * plain_s)

    def times(self, now_s: float, grace_s: float, turn_s: float = 0.0) -> ExchangeTimes:
        """For an exchange that begins now. turn_s: what a job waits in the queue of a worker that
        computes meanwhile; a member with as much to do as we have is not silent for that."""
        whole_s = self.seconds
        spare_s = whole_s if self.typical_s is None else whole_s - self.typical_s
        patience_s = max(PATIENCE_SHARE_MIN * whole_s, spare_s, PATIENCE_TURNS * turn_s)
        return ExchangeTimes(
            start_s=now_s,
            patience_s=min(PATIENCE_SHARE_MAX * whole_s, patience_s),
            wait_until_s=now_s + whole_s,
            grace_until_s=now_s + whole_s + grace_s,
            last_words_s=max(LAST_WORDS_S_MIN, LAST_WORDS_SHARE * whole_s),
        )


def grace_s(round_median_s: float | None) -> float:
    """`update_grace_s`: how long one that comes late is still waited for."""
    return min(GRACE_S_MAX, max(GRACE_S_MIN, GRACE_SHARE * (round_median_s or 0.0)))
