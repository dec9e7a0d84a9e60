"""When an exchange looks, stops waiting and ends; and what moves these moments.

They are settled when it begins (mix_deadline.py) and move for two reasons that lie with ourselves:

    lag     our own loop stood still. Nobody can be heard meanwhile, and what was sent lies unread:
            without this, whoever wakes up finds everybody silent and every deadline passed
    pace    our own worker does its jobs slower than it used to. Where that is so, everybody whose
            machine is crowded too needs more time, and that this one is slow is no reason to
            leave out healthy members

A member that is slow or silent moves nothing: it costs the others what was planned.
"""

from __future__ import annotations

from dataclasses import replace

from swarmd.protocols.mix_deadline import ExchangeTimes, MixDeadline
from swarmd.protocols.mix_group import MixGroup
from swarmd.protocols.mix_jobs import JobPace

TICKS_PER_PATIENCE = 4
TICK_S_MIN, TICK_S_AGAIN = 0.05, 0.1
LATECOMER_SHARE = 0.5
"""Of the time there is to wait: what the last member to come is given for its parts."""


class ExchangeClock:
    """`times` is how things stand now. Whoever looks at the clock asks the group too."""

    def __init__(
        self,
        times: ExchangeTimes,
        group: MixGroup,
        deadline: MixDeadline,
        pace: JobPace,
    ) -> None:
        self.times = times
        self.stopped_s: float | None = None
        """When nobody was waited for any longer."""
        self._planned = times
        self._lag_s = 0.0
        self._group = group
        self._deadline = deadline
        self._pace = pace
        self._begun = pace.copy()
        self._ticked_s = self._tick_s = times.start_s

    @property
    def own_pace(self) -> JobPace:
        """Of the jobs since the exchange began."""
        return self._pace.since(self._begun)

    @property
    def stop_s(self) -> float:
        """Until when anybody is waited for: longer, if one that lives has not come yet, or has come
        so late that its parts are still under way."""
        times = self.times
        if any(self._group.is_coming(member) for member in self._group.others()):
            return times.grace_until_s
        parts_s = LATECOMER_SHARE * times.whole_s
        return max(times.wait_until_s, self._group.last_came_s + parts_s)

    @property
    def end_s(self) -> float:
        stop_s = self.stop_s if self.stopped_s is None else self.stopped_s
        return stop_s + self.times.last_words_s

    def due_s(self, *, is_closed: bool, has_again: bool) -> float:
        """When somebody should look next. has_again: there is something to send once more."""
        if is_closed:
            return self.end_s + self.times.patience_s
        again_s = self._ticked_s + TICK_S_AGAIN if has_again else self._tick_s
        return min(self._tick_s, again_s, self.end_s)

    def ticked(self, now_s: float) -> None:
        """Somebody has looked."""
        self._ticked_s = now_s
        self._tick_s = now_s + max(TICK_S_MIN, self.times.patience_s / TICKS_PER_PATIENCE)

    # --------------------------------------------------------------------------------------- moves

    def lagged(self, lag_s: float, now_s: float) -> None:
        """Our loop stood still for so long."""
        self._lag_s += lag_s
        self._group.lagged(lag_s, now_s)
        self.look_at_pace()

    def look_at_pace(self) -> None:
        """Before anybody is judged by the time."""
        planned = self._planned
        more_s = self._deadline.more_s(self.own_pace, planned.whole_s)
        stretch = 1.0 + more_s / planned.whole_s
        self.times = replace(
            planned,
            patience_s=planned.patience_s * stretch,
            wait_until_s=planned.wait_until_s + self._lag_s + more_s,
            grace_until_s=planned.grace_until_s + self._lag_s + more_s,
            last_words_s=planned.last_words_s * stretch,
        )
        self._group.patience_s = self.times.patience_s
