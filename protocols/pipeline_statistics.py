"""What the pipeline counts and what it can tell: counters, waiting by reason, faults, loss.

Cheap to keep, frozen when told. Seconds that are not computing are booked on the reason for which
they were not, so that utilisation can be explained (docs/cli.md section 11).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from swarmd.protocols.ids import PeerId
from swarmd.protocols.routing import PeerTraffic

REJECTED_ENTRIES_MAX = 1_024
"""Pairs of peer and code that are told apart; what comes after counts without the peer."""
LOSS_EMA_WEIGHT = 0.05


@dataclass(slots=True)
class Counters:
    """Since the machine's start. Micro-batches unless named otherwise; held-out ones nowhere."""

    started: int = 0
    """As the head."""
    done: int = 0
    """As the head: their gradients arrived and were used."""
    expired: int = 0
    """As the head: ended without a gradient."""
    answered: int = 0
    """As a callee: gradients sent back."""
    counted: int = 0
    """Gradients that entered this peer's sums."""
    not_counted: int = 0
    """Done here without entering the sums: counted before, or older than the round before."""
    gradients_lost: int = 0
    """Counted, and gone with the compute worker before their step."""
    double_counts: int = 0
    """Counted here although the caller finished them with another replica: an upper bound."""
    redone: int = 0
    """Sent again because a callee failed."""
    busy_sent: int = 0
    busy_received: int = 0
    refused_received: int = 0
    stale_answers: int = 0
    """Answers to questions that were no longer open."""
    answers_lost: int = 0
    """Answers that did not leave; their callers ask again."""
    steps_taken: int = 0
    """Inner steps."""
    steps_failed: int = 0
    """Inner steps that the worker did not take: their gradient was not finite, or it failed."""
    compute_failures: dict[str, int] = field(default_factory=dict)
    rejected: dict[tuple[PeerId, str], int] = field(default_factory=dict)
    """What peers sent that they should not have, by peer and rejection code."""

    def copy(self) -> Counters:
        return replace(
            self, compute_failures=dict(self.compute_failures), rejected=dict(self.rejected)
        )

    def reject(self, peer: PeerId, code: str) -> None:
        key = (peer, code)
        if key not in self.rejected and len(self.rejected) >= REJECTED_ENTRIES_MAX:
            key = (PeerId(""), code)
        self.rejected[key] = self.rejected.get(key, 0) + 1


class Waiting(NamedTuple):
    """Why this peer does not compute. `code` as in docs/cli.md section 11."""

    code: str
    subject: dict[str, Any]
    """stage, peer, and on the machine's clock since_s and until_s (a deadline, or None)."""
    text: str


class WaitBook:
    """Books each second of the machine's life on one code."""

    def __init__(self) -> None:
        self.code = ""
        self.since_s = 0.0
        self._booked_at_s = 0.0
        self._seconds: dict[str, float] = {}

    def change(self, code: str, now_s: float) -> None:
        """From now on it is `code`; empty: nothing yet."""
        self._book(now_s)
        if code != self.code:
            self.code = code
            self.since_s = now_s

    def seconds(self, now_s: float) -> dict[str, float]:
        self._book(now_s)
        return dict(sorted(self._seconds.items()))

    def _book(self, now_s: float) -> None:
        if self.code:
            spent_s = max(0.0, now_s - self._booked_at_s)
            self._seconds[self.code] = self._seconds.get(self.code, 0.0) + spent_s
        self._booked_at_s = now_s


@dataclass(frozen=True, slots=True)
class Fault:
    code: str
    peer: PeerId | None
    at_s: float


class FaultLog:
    """Faults and what they cost: from the last useful work before to the first after."""

    def __init__(self) -> None:
        self.count = 0
        self.last: Fault | None = None
        self.recovery_s_last: float | None = None
        self.recovery_s_max: float | None = None
        self._useful_at_s: float | None = None
        self._recovering_since_s: float | None = None

    def fault(self, code: str, peer: PeerId | None, now_s: float) -> None:
        """Several at the same instant with one cause and peer are one."""
        fault = Fault(code, peer, now_s)
        if fault == self.last:
            return
        self.last = fault
        self.count += 1
        if self._recovering_since_s is None:
            self._recovering_since_s = now_s if self._useful_at_s is None else self._useful_at_s

    def useful(self, now_s: float) -> None:
        """A gradient was computed that counts."""
        if self._recovering_since_s is not None:
            self.recovery_s_last = now_s - self._recovering_since_s
            self.recovery_s_max = max(self.recovery_s_max or 0.0, self.recovery_s_last)
            self._recovering_since_s = None
        self._useful_at_s = now_s


class LossMeter:
    """Mean training loss per token, nats, as this peer sees it."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.ema: float | None = None

    def saw(self, loss_sum: float, samples: int) -> None:
        loss = loss_sum / samples
        self.last = loss
        if self.first is None or self.ema is None:
            self.first = self.ema = loss
        else:
            self.ema += LOSS_EMA_WEIGHT * (loss - self.ema)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatistics:
    """Everything at one moment. `counters` is a copy."""

    in_flight: dict[str, int]
    """Passages by phase, zero left out."""
    slots_held: int
    round: int
    """Whose inner phase is on, or comes next."""
    last_step: int | None
    pending: int
    """Micro-batches accumulated since the last step."""
    counters: Counters
    wait_s: dict[str, float]
    """Seconds by code: computing, mixing (held), waiting_for_*; they add up."""
    peers: tuple[PeerTraffic, ...]
    """Replicas of the next stage."""
    loss_first: float | None
    loss_last: float | None
    loss_ema: float | None
    faults: int
    fault_last: Fault | None
    recovery_s_last: float | None
    recovery_s_max: float | None

    @property
    def micro_batches_per_s(self) -> float:
        """While it computed, that is."""
        busy_s = self.wait_s.get("computing", 0.0)
        return self.counters.counted / busy_s if busy_s else 0.0
