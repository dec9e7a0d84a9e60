"""The live picture of a peer and its swarm: `status --watch` and `join` on a terminal.

What `swarmd status` shows, then who holds which stage, the course of loss and speed, and the links.
Everything that changes with time is of this view's own memory: a watch that has just begun has no
course yet. Nothing rests on colour, and at 60 columns everything can still be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from swarmd.cli import format as f
from swarmd.cli.layout import row, sparkline
from swarmd.cli.output import Printer
from swarmd.cli.status_view import status_lines
from swarmd.peers_record import PeerRow
from swarmd.status import Status

POINTS_MAX = 600
"""Ten minutes at one a second."""
SPARK_WIDTH = 16
LINKS_SHOWN = 6
PEERS_A_STAGE = 6


class Course:
    """Losses and rates since this view began."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=POINTS_MAX)
        self.rates: deque[float] = deque(maxlen=POINTS_MAX)

    def add(self, status: Status) -> None:
        loss, rate = status.progress.loss, status.throughput.tokens_per_s_self
        if loss is not None and (not self.losses or self.losses[-1] != loss):
            self.losses.append(loss)
        if rate is not None:
            self.rates.append(rate)


def live_lines(
    status: Status, peers: Sequence[PeerRow], course: Course, printer: Printer
) -> list[str]:
    """The whole picture."""
    width = printer.width
    return [
        *status_lines(status, printer),
        "",
        *_stages(status, peers, width),
        *_round(status, width),
        *_course(course, width),
        *_links(peers, width),
    ]


def _stages(status: Status, peers: Sequence[PeerRow], width: int) -> list[str]:
    """`stage 0    alder ·k4Qe* · birch ·9aRm suspect`."""
    rows = {peer.id: peer for peer in peers}
    lines: list[str] = []
    for held in status.stage_map:
        names = [_name(rows.get(peer), peer) for peer in held.peers[:PEERS_A_STAGE]]
        more = len(held.peers) - len(names)
        coming = [
            f"{_name(peer, peer.id)} on its way"
            for peer in peers
            if peer.stage == held.stage and peer.id not in held.peers and peer.liveness == "alive"
        ]
        names += coming[: PEERS_A_STAGE - len(names)] + ([f"{more} more"] if more > 0 else [])
        lines += row(f"stage {held.stage}", names or ["nobody"], width)
    return lines


def _name(peer: PeerRow | None, peer_id: str) -> str:
    if peer is None:
        return f"·{peer_id[-4:]}"
    star = "*" if peer.self else ""
    mark = "" if peer.liveness in ("alive", None) else f" {peer.liveness}"
    return f"{f.peer(peer.name, peer.id)}{star}{mark}"


def _round(status: Status, width: int) -> list[str]:
    """Where the outer round stands, and what the last exchange took."""
    phase, last = status.progress.round_phase, status.communication.last_round
    words = {"inner": "inner steps", "mix2": "mixing progress", "commit": "outer step"}
    parts = [
        None if phase is None else words.get(phase, phase),
        None if last.mix1_s is None else f"parameters took {f.duration(last.mix1_s)}",
        None if last.hidden_s is None else f"{f.duration(last.hidden_s)} of that hidden",
        None if last.mix2_s is None else f"progress took {f.duration(last.mix2_s)}",
    ]
    return row("mixing", parts, width)


def _course(course: Course, width: int) -> list[str]:
    parts = []
    for name, values, show in (
        ("loss", list(course.losses), lambda value: f"{value:.3f}"),
        ("tok/s", list(course.rates), f.scaled),
    ):
        shape = sparkline(values, SPARK_WIDTH)
        if shape:
            parts.append(f"{name} {show(values[0])} {shape} {show(values[-1])}")
    return row("course", parts, width)


def _links(peers: Sequence[PeerRow], width: int) -> list[str]:
    """The neighbours, those of other stages first: work goes over these."""
    linked = [peer for peer in peers if peer.path not in (None, "none") and not peer.self]
    linked.sort(key=lambda peer: (peer.stage is None, peer.stage or 0, peer.id))
    lines: list[str] = []
    for number, peer in enumerate(linked[:LINKS_SHOWN]):
        parts = [
            f.peer(peer.name, peer.id),
            "no stage" if peer.stage is None else f"stage {peer.stage}",
            peer.path,
            None if peer.rtt_ms is None else f"{peer.rtt_ms:.0f} ms",
            None
            if peer.up_bytes_per_s is None
            else f"up {f.mbit(peer.up_bytes_per_s)} / down {f.mbit(peer.down_bytes_per_s)} Mbit/s",
        ]
        lines += row("" if number else "links", parts, width)
    if len(linked) > LINKS_SHOWN:
        lines += row("", [f"{len(linked) - LINKS_SHOWN} more: `swarmd peers`"], width)
    return lines
