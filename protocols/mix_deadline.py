"""How long an exchange may take: as long as exchanges took, and a margin for their spread.

    deadline = clamp(median + 6 MAD of the last 32, 2 s, 3 median + 2 s)      (round_deadline_s)

Until five have ended it is at most `first_s`. An exchange that was cut off says nothing of how long
it would have taken, unless parts were still flowing: then it teaches what it would have needed, and
the next one gets twice the time; the ceiling follows from that need then, or a machine that has
become slow would miss every deadline until half of the window has told so.

An exchange beside which our own worker is slower than usual gets as much more as its jobs take
longer (exchange_clock.py).

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

from swarmd.protocols.mix_jobs import JobPace

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
PATIENCE_SHARE = 0.5
"""Of the deadline: more than a hiccup of a crowded machine, and with an exchange before it still
less than two of them."""
PACE_JOBS_MIN = 4
"""Fewer jobs say nothing of a worker's pace."""
MORE_SHARE_MAX = 7.0
"""A worker that is slower still is a fault of its own."""


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """On the machine's own clock."""

    start_s: float
    patience_s: float
    wait_until_s: float
    grace_until_s: float
    last_words_s: float
    """From the end of waiting to the end."""

    @property
    def whole_s(self) -> float:
        return self.wait_until_s - self.start_s


class MixDeadline:
    """Of one kind of exchange."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._durations_s: deque[float] = deque(maxlen=WINDOW)
        self._patience = 1.0
        self._needed_s = 0.0
        """By the last exchange, if it was cut off."""
        self._paces: deque[JobPace] = deque(maxlen=WINDOW)

    def observe(self, elapsed_s: float, pace: JobPace | None = None) -> None:
        """All members were in it, after so long, and our own jobs went at this pace."""
        self._durations_s.append(elapsed_s)
        self._patience, self._needed_s = 1.0, 0.0
        if pace is not None and pace.jobs >= PACE_JOBS_MIN:
            self._paces.append(pace)

    def missed(self, needed_s: float) -> None:
        """It was cut off while parts were flowing: at that pace it would have taken so long."""
        self._durations_s.append(needed_s)
        self._patience *= 2.0
        self._needed_s = needed_s

    def more_s(self, pace: JobPace, whole_s: float) -> float:
        """By how much longer the jobs of an exchange take at this pace than usually they do."""
        if not self._paces or pace.jobs < PACE_JOBS_MIN:
            return 0.0
        usual_s = median(usual.seconds / usual.jobs for usual in self._paces)
        jobs = median(usual.jobs for usual in self._paces)
        more_s = jobs * (pace.seconds / pace.jobs - usual_s)
        return min(MORE_SHARE_MAX * whole_s, max(0.0, more_s))

    @property
    def typical_s(self) -> float | None:
        return median(self._durations_s) if self._durations_s else None

    @property
    def seconds(self) -> float:
        middle_s = self.typical_s
        if middle_s is None:
            return self._first_s
        ceiling_s = CEILING_MEDIANS * max(middle_s, self._needed_s) + CEILING_S
        if len(self._durations_s) < OBSERVATIONS_MIN:
            return min(max(FLOOR_S, self._first_s), ceiling_s)
        spread_s = median(abs(value - middle_s) for value in self._durations_s)
        plain_s = max(FLOOR_S, middle_s + DEVIATIONS * spread_s)
        return min(ceiling_s, self._patience * plain_s)

    def times(self, now_s: float, grace_s: float) -> ExchangeTimes:
        """For an exchange that begins now."""
        whole_s = self.seconds
        return ExchangeTimes(
            start_s=now_s,
            patience_s=PATIENCE_SHARE * whole_s,
            wait_until_s=now_s + whole_s,
            grace_until_s=now_s + whole_s + grace_s,
            last_words_s=max(LAST_WORDS_S_MIN, LAST_WORDS_SHARE * whole_s),
        )


def grace_s(round_median_s: float | None) -> float:
    """`update_grace_s`: how long one that comes late is still waited for."""
    return min(GRACE_S_MAX, max(GRACE_S_MIN, GRACE_SHARE * (round_median_s or 0.0)))
