"""What one peer is to be: what the composite needs that is neither the swarm's nor learned."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmd.protocols.assignment import AssignmentLimits, StageNeeds
from swarmd.protocols.guard import GuardRules
from swarmd.protocols.ids import PeerId
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.protocols.run_shape import RunShape
from swarmd.protocols.saved_states import SavedState
from swarmd.protocols.state_donor import Guarded


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSetup:
    """Of one start of one peer."""

    shape: RunShape
    run_body: bytes
    """The canonical RunConfig, for whoever asks."""
    tokeniser: tuple[str, bytes] = ("", b"")
    """Name and file of the run's tokeniser, if it is a file and we have it; for whoever asks."""
    needs: StageNeeds
    """What each stage asks of a device."""
    entries: dict[PeerId, tuple[str, ...]]
    """Addresses to begin with."""
    stage: int | None = None
    """The stage asked for; None: as the swarm decides."""
    is_founder: bool = False
    """May decide alone, before anybody else is there."""
    is_observer: bool = False
    saved: tuple[SavedState, ...] = ()
    """Our own checkpoints of one stage of this run, found whole on disk."""
    partial: dict[int, int] = field(default_factory=dict)
    """By stage, the round of a state of others' that a former life began to fetch."""
    guarded: tuple[Guarded, ...] = ()
    """Snapshots of other stages on our disk."""
    guard: GuardRules = field(default_factory=GuardRules)
    is_imported: bool = False
    """The run starts from a model that somebody has, never from its seed."""
    operators: tuple[str, ...] = ()
    """The peers that may tell this one to drain."""
    has_history: bool = False
    """This home has taken part before, whether or not anything of it can be used."""
    stays: bool = False
    """Stay after the run's end, until told to go."""
    agent: str = ""
    stall_after_s: float = 30.0
    """Without progress for so long, at least, is a stall."""
    pipeline_limits: PipelineLimits = field(default_factory=PipelineLimits)
    assignment_limits: AssignmentLimits = field(default_factory=AssignmentLimits)
    outer: OuterRules = field(default_factory=OuterRules)
    round_limits: RoundLimits = field(default_factory=RoundLimits)
