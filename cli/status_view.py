"""`swarmd status` for people: this peer and its swarm in about 20 lines (docs/cli.md 17.1).

Where the peer trains, what it does leads; where not, why. Lines nobody has measured yet are left
out, single unknown values are `-`.
"""

from __future__ import annotations

from swarmd.cli import format as f
from swarmd.cli.layout import bar, row, wrap
from swarmd.cli.output import Printer, harmless
from swarmd.health import HealthItem
from swarmd.status import ReasonPart, Refusals, Status, rank_of

_BAR_WIDTH = 20
_STATE_STYLES = {
    "training": ("bold", "green"),
    "failed": ("bold", "red"),
    "waiting": ("bold", "yellow"),
}
_HEADER_GAP = " " * 12


def status_lines(status: Status, printer: Printer) -> list[str]:
    """The whole picture."""
    width = printer.width
    return [
        *_header(status, width),
        "",
        *_worst_device(status, printer, width),
        *_state(status, printer, width),
        *_round(status, width),
        *_training(status, width),
        *_devices(status, width),
        *_swarm(status, width),
        *_counted(status, width),
        *refused_lines(status.refused, width),
        *_health(status, printer, width),
        *_injections(status, width),
    ]


def _header(status: Status, width: int) -> list[str]:
    parts = [f.peer(status.peer.name, status.peer.id)]
    if status.run.id:
        parts.append(f"run {f.run(status.run.name, status.run.id)}")
    parts.append(f"up {f.duration(status.time.uptime_s)}")
    line = _HEADER_GAP.join(parts)
    return [line] if len(line) <= width else ["  ".join(parts)]


def _state(status: Status, printer: Printer, width: int) -> list[str]:
    label = printer.style(
        (status.state or "unknown").upper().ljust(11), *_STATE_STYLES.get(status.state, ("bold",))
    )
    stage, reason = status.stage, status.reason
    if status.state == "training" and reason.code == "training" and stage is not None:
        layers = f"layers {stage.layers[0]}-{stage.layers[1]}" if stage.layers else None
        replicas = None if stage.replicas is None else f.plural(stage.replicas, "replica")
        micro_batch = status.peer.device.micro_batch
        lines = row(
            "",
            [
                f"stage {stage.index} of {status.run.stages}",
                layers,
                replicas,
                None if micro_batch is None else f"micro-batch {micro_batch}",
            ],
            width,
        )
        if reason.text != reason.code:
            left = _left(reason)
            text = f"{reason.text}, {left}" if left else reason.text
            lines += wrap(harmless(text or ""), width, first=" " * 13, follow=" " * 13)
        return [f"  {label}{lines[0].strip()}", *lines[1:]]
    follow = " " * 13
    text = f"{harmless(reason.text or '')} ({reason.code}) for {f.duration(reason.for_s)}"
    first, *rest = wrap(text, width, first=follow, follow=follow)
    lines = [f"  {label}{first.strip()}", *rest]
    left = _left(reason)
    if left:
        lines.append(f"{follow}{left}")
    if reason.retry_in_s is not None:
        lines.append(f"{follow}next try in {f.duration(reason.retry_in_s)}")
    for address in reason.subject.addresses:
        lines.append(f"{follow}{address.get('addr')}  {address.get('cause')}")
    if reason.hint:
        lines += wrap(harmless(reason.hint), width, first=f"{follow}hint: ", follow=follow)
    return lines


def _left(reason: ReasonPart) -> str:
    """A deadline is no estimate: mostly it ends much sooner."""
    if reason.eta_s is None:
        return ""
    about = f.about(reason.eta_s)
    if reason.eta_basis == "deadline":
        about = about.replace("about", "at most", 1)
    return f"{about} left"


def _round(status: Status, width: int) -> list[str]:
    progress = status.progress
    is_coming = status.stage is None or status.state in ("starting", "joining", "syncing")
    if progress.outer_round is None or is_coming:
        return []  # the swarm's round is another one
    number = str(progress.outer_round).ljust(5)
    if status.state != "training":
        since = f.clock(status.reason.since)
        return row("round", [f"{number}standing still since {since}"], width)
    steps = status.run.inner_steps
    if progress.inner_step is None or not steps:
        return row("round", [number.strip()], width)
    done = progress.inner_step % steps
    if done == 0 and progress.inner_step and progress.round_phase not in (None, "inner"):
        done = steps
    bar_width = _BAR_WIDTH if width >= 60 else _BAR_WIDTH // 2
    text = f"{number}{bar(done / steps, bar_width)}  {done} of {steps} steps"
    left_s = _round_left_s(status, done)
    left = None if left_s is None else f"{f.about(left_s)} left"
    return row("round", [text, left], width) + _run(status, width)


def _run(status: Status, width: int) -> list[str]:
    """How far the whole run is."""
    total, progress = status.run.total_steps, status.progress
    if total is None or progress.inner_step is None:
        return []
    left = None if progress.eta_s is None else f"{f.about(progress.eta_s)} left"
    return row("run", [f"step {f.count(progress.inner_step)} of {f.count(total)}", left], width)


def _round_left_s(status: Status, done: int) -> float | None:
    """The round's share of what the run still takes. The last round may be short."""
    steps, total, step = status.run.inner_steps, status.run.total_steps, status.progress.inner_step
    if not steps or not total or step is None or status.progress.eta_s is None or step >= total:
        return None
    left = min(steps - done, total - step)
    return status.progress.eta_s * left / (total - step) if left > 0 else None


def _training(status: Status, width: int) -> list[str]:
    progress, speed, traffic = status.progress, status.throughput, status.communication
    total, last = traffic.total, traffic.last_round
    lines: list[str] = []
    if progress.loss is not None:
        lines += row(
            "loss",
            [
                f"{f.number(progress.loss)} now",
                f"{f.number(progress.loss_first)} at first",
                None if progress.loss_heldout is None else f"{progress.loss_heldout:.3f} held out",
                None
                if progress.disagreement is None
                else f"disagreement {progress.disagreement:.2g}",
            ],
            width,
        )
    if status.state == "training" and speed.tokens_per_s_self is not None:
        lines += row(
            "speed",
            [
                f"{f.scaled(speed.tokens_per_s_self)} tok/s here",
                f"{f.scaled(speed.tokens_per_s_swarm)} tok/s swarm",
                None if speed.mfu is None else f"MFU {f.percent(speed.mfu)}",
                f"utilisation {f.percent(speed.compute_utilisation)}",
            ],
            width,
        )
    if status.state == "training":
        lines += _worker(status, width)
    planned, included = len(status.last_round.planned), len(status.last_round.included)
    if traffic.comm_s_per_round is not None and planned > 1:  # alone there is nothing to exchange
        blocking = f"{f.number(last.blocking_s, 1)} s blocking"
        lines += row(
            "exchange",
            [
                f"{blocking} of {f.number(traffic.comm_s_per_round, 1)} s per round",
                f"last round {included} of {planned} replicas",
            ],
            width,
        )
    if total.wire_bytes_sent is not None:
        sent = f"sent {f.size(total.wire_bytes_sent)}"
        if total.raw_bytes_sent:
            raw, ratio = f.size(total.raw_bytes_sent), f.ratio(total.compression_ratio)
            sent += f" for {raw} raw ({ratio})"
        lines += row(
            "traffic",
            [
                sent,
                f"received {f.size(total.wire_bytes_received)}",
            ],
            width,
        )
    return [*_transfer(status, width), *lines]


def _worker(status: Status, width: int) -> list[str]:
    """On a crowded machine a worker is busy for longer than it has a processor."""
    busy_s, cpu_s = status.resources.worker_busy_s, status.resources.worker_cpu_s
    if not busy_s or cpu_s is None or status.peer.device.kind not in (None, "cpu"):
        return []
    share = f"{f.duration(cpu_s)} of processor time, {cpu_s / busy_s:.2f} cores"
    return row("worker", [f"busy {f.duration(busy_s)}", share], width)


def _transfer(status: Status, width: int) -> list[str]:
    transfer = status.state_transfer
    if status.state != "syncing" or transfer.bytes_total is None:
        return []
    done = f"{f.size(transfer.bytes_done)} of {f.size(transfer.bytes_total)}"
    donors = f.plural(len(transfer.donors), "donor")
    return row("state", [f"{done} from {donors}"], width)


def _worst_device(status: Status, printer: Printer, width: int) -> list[str]:
    """Before our own state: a further device that is worse off than ours."""
    worst = status.slots[0] if status.slots else None
    if worst is None or worst.home is None or rank_of(worst.state) >= rank_of(status.state):
        return []
    style = _STATE_STYLES.get(worst.state, ("bold",))
    label = printer.style((worst.state or "unknown").upper().ljust(11), *style)
    why = "" if worst.reason_code == worst.state else f" ({worst.reason_code})"
    text = f"device {worst.device}{why}: `swarmd --home {worst.home} status`"
    first, *rest = wrap(harmless(text), width, first=" " * 13, follow=" " * 13)
    return [f"  {label}{first.strip()}", *rest]


def _devices(status: Status, width: int) -> list[str]:
    """A line for each further device: a peer of its own, with a home of its own."""
    lines: list[str] = []
    for slot in status.slots:
        if slot.home is None:
            continue
        what = (
            slot.state if slot.state == slot.reason_code else f"{slot.state} ({slot.reason_code})"
        )
        speed = None if slot.tokens_per_s is None else f"{f.scaled(slot.tokens_per_s)} tok/s"
        stage = None if slot.stage is None else f"stage {slot.stage}"
        lines += row("also", [slot.device, stage, what, speed, f"--home {slot.home}"], width)
    return lines


def _swarm(status: Status, width: int) -> list[str]:
    peers = status.peers
    if peers.alive is None:
        return []
    suspect = f" ({peers.suspect} suspect)" if peers.suspect else ""
    stages = None
    if status.state != "training" and status.stage_map:
        stages = "stages " + " ".join(f"{held.stage}:{held.alive}" for held in status.stage_map)
    return row(
        "swarm",
        [
            f"{peers.alive} alive{suspect}",
            None if peers.contributing is None else f"{peers.contributing} contributing",
            f.plural(peers.observers, "observer") if peers.observers else None,
            stages,
        ],
        width,
    )


def _counted(status: Status, width: int) -> list[str]:
    counted, faults = status.contribution, status.faults
    first_s = status.join.first_contribution_s
    lines: list[str] = []
    if counted.micro_batches is not None:
        rounds = counted.rounds
        over = status.progress.outer_round  # rounds are numbered from 0: so many are over
        of_all = f" of {max(over, rounds)}" if over and rounds is not None else ""
        lines += row(
            "counted",
            [
                f"{f.count(counted.micro_batches)} micro-batches",
                f"{f.count(counted.tokens)} tokens",
                f"{f.count(rounds)}{of_all} rounds",
                None if first_s is None else f"first after {f.duration(first_s)}",
            ],
            width,
        )
    if faults.count:
        redone, lost = faults.redone_micro_batches, faults.lost_micro_batches
        lines += row(
            "faults",
            [
                str(faults.count),
                None
                if faults.recovery_s_max is None
                else f"slowest recovery {f.duration(faults.recovery_s_max)}",
                None
                if redone is None
                else f"{f.plural(redone, 'micro-batch', 'micro-batches')} redone",
                None if lost is None else f"{lost} lost",
            ],
            width,
        )
    return lines


def refused_lines(refused: Refusals, width: int) -> list[str]:
    """Who knocked at our ports and was turned away, most of a kind first."""
    if not refused.total:
        return []
    kinds = sorted(refused.by_code.items(), key=lambda item: (-item[1], item[0]))
    told = [harmless(f"{f.count(count)} {code.replace('_', ' ')}") for code, count in kinds]
    return row("refused", [f"{f.count(refused.total)} at our ports", *told], width)


def _health(status: Status, printer: Printer, width: int) -> list[str]:
    items = status.health.items
    if not items:
        return []
    bad = sum(item.severity == "bad" for item in items)
    counts = [f.plural(bad, "problem")] if bad else []
    if len(items) > bad:
        counts.append(f.plural(len(items) - bad, "warning"))
    lines = ["", "  " + ", ".join(counts)]
    for item in items:
        lines += _item(item, printer, width)
    return lines


def _item(item: HealthItem, printer: Printer, width: int) -> list[str]:
    style = "red" if item.severity == "bad" else "yellow"
    mark = "BAD " if item.severity == "bad" else ""
    code = f"{mark}{item.code}"
    head = printer.style(code, style) + " " * max(2, 14 - len(code))
    follow = " " * 18
    text = "; ".join(part for part in (item.text, item.impact) if part)
    first, *rest = wrap(harmless(text), width, first=follow, follow=follow)
    lines = [f"    {head}{first.strip()}", *rest]
    if item.fix:
        lines += wrap(harmless(item.fix), width, first=f"{follow}fix: ", follow=f"{follow}     ")
    return lines


def _injections(status: Status, width: int) -> list[str]:
    return row("injected", list(status.injection), width)
