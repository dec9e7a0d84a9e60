"""From what is known to the one reason that is shown: the one nearest to the cause.

The order is that of docs/cli.md section 11: failed; the user's own word; own resources; isolated;
run_state_lost; stalled; waiting_for_stage; waiting_for_peers; then the rest. `Situation` is filled
by the composite (peer.py); everything here is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.bootstrap import ENTRY_HINT
from swarmd.protocols.ids import PeerId
from swarmd.protocols.pipeline_statistics import Waiting
from swarmd.protocols.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts. Times are on the machine's clock."""

    own: PeerId | None = None
    failed: Reason | None = None
    """Set once, by whoever found out; ends the peer."""
    user: Reason | None = None
    """paused, draining, leaving, or a rule of the user's."""
    resources: Reason | None = None
    """out_of_memory, disk_*, device_lost, worker_died, data_missing."""
    is_complete: bool = False
    entry_causes: tuple[tuple[str, str], ...] = ()
    """(address, cause) of entry addresses that do not answer, while nobody else is known."""
    entries_tried: bool = False
    retry_at_s: float | None = None
    present: int = 1
    """Peers of the run that are there, ourselves included."""
    was_with_others: bool = False
    is_isolated: bool = False
    """It has been alone for long, and was not before."""
    peers_min: int = 1
    has_begun: bool = False
    missing_stages: tuple[int, ...] = ()
    coming: tuple[tuple[int, PeerId], ...] = ()
    """(stage, peer) of those that are fetching state for a missing stage."""
    missing_until_s: float | None = None
    """By when somebody should have taken the stage."""
    lost_stage: tuple[int, int] | None = None
    """(stage, last good round): nobody holds its state."""
    stalled_since_s: float | None = None
    stall_text: str = ""
    syncing: Reason | None = None
    """What a transfer or a change of stage is at."""
    seating: Reason | None = None
    """Why no stage is taken yet, while there is nothing to fetch."""
    stage: int | None = None
    is_observer: bool = False
    mixing: Reason | None = None
    warming_up: Reason | None = None
    """A newcomer trains, but does not count yet."""
    waiting: Waiting | None = None
    round: int = 0
    now_s: float = 0.0


def choose_reason(facts: Situation) -> Reason:
    """The first of these that holds."""
    for choose in (
        _final,
        _own,
        _joining,
        _apart,
        _swarm,
        _stage,
    ):
        reason = choose(facts)
        if reason is not None:
            return reason
    usual = Reason(code="training", text="training", stage=facts.stage, round=facts.round)
    return facts.warming_up or usual


def _final(facts: Situation) -> Reason | None:
    if facts.failed is not None:
        return facts.failed
    if facts.is_complete:
        return Reason(code="run_complete", text="the run has reached its last step")
    return None


def _own(facts: Situation) -> Reason | None:
    if facts.user is not None:
        return facts.user
    if facts.resources is not None:
        return facts.resources
    return None


def _joining(facts: Situation) -> Reason | None:
    """Nobody met yet, though there are addresses to try."""
    if facts.was_with_others or facts.present > 1 or not facts.entries_tried:
        return None
    if not facts.entry_causes:
        return Reason(code="connecting", text="looking for peers of the run")
    listed = ", ".join(f"{address} {cause}" for address, cause in facts.entry_causes)
    return Reason(
        code="bootstrap_unreachable",
        text=f"0 of {len(facts.entry_causes)} entry addresses reachable: {listed}",
        retry_at_s=facts.retry_at_s,
        hint=ENTRY_HINT,
        details={
            "addresses": [
                {"addr": address, "cause": cause} for address, cause in facts.entry_causes
            ]
        },
    )


def _apart(facts: Situation) -> Reason | None:
    if facts.is_isolated and facts.missing_stages:
        stage = facts.missing_stages[0]
        return Reason(
            code="isolated",
            text=f"no other peer can be reached, and stage {stage} has none; keeps trying",
            stage=stage,
            retry_at_s=facts.retry_at_s,
        )
    if facts.lost_stage is not None:
        stage, round_number = facts.lost_stage
        return Reason(
            code="run_state_lost",
            text=f"nobody holds stage {stage}; its last good round is {round_number}",
            stage=stage,
            round=round_number,
        )
    if facts.syncing is not None and facts.syncing.code == "run_state_lost":
        return facts.syncing
    if facts.stalled_since_s is not None:
        return Reason(code="stalled", text=facts.stall_text, round=facts.round)
    return None


def _swarm(facts: Situation) -> Reason | None:
    """A stage that this peer is itself getting hold of is told by how far it is: nearer to the
    cause than that nobody has it."""
    syncing = facts.syncing
    if facts.missing_stages and (syncing is None or syncing.stage not in facts.missing_stages):
        return _missing_stage(facts)
    if syncing is not None and facts.missing_stages:
        return syncing
    if not facts.has_begun and facts.present < facts.peers_min:
        return Reason(
            code="waiting_for_peers",
            text=f"{facts.present} peers are here, the run starts at {facts.peers_min}",
        )
    return syncing or facts.seating


def _missing_stage(facts: Situation) -> Reason:
    stage = facts.missing_stages[0]
    peer = next((peer for coming, peer in facts.coming if coming == stage), None)
    text = f"stage {stage} has no peer"
    if peer is not None:
        text += f"; {'this peer' if peer == facts.own else f'peer {peer[-4:]}'} is taking it"
    somebody_may = peer is not None or facts.present > 1
    needs_others = not somebody_may and facts.stage not in (None, stage)
    until_s = facts.missing_until_s
    has_deadline = somebody_may and until_s is not None and until_s > facts.now_s
    return Reason(
        code="waiting_for_stage",
        text=text,
        stage=stage,
        peer=peer,
        eta_at_s=until_s if has_deadline else None,
        eta_basis="deadline" if has_deadline else "unknown",
        hint="nobody else is here: invite some with `swarmd run link`" if needs_others else None,
    )


def _stage(facts: Situation) -> Reason | None:
    if facts.is_observer:
        return Reason(code="standby", text="observes; holds no stage")
    if facts.mixing is not None:
        return facts.mixing
    if facts.waiting is None:
        return None
    code, subject, text = facts.waiting
    stage, peer = subject.get("stage"), subject.get("peer")
    return Reason(
        code=code,
        text=text,
        hint=subject.get("hint"),
        state="waiting",
        stage=stage if isinstance(stage, int) else facts.stage,
        peer=peer if isinstance(peer, str) else None,
        round=facts.round,
    )
