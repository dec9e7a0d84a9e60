"""All that has to do with states of stages: where ours comes from, and to whom it goes.

    seat         which stage is ours, and its state from others or from the disk
    donor        a state, for those who need it
    guard        snapshots of other stages
    checkpoints  our own, written down

They do not know each other; this file gives each its messages and events, and says when a peer that
wants to go has nothing any more that would be lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.checkpoint_keeper import CheckpointKeeper
from swarmd.protocols.coverage import Coverage, SwarmView
from swarmd.protocols.guard import Guard, guardians_of
from swarmd.protocols.ids import PeerId
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.messages.state import ChunkRequest, StateRequest
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.placement import Placement
from swarmd.protocols.proven import Proven
from swarmd.protocols.saved_ledgers import SavedLedgers, take_up
from swarmd.protocols.saved_states import SavedState
from swarmd.protocols.seat import Seat
from swarmd.protocols.state_donor import StateDonor

HANDOVER_S = 10.0
"""A peer that wants to go waits so long, at most, for somebody to take over what only it has."""


class StageStates:
    """For StageWork."""

    def __init__(
        self, setup: PeerSetup, own: PeerId, leases: LeaseBook, next_number: Callable[[], int]
    ) -> None:
        self._own = own
        self._leases = leases
        self._is_imported = setup.is_imported
        self._stages = setup.shape.stages
        self._rounds = setup.shape.rounds
        self._copies = setup.guard.copies
        self.guard = Guard(
            own, setup.shape.rounds, setup.guard, next_number, leases.save, setup.guarded
        )
        self.donor = StateDonor(next_number, guarded=self.guard.held)
        self.checkpoints = CheckpointKeeper(leases, next_number)
        self._proven = Proven(leases.ledger)
        self.seat = Seat(
            own,
            Placement(own, setup.needs, setup.shape.seed, setup.assignment_limits),
            wanted=setup.stage,
            is_observer=setup.is_observer,
            is_founder=setup.is_founder,
            next_token=next_number,
            saved=setup.saved,
            partial=setup.partial,
            guarded=self.guard.held,
        )
        self._ledgers = SavedLedgers((*setup.saved, *setup.guarded), leases)
        self.handed_to: tuple[PeerId, ...] = ()
        """Who has what only we had, when we went."""
        self._handing_since_s: float | None = None
        self._told_guarded: tuple[object, ...] = ()

    def take_fields(self) -> dict[str, Any]:
        """What the own record should say from now on."""
        fields = self.seat.take()
        if self.guard.told != self._told_guarded:
            fields["guarded"] = self._told_guarded = self.guard.told
        return fields

    def arrived(self, event: fx.Arrived, now_s: float) -> list[fx.Effect]:
        """A message of messages/state.py. Its payload is ours now."""
        if isinstance(event.message, StateRequest | ChunkRequest):
            return [*self.donor.handle(event, now_s), *release(event)]
        for machine in (self.seat, self.guard):
            if machine.expects(event.peer, event.message):
                return machine.handle(event, now_s)
        return release(event)

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Jobs, files and timers."""
        if self.checkpoints.owns(event):
            effects = self.checkpoints.handle(event)
            kept = self.checkpoints.kept
            if kept is not None and kept.stage == self.seat.stage:
                self.seat.checkpoint = kept
            return effects
        effects = self.donor.handle(event, now_s)
        return [*effects, *self.seat.handle(event, now_s), *self.guard.handle(event, now_s)]

    def review(self, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        if self._is_imported:
            swarm = replace(swarm, has_begun=True)  # there is a state to begin with
        coverage = swarm.coverage
        self.seat.placement.set_proven(self._proven.look(now_s))
        for effect in self.seat.review(swarm, now_s):
            if isinstance(effect, fx.Emit) and effect.name == "state/resumes":
                saved: SavedState = effect.fields["saved"]
                effects += take_up(self._leases, saved, saved.round)
            else:
                effects.append(effect)
        effects += self._ledgers.review(coverage, now_s)
        if self.seat.phase != "held" and not self.guard.collecting:
            return [*effects, *self.guard.drop()]  # first our own
        return [*effects, *self.guard.review(coverage, self.seat.stage, swarm.linked, now_s)]

    def collect(self) -> None:
        """Have a snapshot of every stage but our own, which is written down anyway."""
        self.guard.collect(stage for stage in range(self._stages) if stage != self.seat.stage)

    def wants_links(self, coverage: Coverage) -> list[PeerId]:
        """Whom we need a link to: the next stage, and our own, with which we mix; and who has a
        state that we fetch."""
        stage = self.seat.stage
        if stage is None:
            return self.guard.wants_links(coverage)
        near = [*coverage.active[stage + 1 :][:1], *coverage.active[stage : stage + 1]]
        beside = [view.peer for views in near for view in views if view.peer != self._own]
        return [*beside, *self.seat.wants_links(coverage), *self.guard.wants_links(coverage)]

    def is_handing_over(self, coverage: Coverage, round_number: int, now_s: float) -> bool:
        """Whether something would be lost if we went now that somebody can still take over."""
        stage = self.seat.stage
        if self.seat.phase != "held" or stage is None:
            return False
        if self._handing_since_s is None:
            self._handing_since_s = now_s
        stay = [view.peer for view in coverage.active[stage] if view.peer != self._own]
        if stay and round_number < self._rounds:
            self.handed_to = ()
            return False  # they have it anyway
        safe = tuple(peer for number, peer in coverage.guards[stage] if number >= round_number)
        self.handed_to = safe
        is_over = now_s - self._handing_since_s >= HANDOVER_S
        return not safe and not is_over and bool(guardians_of(stage, coverage, self._copies))


def release(event: fx.Arrived) -> list[fx.Effect]:
    return [] if event.payload is None else [fx.Release(event.payload)]
