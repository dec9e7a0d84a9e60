"""What `swarmd join` tells people on standard error: each thing once, nothing while all is well.

Where it looks for the run and who does not answer, founded or joined, the link for others, the
stage, each reason to wait until the peer trains for the first time; then silence until it stops. A
start that takes long says now and then what it is at. Everything else is for `swarmd status` and
the log.
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
SLOW_S = 5.0
"""A step of the start that takes longer is told, and again, each time after twice as long."""
SLOW_S_MAX = 300.0
LOOK_S = 0.5
QUIET = ("starting", "mixing")
"""Reasons that say nothing to whoever waits for a peer to train."""


class Talk:
    """say: takes one line. Told by the daemon what happens; looks into `node` for the rest."""

    def __init__(self, node: PeerNode, say: Callable[[str], None]) -> None:
        self._node = node
        self._say = say
        self._said_stage: int | None = None
        self._said_code = ""
        self._said_search = ""
        self._has_linked = False
        self._said_lack = False
        self.has_trained = False

    def listens(self, ports_changed: dict[int, int]) -> None:
        for wanted, used in ports_changed.items():
            self._say(f"port {wanted} is taken; listens on port {used} instead (port_changed)")

    def knows_nobody(self) -> None:
        """A run file without an address, and it is not to be founded."""
        self._say(
            "no address of a peer of this run is known: once its data are read, peers are looked "
            "for on the local network; `--first` would found the swarm"
        )

    def asks(self, run_id: str, entries: int) -> None:
        """The run is only a link: its description has to come from others."""
        where = f"{entries} {'address' if entries == 1 else 'addresses'}"
        self._say(f"run ·{run_id[:4]}: asks at {where if entries else 'peers nearby'} for it")

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
        if machine is None:
            self._tell_search(self._node.reason())
            return
        if self.has_trained:
            return
        if not self._has_linked:
            self._has_linked = True
            self._say(f"others join with: swarmd join '{self._node.reporter.run_link()}'")
        self._tell_lack()
        self._tell_stage()
        reason = machine.reasons.current
        if reason.code != self._said_code and reason.code not in QUIET:
            self._said_code = reason.code
            self._tell(reason)

    async def tell_slow_start(self) -> None:
        """Until there is a machine, which tells of itself."""
        patience_s, said, said_at_s = SLOW_S, "", trio.current_time()
        while self._node.machine is None:
            reason, now_s = self._node.reason(), trio.current_time()
            if reason.code != said:
                patience_s, said, said_at_s = SLOW_S, reason.code, now_s
            elif now_s - said_at_s >= patience_s:
                patience_s, said_at_s = min(2 * patience_s, SLOW_S_MAX), now_s
                for_s = now_s - self._node.reasons.since_s
                self._say(f"{reason.state}, for {for_s:.0f} s now: {reason.text} ({reason.code})")
            await trio.sleep(LOOK_S)

    async def tell_drain(self) -> None:
        """One line a second, until cancelled."""
        while True:
            reason = self._node.reason()
            if reason.code == "draining":
                self._say(f"draining: {reason.text}; a second signal stops at once")
            await trio.sleep(DRAIN_EVERY_S)

    def _tell_search(self, reason: Reason) -> None:
        """Each address with its cause, once; again only if something else is true of it."""
        if reason.code == "bootstrap_unreachable" and reason.text != self._said_search:
            self._said_search = reason.text
            self._tell(reason)

    def _tell_lack(self) -> None:
        """What it will not do, and why."""
        machine, run = self._node.machine, self._node.run
        assert machine is not None
        assert run is not None
        if machine.membership.record.lacks_data and not self._said_lack:
            self._said_lack = True
            source = self._node.settings.data_source or run.data.source
            self._say(f"{source} is not here, or not the run's data: takes no first stage")

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
        self._say(f"{reason.state}: {reason.text} ({reason.code}){self._next_try(reason)}")
        if reason.hint:
            self._say(f"hint: {reason.hint}")

    def _next_try(self, reason: Reason) -> str:
        if reason.retry_at_s is None:
            return ""
        retry_s = max(0.0, reason.retry_at_s - trio.current_time())
        return f"; next try in {retry_s:.0f} s, then less and less often"
