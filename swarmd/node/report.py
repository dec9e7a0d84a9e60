"""What is told to the outside: the status record, the peers, the events. Reads, decides nothing."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from swarmd.health import BAD, Health, HealthBook
from swarmd.json_record import utc
from swarmd.net.transport import LinkStatistics
from swarmd.node.device_shown import device_shown
from swarmd.node.health_watch import hold_all
from swarmd.node.machine_parts import Gauges, MachineParts, adaptive_limits
from swarmd.node.peers_shown import peers_shown
from swarmd.node.refusals_shown import refusals_shown
from swarmd.node.resources import ResourceMeter
from swarmd.peers_record import Peers
from swarmd.protocols import effects as fx
from swarmd.protocols.greeting import PROTOCOL_MAX, PROTOCOL_MIN
from swarmd.protocols.reasons import Reason
from swarmd.run_link import PeerAddress, RunLink, parse_peer_address
from swarmd.status import (
    Address,
    PeerPart,
    ProtocolRange,
    Reachable,
    ReasonPart,
    Refusals,
    Resources,
    RunPart,
    Status,
    Subject,
    TimePart,
    worst_first,
)

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

log = logging.getLogger("swarmd.node")

EVENT_FIELDS = ("peer", "stage", "round", "code")
"""Fields of an Emit that have a place of their own in an event; the others go into `data`."""
LEVELS = {
    "checkpoint_failed": "warning",
    "run_description_rejected": "warning",
    "tokeniser_not_found": "warning",
    "worker_died": "error",
    "identity_conflict": "error",
}
"""Of events that are no mere news."""
LOGGED_ONLY = ("record_changed",)
"""Too frequent for the event file."""


class Reporter:
    """Of one PeerNode."""

    def __init__(self, node: PeerNode) -> None:
        self._node = node
        self._started_s = time.monotonic()
        self._resources = ResourceMeter(os.getpid(), self._companion_pids)
        self.health = HealthBook()
        self.last_status: Status | None = None
        self._in_trio_since_s: float | None = None

    # -------------------------------------------------------------------------------------- events

    def event(self, told: fx.Emit, **more: Any) -> None:
        """One Emit of the machine, with what else is known, to the event file."""
        if told.name in LOGGED_ONLY:
            return
        fields = {name: told.fields[name] for name in EVENT_FIELDS if name in told.fields}
        data = {name: value for name, value in told.fields.items() if name not in EVENT_FIELDS}
        level = LEVELS.get(told.name, "info")
        self._node.feed.publish(told.name, **fields, level=level, data=data | more)

    def state_changed(self, told: fx.Emit) -> None:
        """With why, in words: who reads afterwards cannot ask `status` for it any more."""
        reason = self._node.reason()
        log.info("state_changed state=%s code=%s: %s", reason.state, reason.code, reason.text)
        self.event(told, text=reason.text)

    def now_utc(self) -> str:
        return utc()

    # -------------------------------------------------------------------------------------- status

    def status(self) -> Status:
        """Now, as seen from here."""
        reason, now_s = self._node.reason(), trio.current_time()
        found = self._found(reason, now_s)
        return replace(found, health=self._health(reason, found))

    def _found(self, reason: Reason, now_s: float) -> Status:
        """All but the health, which is judged by it."""
        node, machine = self._node, self._node.machine
        status = Status(
            peer=self._peer_part(),
            run=self._run_part(),
            state=reason.state,
            reason=self._reason_part(reason, now_s),
            refused=self._refusals(),
            limits=self._limits(now_s),
            resources=self._resources_part(),
            time=self._time_part(now_s),
            injection=node.faults.active,
        )
        others = [] if node.companions is None else node.companions.slots()
        if machine is None:
            return replace(status, slots=worst_first(others))
        parts = MachineParts(
            machine,
            node.run,
            node.transport,
            now_s,
            life=node.life,
            started_s=self._started_s,
            gauges=self._gauges(),
        )
        found = parts.record()
        return replace(status, **found | {"slots": worst_first([*found["slots"], *others])})

    def _gauges(self) -> Gauges:
        watchers, peak = self._node.watchers, self._node.settings.peak_flops
        if watchers is None:
            return Gauges(peak_flops_per_s=peak)
        return Gauges(
            tokens_per_s_swarm=watchers.speed.tokens_per_s,
            bytes_per_step=watchers.rates.bytes_per_step,
            recent=watchers.rounds.of,
            peak_flops_per_s=peak,
        )

    def _limits(self, now_s: float) -> dict[str, float | None]:
        machine = self._node.machine
        adaptive = {} if machine is None else adaptive_limits(machine, now_s)
        return self._node.limits.shown(**adaptive)

    def _refusals(self) -> Refusals:
        node = self._node
        if node.transport is None:
            return Refusals()
        greetings = {} if node.machine is None else node.machine.greeting.refused
        return refusals_shown(node.transport.counters(), greetings)

    def _companion_pids(self) -> list[int]:
        companions = self._node.companions
        return [] if companions is None else companions.pids

    def freeze(self) -> None:
        """Keep the present status as the last one."""
        self.last_status = self.status()

    # --------------------------------------------------------------------------------------- parts

    def _peer_part(self) -> PeerPart:
        node = self._node
        addresses = [] if node.transport is None else node.transport.addresses()
        origin = "announce" if node.life.config.announce else "listen"
        info = {} if node.machine is None else node.machine.work.worker_info
        return PeerPart(
            id=node.life.peer,
            name=node.life.name,
            incarnation=node.life.incarnation
            if node.machine is None
            else node.machine.membership.record.incarnation,
            pid=os.getpid(),
            home=str(node.life.home),
            started_at=node.life.started_at,
            observer=node.life.config.observe,
            device=device_shown(info, node.loader, node.life.config),
            reachable=self._reachable(),
            addresses=[
                Address(addr=str(a), origin=origin, reachable=node.transport.reachable(str(a)))
                for a in addresses
            ]
            if node.transport is not None
            else [],
        )

    def _reachable(self) -> Reachable:
        """Of this peer: one address that works is enough."""
        transport = self._node.transport
        if transport is None:
            return "unknown"
        found = {transport.reachable(str(a)) for a in transport.addresses()}
        return "yes" if "yes" in found else "no" if "no" in found else "unknown"

    def _run_part(self) -> RunPart:
        node, run = self._node, self._node.run
        if run is None:
            return RunPart(id=node.run_id)
        return RunPart(
            id=run.run_id,
            name=run.name,
            link=self.run_link(),
            stages=run.stages,
            inner_steps=run.inner_steps,
            total_steps=run.total_steps,
            peers_min=run.peers_min,
            protocol=ProtocolRange(
                ours_min=PROTOCOL_MIN,
                ours_max=PROTOCOL_MAX,
                run_min=run.protocol_min,
                run_max=run.protocol_max,
            ),
        )

    def run_link(self) -> str | None:
        """The link with addresses that work now: ours, then those of peers we see."""
        node, machine = self._node, self._node.machine
        if node.run is None or node.transport is None:
            return None
        entries: list[PeerAddress] = [
            parse_peer_address(str(a)) for a in node.transport.addresses()
        ]
        if machine is not None:
            for peer in machine.membership.view(trio.current_time()).present():
                if peer.peer != machine.peer:
                    entries += [PeerAddress(peer.peer, a) for a in peer.record.addresses]
        return str(RunLink(node.run.run_id, tuple(entries[:8])))

    def _reason_part(self, reason: Reason, now_s: float) -> ReasonPart:
        for_s = max(0.0, now_s - self._node.reasons.since_s)
        eta_s = None if reason.eta_at_s is None else reason.eta_at_s - now_s
        if eta_s is not None and eta_s < 0:
            eta_s = None
        retry_s = None if reason.retry_at_s is None else max(0.0, reason.retry_at_s - now_s)
        return ReasonPart(
            code=reason.code,
            text=reason.text,
            since=utc(time.time() - for_s),
            for_s=round(for_s, 3),
            eta_s=None if eta_s is None else round(eta_s, 3),
            eta_basis=reason.eta_basis if eta_s is not None else "unknown",
            subject=Subject(
                stage=reason.stage,
                peer=reason.peer,
                round=reason.round,
                addresses=reason.details.get("addresses", []),
            ),
            hint=reason.hint,
            retry_in_s=None if retry_s is None else round(retry_s, 3),
        )

    def _health(self, reason: Reason, status: Status) -> Health:
        machine = self._node.machine
        failed = "" if machine is None else machine.work.checkpoints.failed_code
        for code in BAD - {reason.code, failed}:
            self.health.clear(code)
        if reason.code in BAD or reason.state == "failed":
            self.health.hold(reason.code, reason.text, has_failed=reason.state == "failed")
        hold_all(self.health, self._node, status, self._rejected())
        return self.health.health()

    def _rejected(self) -> dict[str, dict[str, int]]:
        """Of each peer that is there, what was refused, by code."""
        machine = self._node.machine
        if machine is None:
            return {}
        present = machine.membership.view(trio.current_time()).present()
        return {peer.peer: machine.rejected_of(peer.peer) for peer in present}

    def _links(self) -> list[LinkStatistics]:
        transport = self._node.transport
        return [] if transport is None else transport.statistics()

    def _resources_part(self) -> Resources:
        node = self._node
        measured = self._resources.read()
        lane = None if node.lane is None else node.lane.statistics()
        up, down = (None, None) if node.watchers is None else node.watchers.rates.bytes_per_s
        return Resources(
            rss_bytes=measured.rss_bytes,
            cpu_share=measured.cpu_share,
            threads=measured.threads,
            open_fds=measured.open_fds,
            sockets=measured.sockets,
            disk_used_bytes=node.quota.used_bytes,
            up_bytes_per_s=up,
            down_bytes_per_s=down,
            worker_restarts=None if lane is None else lane.restarts,
            worker_busy_s=None if lane is None else round(lane.busy_s, 3),
            worker_cpu_s=None if lane is None else round(lane.cpu_s, 3),
        )

    def _time_part(self, now_s: float) -> TimePart:
        """By reason: of the machine, of the start before it, and what Python took before that."""
        machine = self._node.machine
        machine_s = 0.0 if machine is None else machine.reasons.uptime_s(now_s)
        by_reason = self._node.start_book.by_reason(now_s - machine_s)
        if machine is not None:
            for code, seconds in machine.reasons.by_reason(now_s).items():
                by_reason[code] = by_reason.get(code, 0.0) + seconds
        uptime_s = time.monotonic() - self._started_s
        unbooked_s = max(0.0, uptime_s - sum(by_reason.values()))
        by_reason["starting"] = by_reason.get("starting", 0.0) + unbooked_s
        return TimePart(
            uptime_s=round(uptime_s, 3),
            by_reason={code: round(seconds, 3) for code, seconds in sorted(by_reason.items())},
        )

    # --------------------------------------------------------------------------------------- peers

    def peers(self) -> Peers:
        """Everybody in the roster, ourselves included, by id."""
        machine = self._node.machine
        if machine is None:
            return Peers()
        return peers_shown(machine, self._links(), trio.current_time())
