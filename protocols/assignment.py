"""Who should hold which stage: pure functions of the roster view, the same on every peer.

Nobody assigns. Each peer looks at its own roster, finds what everybody else finds there, and acts
on the part that concerns itself: it claims a stage in its own record, lets gossip settle, and looks
again (placement.py). Two peers that claimed the same place see both claims and resolve them alike.

In this order:

    keep    who holds a stage keeps it
    join    newcomers one by one to the stage that is slowest so far; an uncovered one is slowest
    fill    a stage that is still uncovered takes a peer from a stage that can spare one, at once
    move    all covered and quiet: at most one peer moves, if the slowest stage gains enough

Ties are broken by rendezvous hash. Capacities are compared twice, as measured and in coarse classes
around the median: a newcomer goes by classes, so that noise does not pile peers up, and a move must
pay by both, so that neither noise nor the edge of a class sets anybody moving.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.roster import PRESENT, RosterView
from swarmd.protocols.stage_board import StageBoard, capacities_of, classed

HOLDING = ("syncing", "active")
"""Phases in which a stage is held, or will be in a moment."""
JUST_CHANGED = "the stage map has changed just now"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentLimits:
    """Times and thresholds of assignment. Higher: calmer; lower: sooner right."""

    claim_settle_s: float = 2.0
    """A claim must look right for so long before it is acted on: gossip has reached everybody."""
    settling_s: float = 30.0
    """The stage map must have been still for so long before anybody moves of free will."""
    dwell_s: float = 300.0
    """A peer holds its stage at least so long before it may be asked to move."""
    gain_share_min: float = 0.15
    """By how much the slowest stage must gain for a move."""
    class_ratio: float = 2.0
    """Width of a capacity class. Guess: what a busy machine's measurements vary by."""
    flap_window_s: float = 600.0
    flap_starts: int = 4
    """Starts within the window after which a newcomer is left on standby."""


def wan() -> AssignmentLimits:
    return AssignmentLimits()


def local() -> AssignmentLimits:
    """For swarms on one machine, where everything is nearer and measurements are noisier."""
    return AssignmentLimits(claim_settle_s=1.0, settling_s=5.0, dwell_s=15.0, class_ratio=4.0)


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """What each stage asks of a peer."""

    costs: tuple[float, ...]
    """Compute for a token, in any unit."""
    memory_bytes: tuple[int, ...]

    @property
    def stages(self) -> int:
        return len(self.costs)


def equal_needs(stages: int) -> StageNeeds:
    """All stages cost the same and fit anywhere."""
    return StageNeeds((1.0,) * stages, (0,) * stages)


@dataclass(frozen=True, slots=True)
class StageMap:
    """Peers by stage, each list by id."""

    stages: tuple[tuple[PeerId, ...], ...]
    standby: tuple[PeerId, ...] = ()

    @property
    def version(self) -> str:
        """Equal for equal maps, on every peer."""
        text = "\n".join(" ".join(peers) for peers in self.stages)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def uncovered(self) -> tuple[int, ...]:
        return tuple(stage for stage, peers in enumerate(self.stages) if not peers)

    def stage_of(self, peer: PeerId) -> int | None:
        for stage, peers in enumerate(self.stages):
            if peer in peers:
                return stage
        return None


class Seat(NamedTuple):
    """A peer's place in a proposal, and why it is that one."""

    peer: PeerId
    stage: int | None
    why: str
    """keep, pin, join, fill, move; or, without a stage: flapping, does_not_fit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is, what should be, and what follows (`swarmd plan`)."""

    present: StageMap
    proposal: StageMap
    seats: dict[PeerId, Seat]
    decision: str
    """keep, move or fill."""
    gain_share: float
    """What the slowest stage gains; infinite where it was uncovered."""
    why: str

    def seat_of(self, peer: PeerId) -> Seat | None:
        return self.seats.get(peer)


def stage_map(view: RosterView, stages: int) -> StageMap:
    """Who holds what now, those that drain included."""
    held: list[list[PeerId]] = [[] for _ in range(stages)]
    standby = []
    for item in view.peers:
        record = item.record
        if item.liveness not in PRESENT or record.observer:
            continue
        stage, phase = record.stage, record.phase
        if stage is not None and stage < stages:
            if phase in HOLDING or phase == "draining":
                held[stage].append(PeerId(record.peer))
        elif phase == "joining":
            standby.append(PeerId(record.peer))
    return StageMap(tuple(map(tuple, held)), tuple(standby))


def plan(
    view: RosterView,
    needs: StageNeeds,
    seed: int,
    limits: AssignmentLimits,
    quiet_s: float,
    *,
    tells_gain: bool = True,
    proven: Container[PeerId] | None = None,
) -> Plan:
    """The whole of it. quiet_s: for how long the stage map has not changed, as we saw it.

    tells_gain: work it out also of a move that is not due, for people to read. proven: who has been
    seen to work (receipts.py), since anybody can say that it holds a stage; None: all are believed.
    """
    table = _Table(view, needs, seed, limits, proven)
    table.seat_holders()
    table.seat_joiners()
    fills = table.fill_uncovered()
    uncovered = table.board.uncovered()
    if fills:
        decision, gain, why = "fill", math.inf, f"stage {fills[0].stage} has no peer"
    elif uncovered:
        decision, gain, why = "keep", 0.0, f"stage {uncovered[0]} has no peer, and none to spare"
    elif quiet_s < limits.settling_s and not tells_gain:
        decision, gain, why = "keep", 0.0, JUST_CHANGED
    else:
        decision, gain, why = table.move_one(quiet_s)
    proposal = StageMap(
        tuple(tuple(sorted(peers)) for peers in table.board.holders),
        tuple(sorted(peer for peer, seat in table.seats.items() if seat.stage is None)),
    )
    present = stage_map(view, needs.stages)
    return Plan(present, proposal, table.seats, decision, gain, why)


@lru_cache(maxsize=4_096)
def rendezvous(seed: int, *parts: object) -> int:
    """A number that all peers derive alike, and that nobody chose."""
    text = "/".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _takes_part(record: PeerRecord, stages: int) -> bool:
    """It wants a stage, or holds one that exists. Who drains counts as gone already."""
    if record.observer:
        return False
    if record.phase in HOLDING:
        return record.stage is not None and record.stage < stages
    return record.phase == "joining"


class _Table:
    """Peers being seated. Lives for one plan.

    The board counts capacities in classes; a free move is looked at on a second one with the same
    seats, that counts them as measured.
    """

    def __init__(
        self,
        view: RosterView,
        needs: StageNeeds,
        seed: int,
        limits: AssignmentLimits,
        proven: Container[PeerId] | None,
    ) -> None:
        self._needs = needs
        self._seed = seed
        self._limits = limits
        stages = needs.stages
        self._here = {
            PeerId(item.record.peer): item.record
            for item in view.peers
            if item.liveness in PRESENT and _takes_part(item.record, stages)
        }
        self._measured = capacities_of(self._here, needs.costs, proven)
        self.board = StageBoard(classed(self._measured, limits.class_ratio), needs.costs, proven)
        self.seats: dict[PeerId, Seat] = {}

    # ------------------------------------------------------------------------------------- seating

    def seat_holders(self) -> None:
        """Who holds a stage keeps it; who is pinned gets the one it asks for."""
        stages = self._needs.stages
        for peer, record in self._here.items():
            if record.stage is None or record.stage >= stages:
                continue
            if record.phase in HOLDING:
                self._seat(peer, record.stage, "keep")
            elif record.pinned:
                self._seat(peer, record.stage, "pin")

    def seat_joiners(self) -> None:
        waiting = [peer for peer in self._here if peer not in self.seats]
        waiting.sort(key=lambda peer: (rendezvous(self._seed, peer), peer))
        for peer in waiting:
            record = self._here[peer]
            fitting = [stage for stage in range(self._needs.stages) if self._fits(peer, stage)]
            if not fitting:
                self._seat(peer, None, "cordoned" if record.cordoned else "does_not_fit")
            elif record.recent_starts >= self._limits.flap_starts:
                self._seat(peer, None, "flapping")
            else:
                self._seat(peer, self._slowest_for(peer, record, fitting), "join")

    def _slowest_for(self, peer: PeerId, record: PeerRecord, fitting: list[int]) -> int:
        """The slowest stage that fits; among equals the one it claimed, else by hash."""
        return min(
            fitting,
            key=lambda stage: (
                self.board.rate(stage),
                stage != record.stage,
                rendezvous(self._seed, peer, stage),
            ),
        )

    def fill_uncovered(self) -> list[Seat]:
        """Stages without anybody take a peer that can be spared, or a flapping one at last."""
        fills = []
        for stage in self.board.uncovered():
            spare = self._spare_for(stage)
            if spare:
                chosen = self._most(spare, stage, self.board.rate_without)
            else:
                chosen = self._by_hash(
                    (peer for peer, seat in self.seats.items() if seat.why == "flapping"), stage
                )
            if chosen is not None:
                fills.append(self._seat(chosen, stage, "fill"))
        return fills

    def _spare_for(self, stage: int) -> list[PeerId]:
        """Proven ones that leave a proven one behind; else one of the two; else any that are not
        alone, since a stage without anybody stops all."""
        willing = [peer for peer in self._movable() if self._fits(peer, stage)]
        safe = [peer for peer in willing if self.board.can_spare(peer, stage)]
        proven = [peer for peer in safe if self.board.is_proven(peer)]
        anybody = [peer for peer in willing if self.board.can_spare(peer, stage, to_anybody=True)]
        return proven or safe or anybody

    # -------------------------------------------------------------------------------- a free move

    def move_one(self, quiet_s: float) -> tuple[str, float, str]:
        """(decision, gain, why); seats the peer that moves, if one does."""
        target = self._slowest()
        settled = [
            peer
            for peer in self._movable()
            if self._here[peer].settled and self.board.is_proven(peer)
        ]
        candidates = [
            peer
            for peer in settled
            if self.board.can_spare(peer, target) and self._fits(peer, target)
        ]
        chosen = self._most(
            candidates, target, lambda peer: self.board.slower_end_after(peer, target)
        )
        if chosen is None:
            return "keep", 0.0, "nobody may move to the slowest stage"
        gain = min(
            self._gain(self.board, settled, chosen, target),
            self._gain(self.board.copy(self._measured), settled, chosen, target),
        )
        source = self.seats[chosen].stage
        if gain <= 0.0:
            return "keep", 0.0, "no move would make the slowest stage faster"
        if gain < self._limits.gain_share_min:
            return "keep", gain, f"the gain is below {self._limits.gain_share_min:.0%}"
        if any(self._is_on_its_way(peer) for peer in self._here):
            return "keep", gain, "somebody is on its way already"
        if quiet_s < self._limits.settling_s:
            return "keep", gain, JUST_CHANGED
        self._seat(chosen, target, "move")
        return "move", gain, f"from stage {source} to {target}, which is the slowest"

    def _is_on_its_way(self, peer: PeerId) -> bool:
        return self.seats[peer].stage is not None and self._here[peer].phase != "active"

    def _gain(self, board: StageBoard, settled: list[PeerId], first: PeerId, target: int) -> float:
        """By what share the slowest stage gains if `first` goes there and others follow.

        Several stages may be equally slow, and then one move alone does not show: as many moves
        are counted as there are such stages, each only while it helps.
        """
        before = board.slowest_rate()
        tied = sum(board.rate(stage) <= before for stage in range(self._needs.stages))
        trial = board.copy()
        trial.put(first, target)
        for _ in range(tied - 1):
            goal = trial.slowest()
            helpful = [
                peer
                for peer in settled
                if trial.can_spare(peer, goal)
                and self._fits(peer, goal)
                and trial.slower_end_after(peer, goal) > trial.rate(goal)
            ]
            if not helpful:
                break
            trial.put(max(helpful, key=lambda peer: (trial.rate_without(peer), peer)), goal)
        return trial.slowest_rate() / before - 1.0 if before > 0.0 else math.inf

    # ------------------------------------------------------------------------------------- helpers

    def _seat(self, peer: PeerId, stage: int | None, why: str) -> Seat:
        if stage is not None:
            self.board.put(peer, stage)
        seat = self.seats[peer] = Seat(peer, stage, why)
        return seat

    def _movable(self) -> list[PeerId]:
        """Those that hold a stage and may be asked to take another."""
        return [
            peer
            for peer, seat in self.seats.items()
            if seat.why == "keep" and not self._here[peer].pinned and not self._here[peer].cordoned
        ]

    def _fits(self, peer: PeerId, stage: int) -> bool:
        """Device memory holds the stage (0: unknown, then it is tried), and its data are there."""
        record = self._here[peer]
        if record.cordoned or (stage == 0 and record.lacks_data):
            return False
        return record.memory_bytes == 0 or self._needs.memory_bytes[stage] <= record.memory_bytes

    def _slowest(self) -> int:
        """Among equals by hash."""
        return min(
            range(self._needs.stages),
            key=lambda stage: (self.board.rate(stage), rendezvous(self._seed, "slowest", stage)),
        )

    def _most(
        self, peers: list[PeerId], stage: int, worth: Callable[[PeerId], float]
    ) -> PeerId | None:
        """The one worth most; among equals by hash."""
        if not peers:
            return None
        most = max(worth(peer) for peer in peers)
        return self._by_hash((peer for peer in peers if worth(peer) == most), stage)

    def _by_hash(self, peers: Iterable[PeerId], stage: int) -> PeerId | None:
        return min(
            peers, key=lambda peer: (rendezvous(self._seed, peer, stage), peer), default=None
        )
