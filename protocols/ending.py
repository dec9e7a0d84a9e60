"""How a peer stops: told to (drain, leave), or because the run has reached its end.

    none -> draining -> idle                 drain: stays connected, takes nothing
    none -> draining -> leaving -> gone      leave, SIGTERM
    none -> complete -> leaving -> gone      the run's last step
    any  -> leaving -> gone                  leave --now: no drain, but a goodbye

`finish` is a leave that begins when the running outer round has ended.

Nothing here waits for anybody without a bound. The daemon keeps the deadline of the whole
(`drain_deadline_s`); `drop` is what it calls when that has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.reasons import Reason

LINGER_S = 5.0
"""After the last step a peer stays until the others know of it and somebody guards what it has
learned, at most so long: without it the last of them would have to find out from nobody."""
GOODBYE_S = 0.3
"""Between the last record and the end, so that it leaves. Neighbours need one flush of a queue."""


@dataclass(slots=True)
class Ending:
    """`phase`: none, draining, idle, complete, leaving, gone. `code`: why, once it is known."""

    phase: str = "none"
    code: str = ""
    leaves: bool = False
    since_s: float = 0.0
    finishes: int | None = None
    """The outer round after which to leave, if that was asked for (`finish`)."""

    @property
    def takes_no_work(self) -> bool:
        return self.phase != "none"

    def drain(self, now_s: float, *, leaves: bool) -> bool:
        """Begin, or make a drain into a leave. False if it is under way already."""
        if self.phase in ("draining", "idle"):
            changed = leaves and not self.leaves
            self.leaves = self.leaves or leaves
            return changed
        if self.phase in ("leaving", "gone"):
            return False
        self.phase, self.code, self.leaves, self.since_s = "draining", "drained", leaves, now_s
        return True

    def leave_now(self, now_s: float) -> bool:
        """Without a drain. False if it is leaving already."""
        if self.phase in ("leaving", "gone"):
            return False
        self.phase, self.code, self.leaves, self.since_s = "leaving", "stopped_now", True, now_s
        return True

    def resume(self) -> bool:
        """Undo a drain. False if there is none, or it is too late."""
        self.finishes = None
        if self.phase in ("draining", "idle") and not self.leaves:
            self.phase, self.code = "none", ""
            return True
        return False

    def complete(self, now_s: float) -> bool:
        """The run has ended. True the first time."""
        if self.phase in ("none", "draining", "idle"):
            self.phase, self.code, self.since_s = "complete", "run_complete", now_s
            return True
        return False

    def advance(
        self, now_s: float, *, is_empty: bool, others_know: bool, stays: bool
    ) -> str | None:
        """The phase that begins now, if one does."""
        match self.phase:
            case "draining" if is_empty:
                return self._go("leaving" if self.leaves else "idle", now_s)
            case "idle" if self.leaves:
                return self._go("leaving", now_s)
            case "complete" if not stays:
                if (others_know and is_empty) or now_s - self.since_s >= LINGER_S:
                    return self._go("leaving", now_s)
            case "leaving" if now_s - self.since_s >= GOODBYE_S:
                return self._go("gone", now_s)
        return None

    def _go(self, phase: str, now_s: float) -> str:
        self.phase, self.since_s = phase, now_s
        return phase

    def reason(self, micro_batches: int, leases: int) -> Reason | None:
        """What to show, if this is what is going on."""
        if self.phase in ("draining", "idle"):
            text = f"{_count(micro_batches, 'micro-batch', 'micro-batches')} and "
            text += f"{_count(leases, 'lease', 'leases')} left"
            return Reason(code="draining", text=text)
        if self.phase in ("leaving", "gone") and self.code in ("drained", "stopped_now"):
            return Reason(code="leaving", text="goodbye sent")
        return None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
