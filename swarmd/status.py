"""What `swarmd status --json` shows: one typed record, every field of docs/cli.md section 12.

The daemon fills it, the command line shows it, Prometheus text follows from its names
(metrics_text.py). A leaf: standard library only, so that both sides may import it.

Fields are null while nobody has measured them, never 0. Lists are empty where nothing has happened.
Nested objects are always there (their fields may be null), except `stage`: null for an observer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, Literal

from swarmd.health import Health
from swarmd.json_record import Ratio, Record, Time, part, record

State = Literal[
    "starting", "joining", "syncing", "standby", "training", "waiting", "paused", "draining",
    "leaving", "stopped", "failed",
]  # fmt: skip
EtaBasis = Literal["measured", "deadline", "schedule", "unknown"]
Reachable = Literal["yes", "no", "unknown"]
RoundPhase = Literal["inner", "mix2", "commit"]
RoundOutcome = Literal["committed", "partial", "skipped"]


# ------------------------------------------------------------------------------------- who and what


@part
class Device:
    """Where this peer computes. `micro_batch`: sequences at a time, after any lowering."""

    kind: Literal["cpu", "cuda", "mps"] | None = None
    name: str | None = None
    uuid: str | None = None
    threads: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_peak_bytes: int | None = None
    micro_batch: int | None = None


@part
class Address:
    """One address others are told, and whether they say that it works."""

    addr: str
    origin: Literal["listen", "announce", "observed"]
    reachable: Reachable = "unknown"


@part
class PeerPart:
    id: str
    name: str
    incarnation: int
    pid: int
    home: str
    started_at: Time
    observer: bool = False
    reachable: Reachable = "unknown"
    device: Device = field(default_factory=Device)
    addresses: list[Address] = field(default_factory=list)


@part
class ProtocolRange:
    """Versions of the protocol between peers."""

    ours_min: int | None = None
    ours_max: int | None = None
    run_min: int | None = None
    run_max: int | None = None


@part
class RunPart:
    """Only `id` and `link` are known until the description has been fetched."""

    id: str | None = None
    name: str | None = None
    link: str | None = None
    stages: int | None = None
    inner_steps: int | None = None
    total_steps: int | None = None
    peers_min: int | None = None
    protocol: ProtocolRange = field(default_factory=ProtocolRange)


# --------------------------------------------------------------------------------------- the reason


@part
class Subject:
    """What the reason is about. `addresses`: with `bootstrap_unreachable`, each with its cause."""

    stage: int | None = None
    peer: str | None = None
    round: int | None = None
    addresses: list[dict[str, Any]] = field(default_factory=list)


@part
class ReasonPart:
    """Why this state. `code` is stable, `text` may be reworded."""

    code: str
    text: str
    since: Time
    for_s: float
    eta_s: float | None = None
    eta_basis: EtaBasis = "unknown"
    subject: Subject = field(default_factory=Subject)
    hint: str | None = None
    retry_in_s: float | None = None


# ------------------------------------------------------------------------------------------- stages


@part
class StagePart:
    """The stage of the first device. `layers`: first and last, inclusive."""

    index: int
    layers: tuple[int, int] | None = None
    replicas: int | None = None
    basis_version: int | None = None
    data_rank: int | None = None


WORST_FIRST: tuple[State, ...] = (
    "failed", "stopped", "leaving", "draining", "waiting", "starting", "joining", "syncing",
    "paused", "standby", "training",
)  # fmt: skip
"""How far each state is from work being done."""


@part
class Slot:
    """One device. A further one has a daemon of its own, and so a peer and a home."""

    device: str
    stage: int | None = None
    state: State
    reason_code: str
    tokens_per_s: float | None = None
    peer: str | None = None
    """Null: this one."""
    home: str | None = None


def rank_of(state: str | None) -> int:
    """Lower is worse; a state of another version is none to worry about."""
    known: tuple[str, ...] = WORST_FIRST
    return known.index(state) if state in known else len(known)


def worst_first(slots: Iterable[Slot]) -> list[Slot]:
    """Whoever looks at one device only sees the one that needs looking at. As given, if equal."""
    return sorted(slots, key=lambda slot: rank_of(slot.state))


@part
class StageMapEntry:
    """Who holds a stage, in this peer's view. Peers by id."""

    stage: int
    peers: list[str] = field(default_factory=list)
    alive: int
    contributing: int


@part
class PeerCounts:
    known: int | None = None
    alive: int | None = None
    suspect: int | None = None
    active: int | None = None
    contributing: int | None = None
    observers: int | None = None


# ----------------------------------------------------------------------------------------- training


@part
class Progress:
    """Losses in nats per token. `disagreement` = norm(x - xmix) / norm(D) of this stage."""

    inner_step: int | None = None
    outer_round: int | None = None
    round_phase: RoundPhase | None = None
    round_elapsed_s: float | None = None
    round_median_s: float | None = None
    eta_s: float | None = None
    loss: float | None = None
    loss_first: float | None = None
    loss_ema: float | None = None
    loss_last_tenth: float | None = None
    """Mean over the last tenth of the run's steps, of what this peer saw."""
    loss_heldout: float | None = None
    tokens_total: int | None = None
    disagreement: float | None = None
    disagreement_js: float | None = None


@part
class Throughput:
    """Over the last 10 rounds; `_total`: since the start."""

    tokens_per_s_swarm: float | None = None
    tokens_per_s_self: float | None = None
    flops_per_s: float | None = None
    peak_flops_per_s: float | None = None
    mfu: Ratio | None = None
    compute_s: float | None = None
    wait_s: float | None = None
    compute_utilisation: Ratio | None = None
    compute_s_total: float | None = None
    wait_s_total: float | None = None
    compute_utilisation_total: Ratio | None = None


@part
class RoundTraffic:
    """One outer round's exchange and what it moved."""

    mix1_s: float | None = None
    mix2_s: float | None = None
    blocking_s: float | None = None
    hidden_s: float | None = None
    raw_bytes_sent: int | None = None
    wire_bytes_sent: int | None = None
    raw_bytes_received: int | None = None
    wire_bytes_received: int | None = None


@part
class TotalTraffic:
    """Wire: what crossed the sockets of both planes. Raw: what an uncompressed pipeline sends."""

    raw_bytes_sent: int | None = None
    wire_bytes_sent: int | None = None
    raw_bytes_received: int | None = None
    wire_bytes_received: int | None = None
    compression_ratio: float | None = None


@part
class BoundaryTraffic:
    """What activations and gradients cost. Wire: all that crossed the sockets but the frames of
    mixes and states, so gossip and encryption count against it."""

    raw_bytes_sent: int | None = None
    wire_bytes_sent: int | None = None
    compression_ratio: float | None = None


@part
class Communication:
    comm_s_per_round: float | None = None
    """Median over 10 rounds."""
    last_round: RoundTraffic = field(default_factory=RoundTraffic)
    total: TotalTraffic = field(default_factory=TotalTraffic)
    boundary: BoundaryTraffic = field(default_factory=BoundaryTraffic)
    bytes_per_step: float | None = None
    """Sent through all sockets, for each of the last inner steps."""


@part
class Missing:
    """A replica whose update is not in a round's result, and why (a rejection code)."""

    peer: str
    code: str


@part
class LastRound:
    """`included` names exactly those whose update is in the result."""

    round: int | None = None
    outcome: RoundOutcome | None = None
    planned: list[str] = field(default_factory=list)
    included: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    late_updates: int | None = None
    rejected_updates: int | None = None


@part
class Totals:
    rounds_committed: int | None = None
    rounds_partial: int | None = None
    rounds_skipped: int | None = None
    late_updates: int | None = None
    rejected_updates: int | None = None


# ------------------------------------------------------------------------------ faults and transfer


@part
class LastFault:
    code: str | None = None
    peer: str | None = None
    stage: int | None = None
    at: Time | None = None


@part
class Faults:
    """Recovery: last useful work before a fault to first useful work after it."""

    count: int | None = None
    recovery_s_last: float | None = None
    recovery_s_max: float | None = None
    lost_micro_batches: int | None = None
    redone_micro_batches: int | None = None
    lost_tokens: int | None = None
    lost_inner_steps: int | None = None
    """Of this peer's stage: taken, and in no state that was left."""
    last: LastFault = field(default_factory=LastFault)


@part
class Join:
    started_at: Time | None = None
    first_contribution_s: float | None = None
    rejoins: int | None = None
    """How often this process took a higher incarnation: after a sleep, or to outdo an older life
    that others still knew of."""


@part
class Donor:
    peer: str
    bytes: int
    outcome: str


@part
class StateTransfer:
    """Progress never falls and never passes the total."""

    manifest_round: int | None = None
    manifest_hash: str | None = None
    verified: bool | None = None
    bytes_total: int | None = None
    bytes_done: int | None = None
    bytes_refetched: int | None = None
    donors: list[Donor] = field(default_factory=list)
    serving_now: int | None = None


@part
class Refusals:
    """What was turned away at this peer's ports since the start: connections and messages of
    whoever knocked there, by code."""

    total: int | None = None
    by_code: dict[str, int] = field(default_factory=dict)


@part
class DataPart:
    leases_held: int | None = None
    samples_completed: int | None = None
    samples_returned: int | None = None
    samples_expired: int | None = None
    samples_repeated: int | None = None
    """Counted more than once: the audit's repeats."""
    batch_samples_global: int | None = None


@part
class Contribution:
    """Over all lives of this peer. Every other peer shows the same for it, after at most one outer
    round; in its first life it counts by itself until then."""

    micro_batches: int | None = None
    tokens: int | None = None
    rounds: int | None = None
    receipts: int | None = None


@part
class Move:
    """A change of stage."""

    from_: int | None = None
    to: int | None = None
    why: str | None = None
    at: Time | None = None


@part
class Moves:
    count: int | None = None
    last: Move = field(default_factory=Move)


# ------------------------------------------------------------------------------- resources and time


@part
class Resources:
    """Of the daemon and its children. `cpu_share` in cores, over 10 s."""

    rss_bytes: int | None = None
    cpu_share: float | None = None
    threads: int | None = None
    open_fds: int | None = None
    sockets: int | None = None
    disk_used_bytes: int | None = None
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    """Through all sockets, over 10 s."""
    worker_restarts: int | None = None
    worker_busy_s: float | None = None
    """Wall seconds of the compute worker inside jobs."""
    worker_cpu_s: float | None = None
    """Its CPU seconds there, of all its threads; fewer than the busy ones on a crowded machine."""


@part
class TimePart:
    """`by_reason` adds up to the uptime."""

    uptime_s: float
    by_reason: dict[str, float] = field(default_factory=dict)


@record("status")
class Status(Record):
    """This peer, and its swarm as this peer sees it."""

    peer: PeerPart
    run: RunPart = field(default_factory=RunPart)
    state: State
    reason: ReasonPart
    health: Health = field(default_factory=Health)
    stage: StagePart | None = None
    slots: list[Slot] = field(default_factory=list)
    """The device that is worst off first."""
    stage_map: list[StageMapEntry] = field(default_factory=list)
    stage_map_version: str | None = None
    peers: PeerCounts = field(default_factory=PeerCounts)
    progress: Progress = field(default_factory=Progress)
    throughput: Throughput = field(default_factory=Throughput)
    communication: Communication = field(default_factory=Communication)
    last_round: LastRound = field(default_factory=LastRound)
    totals: Totals = field(default_factory=Totals)
    faults: Faults = field(default_factory=Faults)
    join: Join = field(default_factory=Join)
    state_transfer: StateTransfer = field(default_factory=StateTransfer)
    data: DataPart = field(default_factory=DataPart)
    contribution: Contribution = field(default_factory=Contribution)
    moves: Moves = field(default_factory=Moves)
    refused: Refusals = field(default_factory=Refusals)
    limits: dict[str, float | None] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    time: TimePart
    injection: list[str] = field(default_factory=list)
