"""How a local swarm looks: a live picture on a terminal, plain lines otherwise, JSON for programs.

Pictures of docs/cli.md section 17.5. The same facts in the same order and words, at 80 columns,
without colour, and never by symbol alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from swarmd.cli.layout import SPARKS, sparkline
from swarmd.cli.local_swarm.view import PeerView, SwarmView
from swarmd.result_records import Local

SPARKS_ASCII = "_.-=*#@"


def clock(elapsed_s: float) -> str:
    """mm:ss, or h:mm:ss."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f} k" if value >= 1000 else f"{value:.0f}"


def size(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def sent_of_raw(sent: float | None, raw: float | None) -> str:
    """`6.9 / 46.0 MB 6.7x`: in one unit where both have it, so that reasons have room."""
    shown, whole = size(sent), size(raw)
    if shown.rpartition(" ")[2] == whole.rpartition(" ")[2]:
        shown = shown.rpartition(" ")[0] or shown
    if not sent or not raw:
        return f"{shown} / {whole}"
    ratio = raw / sent
    return f"{shown} / {whole} {ratio:.0f}x" if ratio >= 10 else f"{shown} / {whole} {ratio:.1f}x"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def bar(done: float, width: int, *, ascii_only: bool) -> str:
    filled = round(max(0.0, min(1.0, done)) * width)
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    return full * filled + empty * (width - filled)


def reason_of(peer: PeerView) -> str:
    """What a peer waits for, in words with its ETA; empty while it trains."""
    if not peer.is_running:
        return "gone"
    code = peer.get("reason.code")
    if code in (None, "training"):
        return ""
    text = f"{code}"
    eta_s = peer.get("reason.eta_s")
    return f"{text}, {eta_s:.0f} s" if eta_s is not None else text


# ------------------------------------------------------------------------------------ plain lines


def started_line(seed: int, peers: int, stages: int, steps: int) -> str:
    return f"seed {seed} · {peers} peers · {stages} stages · {steps} steps · homes kept on failure"


def round_line(elapsed_s: float, view: SwarmView, round_number: int) -> str:
    included = view.sum("last_round.included_count")
    parts = [
        f"{clock(elapsed_s)} round={round_number}",
        f"step={view.step}",
        f"loss={number(view.heads_mean('progress.loss'), 3)}",
        f"heldout={number(view.heads_mean('progress.loss_heldout'), 3)}",
    ]
    if included is not None:
        parts.append(f"included={included}")
    parts.append(f"exchange_s={number(view.maximum('communication.last_round.blocking_s'), 2)}")
    parts.append(f"tok_s={view.tokens_per_s or 0:.0f}")
    return " ".join(parts)


def result_lines(result: Local) -> list[str]:
    """What stands at the end, in a pipe and on a terminal alike."""
    lines = []
    if result.baseline_loss is not None:
        gap = "-" if result.loss_gap_ratio is None else f"{100 * result.loss_gap_ratio:.1f}%"
        lines.append(
            f"baseline heldout={number(result.loss_heldout, 4)} "
            f"twin={number(result.baseline_loss, 4)} gap={gap} "
            f"twin_tok_s={number(result.baseline_tokens_per_s, 0)}"
        )
    audit = result.audit
    counts = (("samples", audit.samples), ("gaps", audit.gaps), ("repeats", audit.repeats))
    told = [f"{name}={'-' if count is None else count}" for name, count in counts]
    lines.append(f"audit {' '.join(told)}")
    lines.append(
        f"bytes raw={size(result.raw_bytes)} sent={size(result.wire_bytes)} "
        f"ratio={times(result.compression_ratio)}"
    )
    boundary = result.boundary
    if boundary.compression_ratio is not None:
        lines.append(
            f"boundary raw={boundary.raw_bytes_per_token} B a token "
            f"sent={number(boundary.wire_bytes_per_token, 1)} B "
            f"ratio={times(boundary.compression_ratio)}"
        )
    for event in result.events:
        if event.outcome != "done":
            lines.append(f"event {event.event!r} {event.outcome}")
    if result.faults or result.rejected_updates or result.rounds_partial:
        lines.append(_faults_line(result))
    lines.append(verdict_line(result))
    if result.exit_code != 0:
        lines.append(f"logs: {result.dir}/p0 to {result.dir}/p{len(result.peers) - 1}")
    lines.append(f"repeat: {result.command}")
    return lines


def _faults_line(result: Local) -> str:
    """What the survivors noticed, so that a fault on purpose can be seen to have come and gone."""
    counts = (
        ("met", result.faults),
        ("rounds_partial", result.rounds_partial),
        ("updates_rejected", result.rejected_updates),
        ("lost_micro_batches", result.lost_micro_batches),
    )
    told = [f"{name}={'-' if count is None else count}" for name, count in counts]
    return f"faults {' '.join(told)} recovery_s={number(result.recovery_s_max, 1)}"


def verdict_line(result: Local) -> str:
    """Whether it was a success, and its figures or what was not as it should be."""
    if result.exit_code != 0:
        return f"FAILED {result.outcome}: {'; '.join(result.failed_conditions)}"
    return (
        f"ok {result.outcome} steps={result.steps} loss={number(result.loss_last, 3)} "
        f"target={number(result.loss_target, 3)} heldout={number(result.loss_heldout, 3)} "
        f"wall_s={result.wall_s:.0f} tok_s={number(result.tokens_per_s, 0)} "
        f"utilisation={number(result.compute_utilisation, 2)} "
        f"ratio={times(result.compression_ratio)}"
    )


# -------------------------------------------------------------------------------------- live view


def live_view(
    view: SwarmView,
    *,
    title: str,
    elapsed_s: float,
    total_steps: int,
    losses: Sequence[float],
    notes: Sequence[str],
    ascii_only: bool = False,
) -> Group:
    """The whole picture, for rich's Live."""
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    head.add_row(Text(title, style="bold"), clock(elapsed_s))
    return Group(
        head,
        _peer_table(view),
        _progress(view, total_steps, elapsed_s, losses, ascii_only),
        *(Text(f" {note}") for note in notes[-3:]),
    )


def _peer_table(view: SwarmView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name, justify in (
        ("peer", "left"),
        ("st", "right"),
        ("state", "left"),
        ("step", "right"),
        ("loss", "right"),
        ("tok/s", "right"),
        ("util", "right"),
        ("sent / raw", "right"),
        ("reason", "left"),
    ):
        table.add_column(
            name,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=name != "reason",
            overflow="fold",
        )
    for peer in view.peers:
        table.add_row(*_peer_row(peer))
    return table


def _peer_row(peer: PeerView) -> list[str]:
    get: Any = peer.get
    sent, raw = (
        get("communication.total.wire_bytes_sent"),
        get("communication.total.raw_bytes_sent"),
    )
    return [
        peer.name,
        "-" if peer.stage is None else str(peer.stage),
        (get("state") or "starting") if peer.is_running else "gone",
        str(get("progress.inner_step") or "-"),
        number(get("progress.loss"), 3),
        rate(get("throughput.tokens_per_s_self")),
        number(get("throughput.compute_utilisation_total"), 2),
        sent_of_raw(sent, raw),
        reason_of(peer),
    ]


def _progress(
    view: SwarmView,
    total_steps: int,
    elapsed_s: float,
    losses: Sequence[float],
    ascii_only: bool,
) -> Text:
    done = view.step / total_steps
    text = (
        f" round {view.round}  {bar(done, 16, ascii_only=ascii_only)}  {view.step} of {total_steps}"
    )
    if losses:
        shape = sparkline(losses, 10, marks=SPARKS_ASCII if ascii_only else SPARKS)
        text += f"  loss {losses[0]:.2f} {shape} {losses[-1]:.2f}"
    eta_s = view.maximum("progress.eta_s")
    if eta_s is not None:
        text += f"  about {clock(eta_s)} left"
    return Text(text)
