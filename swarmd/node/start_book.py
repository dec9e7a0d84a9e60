"""What a start is at before there is a machine, and since when.

A machine books every second of its life on one reason (protocols/reasons.py). The seconds before
it belong to the peer's life, too: opening the network, packing data, asking others for the run. Who
waits for them wants to read what takes so long, so each step is named and counted.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmd.protocols.reasons import Reason, SecondsByReason

STEPS = 4


class StartBook:
    """now_s: the clock of the reasons. Asked, it follows `explains`, if somebody knows better than
    the step: a machine of its own that looks for the run."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._step = Reason(code="starting", text=f"step 1 of {STEPS}: opening the network")
        self._seconds: SecondsByReason | None = None
        self.explains: Callable[[float], Reason] | None = None

    def is_at(self, step: int, text: str) -> None:
        """The start goes on with this."""
        self._step = Reason(code="starting", text=f"step {step} of {STEPS}: {text}")
        self.seconds()

    def seconds(self) -> SecondsByReason:
        """With the reason of this moment as the current one."""
        now_s = self._now_s()
        reason = self._step if self.explains is None else self.explains(now_s)
        if self._seconds is None:
            self._seconds = SecondsByReason(reason, now_s)
        self._seconds.change(reason, now_s)
        return self._seconds

    def by_reason(self, until_s: float) -> dict[str, float]:
        """Up to the moment when a machine took over, or now."""
        return {} if self._seconds is None else self._seconds.by_reason(until_s)
