"""What `swarmd join` tells people on standard error: each thing once, nothing while all is well.

Founded or joined, the link for others, the stage, each reason to wait until the peer trains for the
first time; then silence until it stops. Everything else is for `swarmd status` and the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from swarmd.protocols.reasons import Reason
from swarmd.run_config import RunConfig

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

DRAIN_EVERY_S = 1.0
QUIET = ("starting", "mixing")
"""Reasons that say nothing to whoever waits for a peer to train."""


class Talk:
    """say: takes one line. Told by the daemon what happens; looks into `node` for the rest."""

    def __init__(self, node: PeerNode, say: Callable[[str], None]) -> None:
        self._node = node
        self._say = say
        self._said_stage: int | None = None
        self._said_code = ""
        self._has_linked = False
        self.has_trained = False

    def listens(self, ports_changed: dict[int, int]) -> None:
        for wanted, used in ports_changed.items():
            self._say(f"port {wanted} is taken; listens on port {used} instead (port_changed)")

    def knows_run(self, run: RunConfig, entries: int, *, goes_on: bool) -> None:
        """entries: addresses of others to begin with."""
        name = f"run {run.name} ·{run.run_id[:4]}"
        if goes_on:
            self._say(f"{name}: this home took part before and goes on; --first founds only once")
        elif self._node.life.is_founder:
            self._say(f"{name}: founds the swarm")
        else:
            plural = "address" if entries == 1 else "addresses"
            self._say(f"{name}: joins through {entries} {plural}")

    def changed(self) -> None:
        """The reason has changed, or what it says."""
        machine = self._node.machine
        if self.has_trained or machine is None:
            return
        if not self._has_linked:
            self._has_linked = True
            self._say(f"others join with: swarmd join '{self._node.reporter.run_link()}'")
        self._tell_stage()
        reason = machine.reasons.current
        if reason.code != self._said_code and reason.code not in QUIET:
            self._said_code = reason.code
            self._tell(reason)

    async def tell_drain(self) -> None:
        """One line a second, until cancelled."""
        while True:
            reason = self._node.reason()
            if reason.code == "draining":
                self._say(f"draining: {reason.text}; a second signal stops at once")
            await trio.sleep(DRAIN_EVERY_S)

    def _tell_stage(self) -> None:
        machine, run = self._node.machine, self._node.run
        assert machine is not None
        assert run is not None
        stage = machine.work.seat.stage
        if stage is None or stage == self._said_stage:
            return
        self._said_stage = stage
        first, last = run.layer_ranges[stage]
        where = f", on {self._node.device_text}" if self._node.device_text else ""
        self._say(f"takes stage {stage} of {run.stages}, layers {first}-{last}{where}")

    def _tell(self, reason: Reason) -> None:
        if reason.code == "training":
            self.has_trained = True
            self._say("training; `swarmd status` shows more, Ctrl-C drains and leaves")
            return
        hint = f"; {reason.hint}" if reason.hint else ""
        self._say(f"{reason.state}: {reason.text} ({reason.code}){hint}")
