"""From a run and the peer's own settings to the machine that takes part in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import trio

from swarmd import __version__
from swarmd.identity import verify
from swarmd.named_limits import limits_of
from swarmd.net.transport import Transport
from swarmd.node.files import names_in
from swarmd.node.life import Life
from swarmd.node.saved import FoundStates
from swarmd.partition import flops_per_token, stage_bytes
from swarmd.protocols import assignment, lease_limits, membership_limits
from swarmd.protocols.guard import GuardRules
from swarmd.protocols.ids import PeerId
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.protocols.saved_states import fetched_in
from swarmd.run_config import RunConfig
from swarmd.tokeniser_files import NAME, find

IN_FLIGHT_MIN = 2
"""One is computed while the next one arrives. Above that a peer holds one for each stage: more keep
workers busier, and make gradients older. What matters is their number against the micro-batches of
a step (algorithms 3.3): 8 in flight at 4 a step ended 7 % above the plain loop after 60 steps of
`tiny` on four stages, 5 at 4 a step 6.3 % after 120."""


def make_machine(
    life: Life,
    run: RunConfig,
    transport: Transport,
    entries: Mapping[PeerId, tuple[str, ...]],
    found: FoundStates,
    *,
    is_founder: bool,
    lacks_data: bool,
) -> PeerMachine:
    """Not started. `found`: what this home holds of the run; `transport` listens already.

    is_founder: may decide before anybody else is there. A home that took part before never is: it
    would begin a second swarm beside the first. lacks_data: can hold no first stage.
    """
    is_local = run.time_scale == "local"
    identity = life.identity
    membership = Membership(
        _first_record(life, run, transport, lacks_data=lacks_data),
        membership_limits.local() if is_local else membership_limits.wan(),
        identity.sign,
        verify,
        life.rng("membership"),
    )
    leases = LeaseBook(
        life.peer,
        life.incarnation,
        run.shape,
        lease_limits.local() if is_local else lease_limits.wan(),
        sign=identity.sign,
        verify=verify,
    )
    setup = PeerSetup(
        shape=run.shape,
        run_body=run.canonical(),
        tokeniser=_tokeniser(life, run),
        needs=_stage_needs(run),
        is_founder=is_founder,
        assignment_limits=assignment.local() if is_local else assignment.wan(),
        entries={peer: places for peer, places in entries.items() if peer != life.peer},
        stage=life.config.wanted_stage,
        is_observer=life.config.observe,
        saved=found.saved,
        guarded=found.guarded,
        guard=_guard_rules(life, run),
        partial=fetched_in(names_in(life.states)),
        is_imported=bool(run.init_hash),
        operators=run.operators,
        has_history=found.has_history,
        stays=life.stays,
        agent=f"swarmd/{__version__}",
        stall_after_s=limits_of(run.time_scale).stall_after_s_min,
        pipeline_limits=pipeline_limits(run),
        outer=OuterRules(**asdict(run.outer)),
        round_limits=RoundLimits.local() if is_local else RoundLimits(),
    )
    return PeerMachine(setup, membership, leases, life.rng("peer"), trio.current_time())


def pipeline_limits(run: RunConfig) -> PipelineLimits:
    """Enough in flight to keep every stage busy, few enough that steps do not mix."""
    in_flight = max(IN_FLIGHT_MIN, run.stages)
    return PipelineLimits(in_flight_max=in_flight, forward_queue_max=max(2, in_flight // 2))


def _tokeniser(life: Life, run: RunConfig) -> tuple[str, bytes]:
    """For newcomers; nothing where it is no file, or we have none."""
    name = run.data.tokeniser
    body = find(name, life.home.cache) if NAME.fullmatch(name) else None
    return ("", b"") if body is None else (name, body)


def _guard_rules(life: Life, run: RunConfig) -> GuardRules:
    """Half of what this peer may use on disk, if it says so, is for others."""
    limit = life.config.disk_limit
    quota = GuardRules().bytes_max if limit is None else limit // 2
    return GuardRules(rounds=run.guard_rounds, copies=run.guard_copies, bytes_max=quota)


def _first_record(
    life: Life, run: RunConfig, transport: Transport, *, lacks_data: bool
) -> PeerRecord:
    """What the others learn of us first."""
    return PeerRecord(
        peer=life.peer,
        incarnation=life.incarnation,
        version=0,
        run_id=run.run_id,
        name=life.name[:64],
        phase="joining",
        observer=life.config.observe,
        lacks_data=lacks_data,
        addresses=tuple(_without_peer(a) for a in transport.addresses()),
        bulk_addresses=tuple(transport.bulk_addresses()),
    )


def _without_peer(address: str) -> str:
    return address.partition("/p2p/")[0]


def _stage_needs(run: RunConfig) -> assignment.StageNeeds:
    """What each stage asks of a device: arithmetic a token, and memory for weights and moments."""
    stages = range(run.stages)
    return assignment.StageNeeds(
        costs=tuple(flops_per_token(run, stage) for stage in stages),
        memory_bytes=tuple(stage_bytes(run, stage) for stage in stages),
    )
