"""The daemons of this machine's further devices: started, told, shown and ended with ours.

Each is `swarmd join` with a home below ours and settings of its own (device_shares.py), started
once there is a run link to join with. They hold a lifeline: when we are gone, however we went, they
go too. One that ends by itself is started again, later each time, unless it would end the same way.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from swarmd.daemon_spawn import spawn_daemon
from swarmd.device_shares import settings_file
from swarmd.errors import SwarmdError
from swarmd.home import Home, home_at
from swarmd.local_api.client import Client
from swarmd.peer_config import OTHER_VARIABLES, PREFIX, PeerConfig
from swarmd.run_link import parse_peer_address
from swarmd.status import Slot
from swarmd.store import write_bytes

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

log = logging.getLogger("swarmd.companions")

LOOK_S = 0.2
ASK_EVERY_S = 2.0
ASK_S = 1.0
TELL_S = 5.0
"""For a word that needs no work, as `pause`."""
SAME_AGAIN = (2, 5, 77, 78)
"""Exit codes after which another start would end the same way."""
HEALTH_CODE = "device_stopped"


@dataclass(slots=True)
class Companion:
    """One further device. `number` counts from 2; ours is the first."""

    number: int
    home: Home
    config: PeerConfig
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    """Of the last life; None: none has ended."""
    starts: int = 0
    starts_at_s: float = 0.0
    is_over: bool = False
    """It is not started again."""
    status: dict[str, Any] = field(default_factory=dict)
    """As it answered last in this life."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def slot(self) -> Slot:
        """For our status."""
        told = self.status
        (shown,) = told.get("slots") or [{}]
        state, reason = told.get("state"), told.get("reason") or {}
        if not self.is_running:
            state, reason = "failed" if self.exit_code else "stopped", {"code": "device_stopped"}
        return Slot(
            device=shown.get("device") or (self.config.gpu or self.config.device)[0],
            stage=(told.get("stage") or {}).get("index") if self.is_running else None,
            state=state or "starting",
            reason_code=reason.get("code") or "starting",
            tokens_per_s=shown.get("tokens_per_s") if self.is_running else None,
            peer=(told.get("peer") or {}).get("id"),
            home=str(self.home),
        )


class Companions:
    """Of one node. say: one line for people."""

    def __init__(
        self, node: PeerNode, configs: Sequence[PeerConfig], say: Callable[[str], None]
    ) -> None:
        folder = node.life.home.devices
        self._node = node
        self._say = say
        self._all = [
            Companion(number, home_at(folder / str(number)), config)
            for number, config in enumerate(configs, start=2)
        ]
        self._ends = False

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [one.process.pid for one in self._all if one.process and one.is_running]

    def slots(self) -> list[Slot]:
        return [one.slot() for one in self._all]

    # --------------------------------------------------------------------------------- their lives

    async def run(self) -> None:
        """Until cancelled. Then they lose their lifeline."""
        if not self._all:
            return
        with ExitStack() as undo:
            lifeline, ours = os.pipe()
            undo.callback(os.close, lifeline)
            undo.callback(os.close, ours)
            async with trio.open_nursery() as nursery:
                for one in self._all:
                    nursery.start_soon(self._ask, one)
                while True:
                    for one in self._all:
                        self._look_at(one, lifeline)
                    await trio.sleep(LOOK_S)

    def _look_at(self, one: Companion, lifeline: int) -> None:
        if one.is_running or one.is_over:
            return
        now_s = trio.current_time()
        if one.process is not None:
            self._mind_end(one, one.process.returncode, now_s)
        elif not self._ends and now_s >= one.starts_at_s:
            link = self._node.reporter.run_link()
            if link is None:
                return
            try:
                self._start(one, link, lifeline)
            except (OSError, SwarmdError) as error:
                self._give_up(one, str(error))

    def _start(self, one: Companion, link: str, lifeline: int) -> None:
        one.home.create()
        self._write_settings(one)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(PREFIX) or name in OTHER_VARIABLES
        }
        environment |= {"SWARMD_HOME": str(one.home)}
        output = output_of(one.home)
        one.process = spawn_daemon(["join", link], environment, lifeline=lifeline, output=output)
        one.starts += 1
        one.status = {}
        log.info("device_started number=%d pid=%d home=%s", one.number, one.process.pid, one.home)
        if one.starts == 1:
            device = " ".join(one.config.gpu or one.config.device)
            self._say(f"device {one.number} ({device}) has a peer of its own, at home {one.home}")

    def _write_settings(self, one: Companion) -> None:
        """Its first entry address is ours on this machine: an announced one may not work here."""
        transport = self._node.transport
        near = [] if transport is None else transport.listens_on()
        peers = (*(parse_peer_address(address) for address in near), *one.config.peer)
        write_bytes(one.home.config_file, settings_file(replace(one.config, peer=peers)).encode())

    def _mind_end(self, one: Companion, code: int, now_s: float) -> None:
        one.process, one.exit_code = None, code
        log.warning("device_ended number=%d exit_code=%d", one.number, code)
        if code == 0 or self._ends:
            one.is_over = True
            return
        if code in SAME_AGAIN:
            self._give_up(one, f"its daemon ended with {code}: {last_line(output_of(one.home))}")
            return
        limits = self._node.limits
        has_trained = bool((one.status.get("contribution") or {}).get("micro_batches"))
        one.starts = 1 if has_trained else one.starts
        pause_s = min(limits.retry_max_s, limits.retry_first_s * 2 ** min(one.starts, 16))
        one.starts_at_s = now_s + pause_s
        self._say(f"device {one.number} ended with {code}; starts again in {pause_s:.0f} s")

    def _give_up(self, one: Companion, why: str) -> None:
        one.is_over = True
        one.exit_code = one.exit_code or 1
        text = f"device {one.number} takes no part: {why}"
        self._say(text)
        self._node.reporter.health.hold(
            HEALTH_CODE,
            text,
            impact="the other devices go on",
            fix=f"`swarmd --home {one.home} logs` shows more",
        )

    async def _ask(self, one: Companion) -> None:
        """Keep its status fresh."""
        while True:
            if one.is_running:
                found = await _asked(one.home, "status", {}, ASK_S)
                if found is not None and one.is_running:
                    one.status = found
            await trio.sleep(ASK_EVERY_S)

    # --------------------------------------------------------------------------- what they are told

    async def tell(
        self, request: str, args: Mapping[str, Any], within_s: float = TELL_S
    ) -> dict[str, Any]:
        """All of them the same. Answers by home, null where there was none in time."""
        answers: dict[str, Any] = {}

        async def one_of_them(one: Companion) -> None:
            answers[str(one.home)] = await _asked(one.home, request, args, within_s)

        async with trio.open_nursery() as nursery:
            for one in self._all:
                if one.is_running:
                    nursery.start_soon(one_of_them, one)
        return answers

    def hung_up(self, configs: Sequence[PeerConfig]) -> None:
        """The settings were read again: theirs follow. More or fewer devices: at the next start."""
        for one, config in zip(self._all, configs, strict=False):
            one.config = config
            if one.is_running:
                self._write_settings(one)
                one.signal(signal.SIGHUP)

    def leave(self, *, now: bool) -> None:
        """Have them drain and end; `now`: without a drain."""
        self._ends = True
        if now:
            self._node.start_soon(partial(self.tell, "leave", {"now": True}))
            return
        for one in self._all:
            one.signal(signal.SIGTERM)

    async def gone(self, within_s: float, *, by_themselves: bool) -> None:
        """Wait for their end, at first perhaps untold. What is left then loses its lifeline."""
        if by_themselves:
            await self._wait_for_end(within_s)
        if not self._ends:
            self.leave(now=False)
        await self._wait_for_end(within_s)

    async def _wait_for_end(self, within_s: float) -> None:
        with trio.move_on_after(within_s):
            while self.pids:
                await trio.sleep(LOOK_S)


def output_of(home: Home) -> Path:
    """What its daemon says to people."""
    return home.state / "output.log"


def last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _asked(
    home: Home, request: str, args: Mapping[str, Any], within_s: float
) -> dict[str, Any] | None:
    """The answer, None where there is none in time."""

    def ask() -> dict[str, Any] | None:
        try:
            return Client(home, timeout_s=within_s).ask(request, args)
        except (SwarmdError, OSError) as error:
            log.debug("device_not_told home=%s request=%s error=%s", home, request, error)
            return None

    return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
