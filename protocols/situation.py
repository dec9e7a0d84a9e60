"""Gathers from a PeerMachine what explain.py needs to choose the reason. Reads, changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from swarmd.protocols.explain import Situation
from swarmd.protocols.pipeline_statistics import Waiting
from swarmd.protocols.reasons import DATA_HINT, Reason
from swarmd.protocols.seat import is_first_round
from swarmd.protocols.stall_watch import what_is_missing

HICCUP_S = 1.0
"""A pipeline that waits for less is working; the seconds are booked (PipelineStatistics),
but nobody wants to read of each."""

if TYPE_CHECKING:
    from swarmd.protocols.peer import PeerMachine


def situation_of(peer: PeerMachine, now_s: float) -> Situation:
    """The facts of this moment."""
    coverage = peer.coverage
    limits = peer.membership.limits
    waiting = _waiting(peer, now_s)
    missing_until_s = None
    if peer.missing_since_s is not None:
        missing_until_s = peer.missing_since_s + limits.dead_after_s
    return Situation(
        own=peer.peer,
        failed=peer.failed,
        user=_user(peer, now_s),
        resources=peer.work.resources or _without_data(peer),
        is_complete=peer.leases.is_complete,
        syncing=peer.work.seat.reason(now_s),
        seating=_seating(peer),
        entry_causes=peer.paths.causes_of(peer.setup.entries),
        entries_tried=bool(peer.setup.entries),
        present=peer.membership.roster.present_count,
        was_with_others=peer.was_with_others,
        is_isolated=_is_isolated(peer, now_s),
        peers_min=peer.shape.peers_min,
        has_begun=peer.has_begun,
        missing_stages=coverage.missing,
        coming=tuple(
            (stage, view.peer) for stage, views in enumerate(coverage.coming) for view in views
        ),
        missing_until_s=missing_until_s,
        lost_stage=_lost_stage(peer, now_s),
        stage=peer.work.stage,
        is_observer=peer.setup.is_observer,
        mixing=None if peer.work.rounds is None else peer.work.rounds.reason(now_s),
        warming_up=_warming_up(peer, now_s),
        waiting=waiting,
        stalled_since_s=peer.standstill.since_s,
        stall_text=_stall_text(peer, waiting, now_s),
        round=peer.work.round,
        now_s=now_s,
    )


def _lost_stage(peer: PeerMachine, now_s: float) -> tuple[int, int] | None:
    """A stage that was trained, and whose state nobody has who is here; for so long that whoever
    had it should be back, if it only started again."""
    since_s, coverage = peer.missing_since_s, peer.coverage
    limits = peer.membership.limits
    if since_s is None or now_s - since_s < limits.dead_after_s or not peer.has_begun:
        return None
    lost = [stage for stage in coverage.missing if not coverage.has_state(stage)]
    settled = peer.leases.ledger.settled
    is_of_the_seed = settled == 0 and is_first_round(coverage)
    return (lost[0], settled) if lost and not is_of_the_seed else None


def _without_data(peer: PeerMachine) -> Reason | None:
    """Nothing but a first stage is left for this peer, and it lacks the data for that."""
    placement = peer.work.seat.placement
    is_idle = placement.is_settled_without_a_stage and placement.why == "does_not_fit"
    if not (is_idle and peer.membership.record.lacks_data):
        return None
    text = "the run's data are not here, and no other stage fits this peer"
    return Reason(code="data_missing", text=text, hint=DATA_HINT)


def _seating(peer: PeerMachine) -> Reason | None:
    """While no stage is held and none is fetched: who decides, and by when."""
    seat = peer.work.seat
    if peer.setup.is_observer or seat.phase not in ("none", "choosing"):
        return None
    if seat.stage is not None:
        text = f"looking for a peer that gives the state of stage {seat.stage}"
        return Reason(code="connecting", text=text, stage=seat.stage)
    placement = seat.placement
    if placement.is_settled_without_a_stage:
        return Reason(code="standby", text=f"every stage does without this peer: {placement.why}")
    return Reason(
        code="connecting",
        text="settles with the others which stage to take",
        eta_at_s=placement.settles_at_s,
        eta_basis="unknown" if placement.settles_at_s is None else "deadline",
    )


def _warming_up(peer: PeerMachine, now_s: float) -> Reason | None:
    rounds = peer.work.rounds
    number = None if rounds is None else rounds.keeper.round
    if rounds is None or number is None:
        return None
    return rounds.warming_up(len(peer.leases.ledger.ended(number)), now_s)


def _is_isolated(peer: PeerMachine, now_s: float) -> bool:
    """Everybody is gone, for so long that it may well be us. Before, what is missing is shown."""
    if not peer.was_with_others or peer.alone_since_s is None or peer.was_bid_farewell:
        return False
    return now_s - peer.alone_since_s >= peer.membership.limits.dead_after_s


def _stall_text(peer: PeerMachine, waiting: Waiting | None, now_s: float) -> str:
    since_s = peer.standstill.since_s
    if since_s is None:
        return ""
    still_s = now_s - since_s
    if peer.standstill.is_ours_alone:
        lacks = "nothing that it was given came to an end" if waiting is None else waiting.text
        return f"this peer has done nothing for {still_s:.0f} s while others did: {lacks}"
    missing = what_is_missing(peer.coverage, waiting)
    return f"nothing has moved for {still_s:.0f} s: {missing}"


def _waiting(peer: PeerMachine, now_s: float) -> Waiting | None:
    """What the pipeline waits for, once it has for longer than a hiccup. Nearest to the cause
    first: nothing comes from a stage that cannot be reached."""
    if peer.work.stage is not None:
        missing = peer.paths.missing(peer.work.stage, peer.coverage, now_s)
        if missing is not None:
            return missing
    pipeline = peer.work.pipeline
    found = None if pipeline is None else pipeline.waiting(now_s)
    if found is None or now_s - found.subject.get("since_s", now_s) < HICCUP_S:
        return None
    return found


def _user(peer: PeerMachine, now_s: float) -> Reason | None:
    if not peer.ending.takes_no_work:
        return _pause(peer)
    in_flight: dict[str, int] = {}
    if peer.work.pipeline is not None:
        in_flight = peer.work.pipeline.statistics(now_s).in_flight
    return peer.ending.reason(sum(in_flight.values()), len(peer.leases.held()))


def _pause(peer: PeerMachine) -> Reason | None:
    found = peer.pauses.current
    if found is None:
        return None
    freed = "; the device is free" if peer.work.seat.is_away else ""
    return replace(found, text=found.text + freed)
