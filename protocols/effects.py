"""What happens to a machine (events) and what it wants done (effects). Frozen values, both.

    handle(event, now_s) -> list[Effect]

`now_s` is monotonic seconds from whoever drives the machine; only differences mean anything. There
are no absolute times on the wire.

The driver's duties: carry effects out in order; turn every outcome into an event; never drop one.
Timers are named: setting one again replaces it, so nothing has to be cancelled by handle.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import Any, Protocol

from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef, Job, JobFailure, JobResult
from swarmd.protocols.messages import Message
from swarmd.protocols.values import value


class Priority(IntEnum):
    """What goes first where a link is contended. Probes never wait behind tensors."""

    CONTROL = 0
    PIPELINE = 1
    MIX = 2
    STATE = 3


# ------------------------------------------------------------------------------------ events


@value
class Started:
    """First event of a machine's life."""


@value
class Arrived:
    """A decoded message from an authenticated peer.

    `payload`: the tensor that came with it; this machine owns the slot now. `payload_refused`:
    there was one, but no slot was free (or it was too large); its bytes are gone, answer BUSY.
    """

    peer: PeerId
    message: Message
    payload: BufferRef | None = None
    payload_refused: bool = False


@value
class Malformed:
    """Bytes from a peer that are no message. `code` is a rejection code; nothing came of it."""

    peer: PeerId
    code: str
    text: str


@value
class LinkUp:
    """Messages to and from `peer` flow."""

    peer: PeerId


@value
class LinkDown:
    """The link ended. `cause`: closed (a clean end, after a goodbye), lost (EOF or reset without
    one), stalled (took nothing for too long), dropped (by us), refused."""

    peer: PeerId
    cause: str


@value
class DialFailed:
    """No address of the peer answered. `causes` maps address to: refused, timeout, name_not_found,
    no_route, wrong_peer_id, wrong_run, error."""

    peer: PeerId
    causes: dict[str, str]


@value
class SendFailed:
    """A message did not leave: no link, or its queue is full (`cause`: no_link, full, lost)."""

    peer: PeerId
    message: Message
    cause: str


@value
class TimerFired:
    name: str


@value
class ComputeDone:
    job_id: int
    result: JobResult


@value
class ComputeFailed:
    job_id: int
    failure: JobFailure


@value
class ComputeLost:
    """The worker process died: every job in it is lost, and so is what it held.

    A `ComputeFailed` with the same code for each job it had or waited for came before this. `code`:
    worker_died or device_lost, or why a stage could not be loaded (model_does_not_fit ...).
    """

    text: str
    code: str = "worker_died"


@value
class ComputeReady:
    """A worker has loaded the stage and takes jobs. `info`: what it reported (sizes, device)."""

    info: dict[str, Any]


@value
class FileRead:
    """The bytes asked for lie in `buffer`, which this machine owns now."""

    token: int
    buffer: BufferRef


@value
class FileWritten:
    token: int


@value
class FileHashed:
    """BLAKE2b-256 of each piece of `piece_bytes`, in order; the last may be shorter."""

    token: int
    size_bytes: int
    hashes: tuple[bytes, ...]


@value
class FileFailed:
    """`code`: hash_mismatch (nothing was written), disk_full, disk_error, missing, no_slot."""

    token: int
    code: str
    text: str


@value
class LoopLag:
    """The driver itself was late by `lag_s`: local health, not the others' fault."""

    lag_s: float


@value
class Command:
    """The operator's word, or the daemon's: drain, pause, resume, pin, cordon, stop ..."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)


Event = (
    Started
    | Arrived
    | Malformed
    | LinkUp
    | LinkDown
    | DialFailed
    | SendFailed
    | TimerFired
    | ComputeDone
    | ComputeFailed
    | ComputeLost
    | ComputeReady
    | FileRead
    | FileWritten
    | FileHashed
    | FileFailed
    | LoopLag
    | Command
)


# ----------------------------------------------------------------------------------- effects


@value
class Send:
    """Send a message, with a tensor if `payload` is given.

    The slot stays the machine's: it may `Release` it at once, the driver keeps the bytes until they
    have left.
    """

    peer: PeerId
    message: Message
    payload: BufferRef | None = None
    priority: Priority = Priority.CONTROL


@value
class Dial:
    """Have a link to `peer`. Ends as LinkUp or DialFailed."""

    peer: PeerId
    addresses: tuple[str, ...]


@value
class Locate:
    """Where the peer's bulk plane listens, by its own signed record."""

    peer: PeerId
    bulk_addresses: tuple[str, ...]


@value
class Drop:
    """Close the link, whatever hangs in it."""

    peer: PeerId
    reason: str


@value
class SetTimer:
    name: str
    delay_s: float


@value
class ClearTimer:
    name: str


@value
class Compute:
    """Give a job to the lane. `job_id` comes back in ComputeDone or ComputeFailed, once.

    The slots it reads stay the machine's: it may `Release` them at once, the lane keeps the bytes
    until the job has ended.
    """

    job_id: int
    job: Job


@value
class LoadStage:
    """Have a worker hold `stage`, in place of what it holds. Ends as ComputeReady or ComputeLost.

    `state`: a path to start from; None: the start state that every peer can make by itself.
    """

    stage: int
    state: str | None = None


@value
class UnloadStage:
    """End the worker, so that the device is free. No event follows; jobs it had are lost."""


@value
class ReadFile:
    """Read a piece of a file into a slot. Ends as FileRead or FileFailed, as all file effects do
    once, with the same token. Paths are names below the peer's own state directory."""

    token: int
    path: str
    offset_bytes: int
    size_bytes: int


@value
class WriteFile:
    """Write a slot's bytes at an offset, if their BLAKE2b-256 is `hash`. The driver holds the slot
    meanwhile. Ends as FileWritten or FileFailed."""

    token: int
    path: str
    offset_bytes: int
    buffer: BufferRef
    hash: bytes


@value
class HashFile:
    """Ends as FileHashed or FileFailed."""

    token: int
    path: str
    piece_bytes: int


@value
class RemoveFile:
    """Not wanted any more. Nothing is told: what cannot be removed is removed at the next start."""

    path: str


@value
class KeepCheckpoint:
    """Make a checkpoint of the state file at `path`, which is gone afterwards. Ends as FileWritten,
    once it will survive anything, or FileFailed. Its name is `name_of_saved(stage, round)`."""

    token: int
    path: str
    stage: int
    round: int
    step: int
    ledger: tuple[bytes, ...]
    guarded: bool = False
    """Of another stage, kept for others: its name is `name_of_guarded(stage, round)`."""


@value
class Release:
    """This machine no longer needs the slot."""

    buffer: BufferRef


@value
class Emit:
    """Something worth telling: to the log, the event file, status, and to the machine above.

    `name` is stable; the names that leave the process are those of `swarmd.event`.
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


Effect = (
    Send
    | Dial
    | Locate
    | Drop
    | SetTimer
    | ClearTimer
    | Compute
    | LoadStage
    | UnloadStage
    | ReadFile
    | WriteFile
    | HashFile
    | RemoveFile
    | KeepCheckpoint
    | Release
    | Emit
)


class Machine(Protocol):
    """Every protocol is one of these."""

    def handle(self, event: Event, now_s: float) -> list[Effect]: ...
