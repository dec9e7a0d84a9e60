"""The faults that this peer suffers and commits on purpose, handed to those who carry them out.

    cut                         the driver: loses everything to and from these peers
    disk_full                   files
    wrong_stage wrong_round     the driver: changes messages of a mix as they leave (mix_lies.py)
    nan_update slow oom ...     the compute worker (swarmd/compute/worker_faults.py)

Grammar and kinds: swarmd/injection.py. What is not named above is not carried out (docs/cli.md,
section 16, says so), but it is listed with the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from swarmd.errors import ComputeError, UserError
from swarmd.injection import OF_THE_WORKER, Injection, parse_injection
from swarmd.node.driver import Driver
from swarmd.node.mix_lies import MixLies
from swarmd.node.stage_loader import StageLoader
from swarmd.units import BadValue

log = logging.getLogger("swarmd.node")


class PeerFaults:
    """specs: those it was started with, which its worker has got already."""

    def __init__(self, specs: Sequence[str]) -> None:
        self._active: dict[str, Injection] = {}
        """By kind."""
        self._add(specs)

    @property
    def active(self) -> list[str]:
        """As they were written."""
        return [fault.text for fault in self._active.values()]

    @property
    def of_worker(self) -> tuple[str, ...]:
        return tuple(f.text for f in self._active.values() if f.kind in OF_THE_WORKER)

    def apply(self, driver: Driver) -> None:
        """What the daemon carries out itself."""
        cut = self._active.get("cut")
        driver.cut = set(cut.param) if cut is not None else set()
        if driver.files is not None:
            driver.files.is_full = "disk_full" in self._active
        lies = MixLies(self.active, trio.current_time)
        driver.told = lies.told if lies else None

    async def add(self, specs: Sequence[str], driver: Driver, loader: StageLoader | None) -> None:
        """From now on these too, each in place of any other of its kind. Raises UserError."""
        before = self.of_worker
        self._add(specs)
        await self._hand_out(before, driver, loader)

    async def clear(self, driver: Driver, loader: StageLoader | None) -> None:
        before = self.of_worker
        self._active.clear()
        await self._hand_out(before, driver, loader)

    async def _hand_out(
        self, before: tuple[str, ...], driver: Driver, loader: StageLoader | None
    ) -> None:
        self.apply(driver)
        if loader is None or before == self.of_worker:
            return
        try:
            await loader.inject(self.of_worker)
        except ComputeError as error:  # the next worker is started with them
            log.info("no_worker_to_inject code=%s", error.code)

    def _add(self, specs: Sequence[str]) -> None:
        try:
            parsed = [parse_injection(spec) for spec in specs]
        except BadValue as error:
            raise UserError(str(error), code="usage", exit_code=2) from None
        for fault in parsed:
            self._active[fault.kind] = fault
