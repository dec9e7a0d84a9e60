"""Watches what the user's rules are about, and tells the machine when one is broken or mended.

The rules are those of the present settings, so a reload changes them. Reading is cheap and happens
every few seconds; the temperature of an NVIDIA GPU is asked of its own tool, in a thread.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import psutil
import trio

from swarmd.peer_config import PeerConfig
from swarmd.protocols import effects as fx
from swarmd.rules import QUIET_SHARE, Broken, Facts, broken_rule, has_rules

log = logging.getLogger("swarmd.node")

LOOK_S = 5.0
TOOL_S = 5.0
GPU_TEMPERATURE = ("nvidia-smi", "--query-gpu=temperature.gpu", "--format=csv,noheader,nounits")


class RuleWatch:
    """settings: as they hold now. tell: the driver's `put`. month_bytes: of this month's traffic.
    is_on_gpu: whose heat counts."""

    def __init__(
        self,
        settings: Callable[[], PeerConfig],
        tell: Callable[[fx.Event], None],
        month_bytes: Callable[[], int],
        *,
        is_on_gpu: bool,
        facts: Callable[[], Facts] | None = None,
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._month_bytes = month_bytes
        self._look = facts or _Look(is_on_gpu).facts
        self._held: Broken | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if has_rules(self._settings()) or self._held is not None:
                facts = await trio.to_thread.run_sync(self._look)
                self.note(replace(facts, month_bytes=self._month_bytes()))
            await trio.sleep(LOOK_S)

    def note(self, facts: Facts) -> None:
        """Tell what changed, if anything did."""
        held = self._held.code if self._held else None
        broken = broken_rule(self._settings(), facts, held)
        code = broken.code if broken else None
        if code == held:
            return
        log.info("rule broken=%s before=%s", code, held)
        args = {} if broken is None else {"text": broken.text, "for_s": broken.for_s}
        self._held = broken
        self._tell(fx.Command("rule", {"code": code, **args}))


class _Look:
    """Reads the machine. The first look at the processor says nothing: it is a difference."""

    def __init__(self, is_on_gpu: bool) -> None:
        self._is_on_gpu = is_on_gpu
        self._ours = psutil.Process(os.getpid())
        self._before: tuple[float, float, float] | None = None
        self._busy_at_s = time.monotonic()

    def facts(self) -> Facts:
        """Blocking, milliseconds; with a GPU a fraction of a second."""
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        share, now_s = self._others_share()
        if share is not None and share > QUIET_SHARE:
            self._busy_at_s = now_s
        return Facts(
            at=datetime.now().astimezone(),
            is_on_battery=None if battery is None else not battery.power_plugged,
            others_share=share,
            quiet_for_s=now_s - self._busy_at_s,
            temperature_c=_gpu_temperature() if self._is_on_gpu else _hottest(),
        )

    def _others_share(self) -> tuple[float | None, float]:
        now_s = time.monotonic()
        times = psutil.cpu_times()
        busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        ours_s = 0.0
        for process in [self._ours, *self._ours.children(recursive=True)]:
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            ours_s += used.user + used.system
        before, self._before = self._before, (now_s, busy_s, ours_s)
        if before is None or now_s <= before[0]:
            return None, now_s
        spent_s = (now_s - before[0]) * (psutil.cpu_count() or 1)
        others_s = (busy_s - before[1]) - max(0.0, ours_s - before[2])
        return min(1.0, max(0.0, others_s / spent_s)), now_s


def _hottest() -> float | None:
    """Of the processor; None where the system tells no temperatures."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    found = psutil.sensors_temperatures()
    chips = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
    listed = [entry.current for chip in chips for entry in found.get(chip, [])]
    return max(listed, default=None)


def _gpu_temperature() -> float | None:
    """Of the hottest NVIDIA GPU."""
    if shutil.which(GPU_TEMPERATURE[0]) is None:
        return None
    try:
        done = subprocess.run(
            GPU_TEMPERATURE, capture_output=True, text=True, timeout=TOOL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = [float(line) for line in done.stdout.split() if line.isdecimal()]
    return max(numbers, default=None)
