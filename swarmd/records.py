"""The JSON objects of docs/cli.md section 13 that answer a question or report a deed.

As in status.py: typed, complete, null when unknown. A command without an object of its own answers
with `Done`. Checks and measurements have theirs in result_records.py.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from swarmd.json_record import Record, Time, part, record

# ------------------------------------------------------------------------------------------ looking


@record("event")
class Event(Record):
    """Something that happened. The `round_*` events carry the status's `last_round` in `data`."""

    seq: int
    at: Time
    event: str
    level: Literal["debug", "info", "warning", "error"] = "info"
    peer: str | None = None
    stage: int | None = None
    round: int | None = None
    code: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@part
class PlannedStage:
    stage: int
    peers: list[str] = field(default_factory=list)


@part
class PlannedPeer:
    id: str
    name: str | None = None
    stage: int | None = None
    proposed: int | None = None
    why: str
    """keep, pin, join, fill, move; or, without a stage: flapping, does_not_fit, cordoned, draining,
    observer."""
    pinned: bool = False
    cordoned: bool = False
    lacks_data: bool = False
    """Can hold no first stage."""


@record("plan")
class Plan(Record):
    """The present and the proposed stage map, and why a move is or is not made."""

    map: list[PlannedStage] = field(default_factory=list)
    proposal: list[PlannedStage] = field(default_factory=list)
    gain_share: float | None = None
    decision: Literal["keep", "move", "fill"]
    why: str
    next_check_s: float | None = None
    peers: list[PlannedPeer] = field(default_factory=list)
    """Each peer's place and why it is that one, by id."""


@part
class Contributor:
    id: str
    name: str | None = None
    micro_batches: int | None = None
    tokens: int | None = None
    rounds: int | None = None
    receipts: int | None = None
    tokens_witnessed: int | None = None
    first_at: Time | None = None
    last_at: Time | None = None


@record("contributions")
class Contributions(Record):
    """Counted work by peer, with receipts to prove it. Peers by id.

    `micro_batches` and `tokens`: of a head, what its ledger entries say is done; of others, what
    their neighbours witnessed. `tokens_witnessed`: what neighbours witnessed, for all of them.
    """

    peers: list[Contributor] = field(default_factory=list)
    as_of_round: int | None = None


@record("audit")
class Audit(Record):
    """`gaps`: never counted. `repeats`: counted more than once. `clean`: neither."""

    samples_total: int | None = None
    samples_completed: int | None = None
    gaps: list[int] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)
    processed_twice: int | None = None
    open_leases: int | None = None
    clean: bool
    covered_until: int | None = None


# ------------------------------------------------------------------------------------------ answers


@part
class ErrorPart:
    code: str
    exit_code: int
    message: str
    hint: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@record("error")
class ErrorRecord(Record):
    """Why a command failed; `exit_code` is the process status."""

    error: ErrorPart


@record("done")
class Done(Record):
    """The answer of every command without an object of its own."""

    command: str
    outcome: str = "done"
    path: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@record("leave")
class Leave(Record):
    """What a drain finished, gave back, handed over and dropped."""

    outcome: Literal["drained", "drain_incomplete", "stopped_now", "asked"]
    """asked: another peer was told to, and has begun."""
    micro_batches_finished: int | None = None
    leases_returned: int | None = None
    state_handed_to: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    drain_s: float | None = None
    exit_code: int


@record("joined")
class Joined(Record):
    """`join --detach`: the daemon that answers now."""

    pid: int
    home: str
    peer_id: str
    addresses: list[str] = field(default_factory=list)
    port: int | None = None
    run_id: str | None = None
    run_link: str | None = None
    already_running: bool = False


@record("run")
class Run(Record):
    """A run's description, as the run file would say it."""

    id: str
    name: str
    link: str | None = None
    description: dict[str, Any] = field(default_factory=dict)


@record("identity")
class IdentityRecord(Record):
    id: str
    name: str | None = None
    file: str
    mode: str
    incarnation: int | None = None


@part
class ConfigValue:
    value: Any = None
    origin: str


@record("config")
class Config(Record):
    """Effective values of mine, and where each comes from."""

    values: dict[str, ConfigValue] = field(default_factory=dict)


@part
class DaemonRow:
    pid: int
    home: str
    run_id: str | None = None
    state: str | None = None
    reason_code: str | None = None


@record("ps")
class Ps(Record):
    """The daemons of this user on this host, by pid."""

    daemons: list[DaemonRow] = field(default_factory=list)


@record("version")
class Version(Record):
    version: str
    protocol_min: int
    protocol_max: int
    python: str
    platform: str
    supported: bool
