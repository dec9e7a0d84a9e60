"""`swarmd bench device`: what a device can do at best, which is what MFU is a share of."""

from __future__ import annotations

from collections.abc import Iterator

from swarmd.cli import exits
from swarmd.cli.compute_question import ask_device
from swarmd.cli.output import Printer
from swarmd.device_probe import probe_devices
from swarmd.devices import DeviceChoice, choose_devices
from swarmd.errors import UserError
from swarmd.json_record import render
from swarmd.peer_config import PeerConfig
from swarmd.result_records import BenchDevice, DeviceRow
from swarmd.units import format_flops

TIMEOUT_S = 120.0
"""Beside the time measured: torch is loaded, on a machine that others may keep busy."""


def measure_devices(printer: Printer, config: PeerConfig, *, seconds: float) -> int:
    """Of the settings, one after the other: two at once would share a processor."""
    choices = choose_devices(probe_devices(), config.gpu, config.device[0])
    rows = [_row(choice, config.threads, seconds) for choice, _ in choices]
    if printer.is_json:
        printer.object(render(BenchDevice(rows=rows)))
    else:
        for line in _lines(rows):
            printer.line(line)
    return exits.OK


def _row(choice: DeviceChoice, threads: int | None, seconds: float) -> DeviceRow:
    asked = {"threads": threads, "seconds": seconds}
    found = ask_device("swarmd.compute.peak", asked, choice, TIMEOUT_S + 2 * seconds)
    if "error" in found:
        raise UserError(f"{choice.name}: {found['text']}", code=found["error"], exit_code=1)
    return DeviceRow(
        device=choice.device,
        name=choice.name,
        uuid=choice.uuid or None,
        threads=found["threads"] if choice.kind == "cpu" else None,
        dtype=found["dtype"],
        flops_per_s=found["flops_per_s"],
    )


def _lines(rows: list[DeviceRow]) -> Iterator[str]:
    for row in rows:
        threads = "" if row.threads is None else f", threads {row.threads}"
        peak = format_flops(float(f"{row.flops_per_s:.3g}"))
        yield f"{row.device}  {row.name}{threads}: {peak} operations a second in {row.dtype}"
    least = format_flops(float(f"{min(row.flops_per_s for row in rows):.3g}"))
    yield f"for the MFU: `swarmd config set device.peak_flops {least}`"
