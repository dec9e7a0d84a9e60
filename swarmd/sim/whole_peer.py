"""The whole peer in the simulator: the very PeerMachine that the daemon runs, made by a factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarmd.protocols import lease_limits
from swarmd.protocols.assignment import AssignmentLimits, equal_needs
from swarmd.protocols.guard import GuardRules
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.protocols.saved_states import fetched_in
from swarmd.sim.files import guarded_on, saved_on
from swarmd.sim.sim_peer import Factory, PeerSpec

StageOf = Callable[[PeerSpec], int | None]


def whole_factory(
    limits: MembershipLimits,
    stage_of: StageOf,
    pipeline_limits: PipelineLimits | None = None,
    placing: AssignmentLimits | None = None,
    guard: GuardRules | None = None,
) -> Factory:
    """`stage_of` says which stage a peer asks for; None: as the swarm decides."""

    def make(spec: PeerSpec) -> PeerMachine:
        membership = spec.membership_of(limits, phase="joining", recent_starts=spec.recent_starts)
        leases = LeaseBook(
            spec.peer,
            spec.incarnation,
            spec.shape,
            lease_limits.local(limits.dead_after_s),
            sign=spec.sign,
            verify=spec.verify,
        )
        saved = saved_on(spec.disk)
        setup = PeerSetup(
            shape=spec.shape,
            run_body=b"simulated",
            needs=equal_needs(spec.shape.stages),
            entries=dict(spec.entries),
            stage=stage_of(spec),
            saved=saved,
            has_history=bool(saved or spec.disk.get("guarded")),
            guard=guard or GuardRules(),
            guarded=guarded_on(spec.disk),
            partial=fetched_in(spec.disk.get("files", ())),
            is_founder=not spec.entries,
            assignment_limits=placing or AssignmentLimits(),
            pipeline_limits=pipeline_limits or PipelineLimits(),
        )
        return PeerMachine(setup, membership, leases, spec.rng, spec.now_s)

    return make


def fixed_map(stages: Mapping[str, int]) -> StageOf:
    """By peer name."""
    return lambda spec: stages[spec.name]
