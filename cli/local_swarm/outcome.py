"""When a local swarm was a success. Pure: from what was seen to an outcome and its reasons.

Exit 0 only if all of it holds: every stage committed step T; the last loss is finite and meets the
target; every peer that was not told to die drained and exited 0; the audit is clean; nothing
restarted unasked; nothing is left behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_CODES = {
    "target_reached": 0,
    "invariant_broken": 10,
    "target_missed": 11,
    "peer_crashed": 12,
    "timed_out": 124,
    "interrupted": 130,
    "terminated": 143,
}

STOPPED = {"interrupted": "interrupted by the user", "terminated": "ended by SIGTERM"}

SHARE_STEPS_MIN = 100
"""Below this many steps the preset's share of the first loss says nothing; any fall is enough."""
FALL_STEPS_MIN = 10
"""Below this many steps not even a fall is certain; a finite loss is enough."""


@dataclass(frozen=True, slots=True)
class PeerEnd:
    """How one peer ended. `waits`: its last reason in words, for the sentence that names it."""

    name: str
    stage: int | None
    exit_code: int | None
    planned_exit: bool
    restarted_unasked: bool
    waits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything the verdict rests on."""

    total_steps: int
    stage_steps: Sequence[int]
    loss_first: float | None
    loss_last: float | None
    loss_target: float | None
    peers: Sequence[PeerEnd]
    gaps: int | None
    repeats: int | None
    left_behind: Sequence[str]
    stopped: str = ""
    """By the user before it was over: `interrupted` or `terminated`."""
    timed_out: bool = False


def target_of(wanted: str, steps: int, loss_first: float | None, share: float) -> float | None:
    """The loss to meet, None where any finite loss will do. `wanted`: a number, auto or none."""
    if wanted == "none" or (wanted == "auto" and steps < FALL_STEPS_MIN):
        return None
    if wanted != "auto":
        return float(wanted)
    if loss_first is None:
        return None
    return loss_first * share if steps >= SHARE_STEPS_MIN else loss_first


def judge(seen: Seen) -> tuple[str, list[str]]:
    """(outcome, failed conditions in plain words). The gravest failure names the outcome."""
    if seen.stopped:
        return seen.stopped, [STOPPED[seen.stopped]]
    crashed = _crashed(seen.peers)
    broken = _broken(seen)
    missed = _missed(seen)
    failed = [*broken, *crashed, *missed]
    if broken:
        return "invariant_broken", failed
    if crashed:
        return "peer_crashed", failed
    if seen.timed_out and missed:
        return "timed_out", failed
    return ("target_missed", failed) if missed else ("target_reached", [])


def _crashed(peers: Sequence[PeerEnd]) -> list[str]:
    failed = []
    for peer in peers:
        if peer.restarted_unasked:
            failed.append(f"{peer.name} restarted its worker unasked")
        if peer.planned_exit or peer.exit_code in (0, None):
            continue
        how = f"exit {peer.exit_code}" if peer.exit_code > 0 else f"signal {-peer.exit_code}"
        failed.append(f"{peer.name} ended with {how}, which nobody asked for")
    return failed


def _broken(seen: Seen) -> list[str]:
    failed = []
    if seen.gaps:
        failed.append(f"the audit found {seen.gaps} samples that nobody counted")
    if seen.repeats:
        failed.append(f"the audit found {seen.repeats} samples counted twice")
    failed += [f"left behind: {thing}" for thing in seen.left_behind]
    return failed


def _missed(seen: Seen) -> list[str]:
    failed = []
    for stage, step in enumerate(seen.stage_steps):
        if step < seen.total_steps:
            waits = [f"{p.name}: {p.waits}" for p in seen.peers if p.stage == stage and p.waits]
            named = f" ({'; '.join(waits)})" if waits else ""
            failed.append(f"stage {stage} stopped at step {step}{named}")
    if seen.loss_last is None:
        failed.append("no loss was seen")
    elif not math.isfinite(seen.loss_last):
        failed.append(f"the last loss is {seen.loss_last}")
    elif seen.loss_target is not None and seen.loss_last > seen.loss_target:
        failed.append(f"the last loss {seen.loss_last:.3f} is above {seen.loss_target:.3f}")
    return failed
