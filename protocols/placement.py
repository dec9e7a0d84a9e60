"""What this peer does about its own stage: claims, waits, takes, moves; decided by assignment.py.

    joining   claims the stage that the plan gives it; the claim stands in its record for all to see
              until it has looked right for claim_settle_s; then it is taken: syncing
    active    moves if the plan says so: at once (after claim_settle_s) to a stage without peers,
              and of free will only when the map has been still and the gain is worth it

A peer that moves is a joiner again for that moment. So if two peers set out for the same place,
everybody sees both, and the plan seats one of them elsewhere, mostly back where it came from.
Times are our own: how long a map or a claim has been the same is what we saw ourselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from swarmd.protocols.assignment import (
    AssignmentLimits,
    Plan,
    StageMap,
    StageNeeds,
    plan,
    stage_map,
)
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.receipts import tag_of
from swarmd.protocols.roster import PRESENT, RosterView

REPLAN_S = 5.0
_claim = attrgetter(
    "peer",
    "stage",
    "phase",
    "observer",
    "pinned",
    "cordoned",
    "lacks_data",
    "settled",
    "recent_starts",
)
_capacity = attrgetter("peer", "tokens_per_s", "memory_bytes")
"""With the claims, all of the roster that a plan follows from."""


@dataclass(frozen=True, slots=True)
class Change:
    """What our record should say from now on, for Membership.update_own. Empty: nothing new."""

    fields: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    """keep, claim, take, fill, move, settled; flapping, does_not_fit, cordoned on standby."""


class Placement:
    """Call `review` when the view changed, and every second or so.

    Only once the roster can be trusted: a link is up and rosters were compared, or we are the
    first. Else every starter would found a swarm of its own.
    """

    def __init__(self, own: PeerId, needs: StageNeeds, seed: int, limits: AssignmentLimits) -> None:
        self._own = own
        self._needs = needs
        self._seed = seed
        self._limits = limits
        self.present = StageMap(())
        """Who holds what, as of the last review."""
        self._map_version = ""
        self._map_since_s = 0.0
        self._wish: tuple[int | None, str] = (None, "")
        self._wish_since_s = 0.0
        self._stage: int | None = None
        self._stage_since_s = 0.0
        self._shape = -1
        self._claims: tuple[Any, ...] = ()
        self._capacities: tuple[Any, ...] = ()
        self._proven: frozenset[bytes] | None = None
        self._plan: tuple[bool, Plan] | None = None
        """(whether the map was quiet, what followed)."""
        self._plan_at_s = 0.0

    def set_proven(self, tags: frozenset[bytes]) -> None:
        """Who has been seen to work, as receipts name them. Until this is called all are believed,
        as where no ledger is kept."""
        if tags != self._proven:
            self._proven, self._plan = tags, None

    def review(self, view: RosterView, now_s: float) -> Change:
        """What to change about ourselves, if anything."""
        own = view.get(self._own)
        assert own is not None, "we are not in our own roster"
        record = own.record
        self._note_stage(record, now_s)
        self._note_claims(view, now_s)
        if record.observer or record.phase in ("draining", "left", "syncing"):
            return Change()
        seat = self._followed(view, now_s).seat_of(self._own)
        if seat is None:
            return Change()
        if (seat.stage, seat.why) != self._wish:
            self._wish, self._wish_since_s = (seat.stage, seat.why), now_s
        is_settled = now_s - self._wish_since_s >= self._limits.claim_settle_s
        if record.phase == "joining":
            return self._join(record, seat.stage, seat.why, is_settled)
        if seat.why in ("fill", "move") and is_settled:
            return Change({"stage": seat.stage, "phase": "joining", "settled": False}, seat.why)
        dwelt_s = now_s - self._stage_since_s
        if not record.settled and dwelt_s >= self._limits.dwell_s:
            return Change({"settled": True}, "settled")
        return Change({}, "keep")

    def plan(self, view: RosterView, now_s: float) -> Plan:
        """What everybody with this view finds, for `swarmd plan`."""
        quiet_s = now_s - self._map_since_s
        proven = self._proven_in(view)
        return plan(view, self._needs, self._seed, self._limits, quiet_s, proven=proven)

    def _followed(self, view: RosterView, now_s: float) -> Plan:
        """The same, kept: found again when claims have changed, and when capacities have, which
        are looked at every REPLAN_S."""
        quiet_s = now_s - self._map_since_s
        is_quiet = quiet_s >= self._limits.settling_s
        held = self._plan
        if now_s - self._plan_at_s >= REPLAN_S:
            self._plan_at_s, before = now_s, self._capacities
            self._capacities = _values_of(_capacity, view)
            held = held if self._capacities == before else None
        if held is None or held[0] != is_quiet:
            asked = _Question(
                (self._claims, _values_of(_capacity, view)),
                self._proven_in(view),
                self._needs,
                self._seed,
                self._limits,
                is_quiet,
                view,
            )
            self._plan = held = (is_quiet, _answer(asked))
        return held[1]

    def _proven_in(self, view: RosterView) -> frozenset[PeerId] | None:
        if self._proven is None:
            return None
        return frozenset(v.peer for v in view.present() if tag_of(v.peer) in self._proven)

    @property
    def why(self) -> str:
        """Of the seat that the plan gives us."""
        return self._wish[1]

    @property
    def settles_at_s(self) -> float | None:
        """When our claim has stood long enough, if it goes on to look right. None: no claim yet."""
        if self._wish[0] is None:
            return None
        return self._wish_since_s + self._limits.claim_settle_s

    @property
    def is_settled_without_a_stage(self) -> bool:
        """The plan has looked at us, and has no stage for us."""
        return self._wish[0] is None and self._wish[1] != ""

    def next_check_s(self, now_s: float) -> float:
        """Until the map has been still long enough for a free move; then until the next plan."""
        settles_in_s = self._map_since_s + self._limits.settling_s - now_s
        return (
            settles_in_s if settles_in_s > 0.0 else REPLAN_S - (now_s - self._plan_at_s) % REPLAN_S
        )

    def _join(self, record: PeerRecord, stage: int | None, why: str, is_settled: bool) -> Change:
        if stage is None:
            return Change({} if record.stage is None else {"stage": None}, why)
        if record.stage != stage:
            return Change({"stage": stage}, "claim")
        if is_settled:
            return Change({"phase": "syncing"}, "take")
        return Change({}, "claim")

    def _note_stage(self, record: PeerRecord, now_s: float) -> None:
        if record.stage != self._stage or record.phase == "joining":
            self._stage, self._stage_since_s = record.stage, now_s

    def _note_claims(self, view: RosterView, now_s: float) -> None:
        """Most changes of the roster's shape (suspicions, refutations) are none of the claims."""
        if view.shape == self._shape:
            return
        self._shape = view.shape
        claims = _values_of(_claim, view)
        if claims == self._claims:
            return
        self._claims = claims
        self._plan = None
        self.present = stage_map(view, self._needs.stages)
        version = self.present.version
        if version != self._map_version:
            self._map_version, self._map_since_s = version, now_s


@dataclass(frozen=True, slots=True)
class _Question:
    """All that a plan follows from; the view says the facts once more, at length."""

    facts: tuple[Any, ...]
    proven: frozenset[PeerId] | None
    needs: StageNeeds
    seed: int
    limits: AssignmentLimits
    is_quiet: bool
    view: RosterView = field(compare=False)


@lru_cache(maxsize=8)
def _answer(asked: _Question) -> Plan:
    """Kept, since peers in one process that see the same find the same."""
    return plan(
        asked.view,
        asked.needs,
        asked.seed,
        asked.limits,
        math.inf if asked.is_quiet else 0.0,
        tells_gain=False,
        proven=asked.proven,
    )


def _values_of(values: Callable[[PeerRecord], Any], view: RosterView) -> tuple[Any, ...]:
    """By peer, of those that are there."""
    return tuple([values(item.record) for item in view.peers if item.liveness in PRESENT])
