"""`swarmd bench links` for people and programs: the rows of net/bench_links.py as they come."""

from __future__ import annotations

import os

from swarmd.cli import format as f
from swarmd.cli.output import Printer
from swarmd.json_record import render
from swarmd.result_records import BenchLinks, LinkRow, LinkTransfer

HEADINGS = ("PLANE", "MESSAGE", "MB/s", "CPU s/GB OUT", "IN", "RTT p50", "p99 ms")
_LINE = "{:<8} {:>8} {:>8} {:>13} {:>7} {:>9} {:>8}"


def measure_links(printer: Printer, *, repeats: int, seconds: float, transfer_bytes: int) -> int:
    """Prints a row a plane and size, or `swarmd.bench_links`."""
    from swarmd.cli.trio_work import run_trio
    from swarmd.net.bench_links import LinkBench, bench_links

    load = os.getloadavg()[0]
    bench = LinkBench(repeats=repeats, seconds=seconds, transfer_bytes=transfer_bytes)

    def on_row(row: LinkRow) -> None:
        (printer.say if printer.is_json else printer.line)(_line(row))

    if not printer.is_json:
        printer.line(_LINE.format(*HEADINGS))
    rows, transfer = run_trio(bench_links, bench, on_row)
    if printer.is_json:
        found = BenchLinks(
            rows=rows,
            transfer=transfer,
            repeats=repeats,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
            load_before=round(load, 2),
        )
        printer.object(render(found))
        return 0
    for line in (*comparisons(rows), _transfer_line(transfer), f"load before: {load:.2f}"):
        printer.line(line)
    return 0


def comparisons(rows: list[LinkRow]) -> list[str]:
    """What one would quote: the bulk plane against each alternative, of the same run."""
    by = {(row.plane, row.message_bytes): row for row in rows}
    lines = []
    for other, size in (("libp2p", 1 << 20), ("raw_tcp", 64 << 20)):
        ours, theirs = by.get(("bulk", size)), by.get((other, size))
        if ours is None or theirs is None or not ours.mb_per_s or not theirs.mb_per_s:
            continue
        lines.append(
            f"bulk against {other} at {f.size(size)}: {ours.mb_per_s / theirs.mb_per_s:.2f} of the "
            f"rate, {_cpu(ours) / _cpu(theirs):.2f} of the processor time"
        )
    return lines


def _cpu(row: LinkRow) -> float:
    """Of both sides. At least the clock's resolution."""
    return max(1e-6, (row.cpu_s_per_gb_sender or 0) + (row.cpu_s_per_gb_receiver or 0))


def _line(row: LinkRow) -> str:
    return _LINE.format(
        row.plane,
        f.size(row.message_bytes),
        f.number(row.mb_per_s),
        f.number(row.cpu_s_per_gb_sender),
        f.number(row.cpu_s_per_gb_receiver),
        f.number(row.rtt_p50_ms),
        f.number(row.rtt_p99_ms),
    )


def _transfer_line(transfer: LinkTransfer) -> str:
    out, back = transfer.rss_growth_bytes_sender, transfer.rss_growth_bytes_receiver
    return (
        f"{f.size(transfer.bytes)} over bulk at {f.number(transfer.mb_per_s)} MB/s: memory grew by "
        f"{f.size(out)} at the sender, {f.size(back)} at the receiver"
    )
