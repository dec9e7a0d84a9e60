"""Why a peer does what it does: one state and one reason at every moment, every second booked.

The codes are those of docs/cli.md section 11; nothing else may be shown. `Reason` is what is true
now; `SecondsByReason` adds up where the life of the peer went, and the sums equal its uptime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STATES = (
    "starting",
    "joining",
    "syncing",
    "standby",
    "training",
    "waiting",
    "paused",
    "draining",
    "leaving",
    "stopped",
    "failed",
)

STATE_OF_CODE: dict[str, tuple[str, ...]] = {
    "starting": ("starting",),
    "bootstrap_unreachable": ("joining",),
    "connecting": ("joining",),
    "no_dialable_path": ("joining", "waiting"),
    "version_mismatch": ("failed",),
    "not_admitted": ("failed",),
    "banned": ("failed",),
    "identity_in_use_elsewhere": ("failed",),
    "run_full": ("joining",),
    "run_state_lost": ("waiting",),
    "waiting_for_peers": ("waiting",),
    "waiting_for_stage": ("waiting",),
    "waiting_for_round": ("waiting", "syncing"),
    "state_downloading": ("syncing",),
    "state_no_donor": ("syncing",),
    "state_verifying": ("syncing",),
    "standby": ("standby",),
    "changing_stage": ("syncing",),
    "training": ("training",),
    "mixing": ("training",),
    "waiting_for_micro_batch": ("waiting",),
    "waiting_for_gradient": ("waiting",),
    "round_skipped_slow": ("training",),
    "isolated": ("waiting",),
    "stalled": ("waiting",),
    "paused": ("paused",),
    "outside_schedule": ("paused",),
    "on_battery": ("paused",),
    "not_idle": ("paused",),
    "quota_exhausted": ("paused",),
    "over_temperature": ("paused",),
    "draining": ("draining",),
    "leaving": ("leaving",),
    "out_of_memory": ("training", "failed"),
    "model_does_not_fit": ("failed",),
    "disk_full": ("waiting", "training"),
    "disk_limit": ("waiting", "training"),
    "disk_error": ("waiting", "training"),
    "device_lost": ("waiting",),
    "worker_died": ("waiting",),
    "compute_failed": ("waiting", "failed"),
    "data_missing": ("waiting",),
    "run_complete": ("stopped",),
    "drained": ("stopped",),
    "drain_incomplete": ("stopped",),
    "stopped_now": ("stopped",),
    "internal_error": ("failed",),
}
"""Every code, with the states in which it may be shown. The first is the usual one."""

ETA_BASES = ("measured", "deadline", "schedule", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """What is going on, and until when as far as it can be known."""

    code: str
    text: str
    state: str = ""
    """Empty: the code's usual state."""
    stage: int | None = None
    peer: str | None = None
    round: int | None = None
    eta_at_s: float | None = None
    """When it should be over, on the machine's own clock."""
    eta_basis: str = "unknown"
    retry_at_s: float | None = None
    hint: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.code in STATE_OF_CODE, f"unknown reason code {self.code}"
        if not self.state:
            object.__setattr__(self, "state", STATE_OF_CODE[self.code][0])
        assert self.state in STATE_OF_CODE[self.code], f"{self.code} in state {self.state}"
        assert self.eta_basis in ETA_BASES

    def is_same_as(self, other: Reason) -> bool:
        """Same state, code and subject: going on, not changed."""
        return (self.state, self.code, self.stage, self.peer, self.round) == (
            other.state,
            other.code,
            other.stage,
            other.peer,
            other.round,
        )


DEVICE_CODES = ("device_lost", "out_of_memory", "data_missing", "model_does_not_fit")
"""Losses of the worker that have a reason of their own; any other is `worker_died`."""


DATA_HINT = (
    "put the same files in place, or name where they are with `--data-source`, and start again"
)


def worker_lost(code: str, text: str, stage: int | None) -> Reason:
    known = code if code in DEVICE_CODES else "worker_died"
    is_final = known in ("out_of_memory", "model_does_not_fit")
    hint = DATA_HINT if known == "data_missing" else None
    return Reason(code=known, text=text, stage=stage, state="failed" if is_final else "", hint=hint)


class SecondsByReason:
    """Books the time since the start, each second on exactly one code."""

    def __init__(self, first: Reason, now_s: float) -> None:
        self.current = first
        self.since_s = now_s
        self._started_s = now_s
        self._booked_at_s = now_s
        self._seconds: dict[str, float] = {}

    def change(self, reason: Reason, now_s: float) -> bool:
        """Say what is true from `now_s` on. True if state, code or subject changed."""
        self._book(now_s)
        changed = not reason.is_same_as(self.current)
        if (reason.state, reason.code) != (self.current.state, self.current.code):
            self.since_s = now_s
        self.current = reason
        return changed

    def uptime_s(self, now_s: float) -> float:
        return now_s - self._started_s

    def by_reason(self, now_s: float) -> dict[str, float]:
        """Code to seconds, by code; adds up to the uptime."""
        self._book(now_s)
        return dict(sorted(self._seconds.items()))

    def _book(self, now_s: float) -> None:
        code = self.current.code
        self._seconds[code] = self._seconds.get(code, 0.0) + now_s - self._booked_at_s
        self._booked_at_s = now_s
