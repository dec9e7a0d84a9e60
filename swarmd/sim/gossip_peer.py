"""A peer made of the coordinator alone: membership and placement, with work that is only pretended.

It is what the gossip is tested with over thousands of seeds, since a whole peer costs more. It
takes a stage as placement says, "fetches its state" for a while, and then counts micro-batches as
long as every stage has somebody.
"""

from __future__ import annotations

from swarmd.protocols import effects as fx
from swarmd.protocols.assignment import AssignmentLimits, equal_needs
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.placement import Placement
from swarmd.sim.sim_peer import Factory, PeerSpec

REVIEW = "gossip_peer/review"
REVIEW_S = 0.5
SYNC_S = 2.0
"""What fetching a stage's state takes."""
TOKENS_PER_S = 1_000.0
ROUND_S = 20.0
"""Of pretended work, at the usual speed, unless said otherwise."""


class GossipPeer:
    """Membership and Placement, wired as a whole peer wires them."""

    def __init__(
        self,
        spec: PeerSpec,
        limits: MembershipLimits,
        placing: AssignmentLimits,
        round_s: float = ROUND_S,
    ) -> None:
        self._spec = spec
        self.stages = spec.shape.stages
        self.membership = spec.membership_of(
            limits,
            phase="joining",
            stage=spec.disk.get("stage"),
            tokens_per_s=TOKENS_PER_S,
            recent_starts=spec.recent_starts,
        )
        self.placement = Placement(spec.peer, equal_needs(self.stages), spec.shape.seed, placing)
        self._round_s = round_s
        self.moves = 0
        self._has_met_others = not spec.entries
        self._active_at_s: float | None = None
        self._worked_s = 0.0

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Arrived():  # most of what happens
                return self.membership.handle(event, now_s)
            case fx.Started():
                effects = self.membership.handle(event, now_s)
                for peer, addresses in sorted(self._spec.entries.items()):
                    effects += self.membership.introduce(peer, addresses)
                return [*effects, fx.SetTimer(REVIEW, REVIEW_S)]
            case fx.TimerFired(name) if name == REVIEW:
                return [fx.SetTimer(REVIEW, REVIEW_S), *self._review(now_s)]
            case fx.Command("leave"):
                return self.membership.leave(now_s)
        return self.membership.handle(event, now_s)

    def _review(self, now_s: float) -> list[fx.Effect]:
        view = self.membership.view(now_s)
        if not self._has_met_others:
            self._has_met_others = len(view.present()) > 1
            return []
        if self.membership.record.phase == "syncing":
            return self._fetch(now_s)
        change = self.placement.review(view, now_s)
        effects: list[fx.Effect] = []
        if change.fields:
            if change.why in ("fill", "move"):
                self.moves += 1
            effects.append(fx.Emit("placement", {"why": change.why, **change.fields}))
            effects += self.membership.update_own(now_s, **change.fields)
            self._spec.disk["stage"] = self.membership.record.stage
        if self.membership.record.phase == "active":
            effects += self._work(now_s)
        return effects

    def _fetch(self, now_s: float) -> list[fx.Effect]:
        if self._active_at_s is None:
            self._active_at_s = now_s + SYNC_S
        if now_s < self._active_at_s:
            return []
        self._active_at_s = None
        return self.membership.update_own(now_s, phase="active")

    def _work(self, now_s: float) -> list[fx.Effect]:
        if self.placement.present.uncovered:
            return []
        speed = self._spec.speed()
        self._worked_s += REVIEW_S * speed
        return self.membership.update_own(
            now_s,
            tokens_per_s=TOKENS_PER_S * speed,
            micro_batches=int(self._worked_s * 10),
            step=int(self._worked_s),
            round=int(self._worked_s / self._round_s),
        )


def gossip_factory(
    limits: MembershipLimits, placing: AssignmentLimits, round_s: float = ROUND_S
) -> Factory:
    """A factory of such peers."""
    return lambda spec: GossipPeer(spec, limits, placing, round_s)
