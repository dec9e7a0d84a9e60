"""The JSON objects of commands that check, measure or produce: doctor, netcheck, bench, local."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from swarmd.json_record import Ratio, Record, part, record
from swarmd.peers_record import LinkPath

# ----------------------------------------------------------------------------------------- checking


@part
class Finding:
    check: str
    severity: Literal["ok", "warn", "error"]
    text: str
    fix: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@part
class Fit:
    stage_bytes: int | None = None
    device_bytes: int | None = None
    micro_batch: int | None = None
    stages_possible: int | None = None


@part
class Verdict:
    """What this machine could do."""

    stages: int | None = None
    tokens_per_s: float | None = None
    needs_up_bytes_per_s: float | None = None
    text: str | None = None


@record("doctor")
class Doctor(Record):
    findings: list[Finding] = field(default_factory=list)
    supported: bool
    fit: Fit = field(default_factory=Fit)
    verdict: Verdict = field(default_factory=Verdict)


@part
class InterfaceAddress:
    addr: str
    interface: str | None = None
    announced: bool
    reachable: Literal["yes", "no", "unknown"] = "unknown"
    why: str | None = None


@part
class Neighbour:
    peer: str
    stage: int | None = None
    path: LinkPath | None = None
    rtt_ms: float | None = None
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None


@record("netcheck")
class Netcheck(Record):
    addresses: list[InterfaceAddress] = field(default_factory=list)
    nat: Literal["none", "endpoint_independent", "symmetric", "unknown"] = "unknown"
    ipv4: bool | None = None
    ipv6: bool | None = None
    udp: bool | None = None
    relays: list[str] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)


# ------------------------------------------------------------------------------------------ results


@part
class ExportedFile:
    name: str
    bytes: int
    hash: str


@record("export")
class Export(Record):
    dir: str
    round: int | None = None
    """The newest of `rounds`, which are by stage."""
    rounds: list[int] = field(default_factory=list)
    files: list[ExportedFile] = field(default_factory=list)
    signers: list[str] = field(default_factory=list)
    complete: bool


@record("eval")
class Eval(Record):
    """Loss in nats per token on the held-out part."""

    from_: str
    round: int | None = None
    """The newest of `rounds`, which are by stage."""
    rounds: list[int] = field(default_factory=list)
    tokens: int
    loss: float | None
    perplexity: float | None
    """None: too large for a number."""


@part
class LinkRow:
    plane: Literal["raw_tcp", "bulk", "libp2p"]
    message_bytes: int
    mb_per_s: float | None = None
    cpu_s_per_gb_sender: float | None = None
    cpu_s_per_gb_receiver: float | None = None
    rtt_p50_ms: float | None = None
    rtt_p99_ms: float | None = None


@part
class LinkTransfer:
    """Much in one go over the bulk plane, and what it took in memory on each side."""

    bytes: int
    mb_per_s: float
    rss_growth_bytes_sender: int
    rss_growth_bytes_receiver: int


@record("bench_links")
class BenchLinks(Record):
    """Two processes on loopback. Medians; round trips are those of a message and a small answer."""

    rows: list[LinkRow] = field(default_factory=list)
    transfer: LinkTransfer
    repeats: int
    cores: int
    load_before: float
    """One-minute load average of the machine before the first run."""


@part
class DeviceRow:
    """The best product of matrices, in the numbers that stages compute with."""

    device: str
    name: str
    uuid: str | None = None
    threads: int | None = None
    """Of a CPU."""
    dtype: str
    flops_per_s: float


@record("bench_device")
class BenchDevice(Record):
    rows: list[DeviceRow] = field(default_factory=list)


@part
class MixRow:
    """Of a case with a fault: `seconds_per_round` is the longest round that the others had from
    then on, `seconds_per_round_after` the median of those that followed."""

    system: str
    floats: int
    case: Literal["healthy", "frozen", "killed"]
    seconds_per_round: float | None = None
    seconds_per_round_after: float | None = None
    rounds_failed: int = 0
    """Of survivors, that averaged nothing."""
    rounds_partial: int = 0
    """Of survivors, that averaged a part: without somebody, or not the whole vector. After a strike
    every round is, for nobody is told of it; any in a healthy case, and its seconds say little."""
    processes_per_peer: float | None = None
    rss_bytes_per_peer: int | None = None
    survivors_agree: bool | None = None
    """Whether they end with the same values, to the bit."""


@record("bench_mix")
class BenchMix(Record):
    rows: list[MixRow] = field(default_factory=list)


@part
class PipelineRow:
    """Tokens a second of a swarm and of a plain loop with as many threads. Medians."""

    stages: int
    peers: int
    threads: int
    repeats: int
    tokens_per_s: float
    loop_tokens_per_s: float
    ratio: float
    ratio_min: float
    ratio_max: float


@record("bench_pipeline")
class BenchPipeline(Record):
    rows: list[PipelineRow] = field(default_factory=list)


@part
class QualityRow:
    """A training with replicas beside the plain loop over the same tokens. Losses are held-out,
    in nats per token."""

    stages: int
    replicas: int
    mixing: str
    inner_steps: int
    alpha: float
    mu: float
    seed: int
    steps: int
    rounds: int
    rounds_partial: int
    local_batch_sequences: float
    loss_heldout: float
    """Of the replicas' averaged weights."""
    loss_replica: float
    """Of single replicas, their mean."""
    loss_baseline: float
    loss_gap_ratio: float


@record("bench_quality")
class BenchQuality(Record):
    rows: list[QualityRow] = field(default_factory=list)


@part
class AuditCounts:
    samples: int | None = None
    gaps: int | None = None
    repeats: int | None = None


@part
class LocalBoundary:
    """One token's way over one boundary: as dense 16-bit elements, and as it was sent."""

    raw_bytes_per_token: int | None = None
    wire_bytes_per_token: float | None = None
    compression_ratio: float | None = None


@part
class LocalEvent:
    """One `--event`, when it was due and what became of it."""

    event: str
    at_s: float | None = None
    outcome: Literal["done", "failed", "not_reached"]


@part
class LocalPeer:
    name: str
    id: str | None = None
    pid: int | None = None
    stage: int | None = None
    exit_code: int | None = None
    planned_exit: bool = False
    tokens: int | None = None
    tokens_per_s: float | None = None


@record("local")
class Local(Record):
    """The last line of `swarmd local`. Losses in nats per token."""

    outcome: Literal[
        "target_reached", "target_missed", "peer_crashed", "invariant_broken", "timed_out",
        "interrupted", "terminated",
    ]  # fmt: skip
    failed_conditions: list[str] = field(default_factory=list)
    exit_code: int
    seed: int
    command: str
    dir: str
    wall_s: float
    steps: int | None = None
    rounds: int | None = None
    rounds_partial: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    loss_target: float | None = None
    loss_heldout: float | None = None
    baseline_loss: float | None = None
    loss_gap_ratio: float | None = None
    baseline_tokens_per_s: float | None = None
    tokens_total: int | None = None
    tokens_per_s: float | None = None
    compute_utilisation: Ratio | None = None
    comm_s_per_round: float | None = None
    raw_bytes: int | None = None
    wire_bytes: int | None = None
    compression_ratio: float | None = None
    boundary: LocalBoundary = field(default_factory=LocalBoundary)
    faults: int | None = None
    recovery_s_max: float | None = None
    lost_micro_batches: int | None = None
    rejected_updates: int | None = None
    """In mixes, by all peers that lived to the end."""
    audit: AuditCounts = field(default_factory=AuditCounts)
    events: list[LocalEvent] = field(default_factory=list)
    peers: list[LocalPeer] = field(default_factory=list)


@record("sim")
class Sim(Record):
    """The end of a simulation. The same seed gives the same `trace_hash`."""

    outcome: str
    exit_code: int
    seed: int
    command: str
    trace_hash: str | None = None
    events: int | None = None
    virtual_s: float | None = None
    faults_drawn: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    rounds: int | None = None
    tokens_per_s: float | None = None
    bytes_per_peer_per_s: float | None = None
    messages_per_peer_per_s: float | None = None
    wait_share_by_reason: dict[str, float] = field(default_factory=dict)
