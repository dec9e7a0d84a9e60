"""What is told to the outside: the status record, the peers, the events. Reads, decides nothing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import trio

from swarmd.health import BAD, HealthBook
from swarmd.json_record import utc
from swarmd.net.transport import LinkStatistics
from swarmd.node.resources import ResourceMeter
from swarmd.node.rounds_shown import last_round, last_traffic, totals
from swarmd.partition import flops_per_token
from swarmd.peers_record import PeerRow, Peers
from swarmd.protocols import effects as fx
from swarmd.protocols.greeting import PROTOCOL_MAX, PROTOCOL_MIN
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.reasons import Reason
from swarmd.protocols.receipts import Witnessed, tag_of
from swarmd.run_link import PeerAddress, RunLink, parse_peer_address
from swarmd.status import (
    Address,
    BoundaryTraffic,
    Communication,
    Contribution,
    DataPart,
    Device,
    Faults,
    Join,
    LastFault,
    PeerCounts,
    PeerPart,
    Progress,
    ProtocolRange,
    Reachable,
    ReasonPart,
    Resources,
    RoundTraffic,
    RunPart,
    Slot,
    StageMapEntry,
    StagePart,
    Status,
    Subject,
    Throughput,
    TimePart,
    TotalTraffic,
)

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

EVENT_FIELDS = ("peer", "stage", "round", "code")
"""Fields of an Emit that have a place of their own in an event; the others go into `data`."""
LOGGED_ONLY = ("record_changed",)
"""Too frequent for the event file."""


class Reporter:
    """Of one PeerNode."""

    def __init__(self, node: PeerNode) -> None:
        self._node = node
        self._started_s = time.monotonic()
        self._resources = ResourceMeter(os.getpid())
        self.health = HealthBook()
        self.last_status: Status | None = None
        self._in_trio_since_s: float | None = None

    # -------------------------------------------------------------------------------------- events

    def event(self, told: fx.Emit) -> None:
        """One Emit of the machine, to the log and the event file."""
        if told.name in LOGGED_ONLY:
            return
        fields = {name: told.fields[name] for name in EVENT_FIELDS if name in told.fields}
        data = {name: value for name, value in told.fields.items() if name not in EVENT_FIELDS}
        self._node.feed.publish(told.name, **fields, data=data)

    def now_utc(self) -> str:
        return utc()

    # -------------------------------------------------------------------------------------- status

    def status(self) -> Status:
        """Now, as seen from here."""
        node, machine = self._node, self._node.machine
        now_s = trio.current_time()
        reason = node.reason()
        status = Status(
            peer=self._peer_part(),
            run=self._run_part(),
            state=reason.state,
            reason=self._reason_part(reason, now_s),
            health=self._health(reason),
            limits=node.limits.shown(),
            resources=self._resources_part(),
            time=self._time_part(now_s),
        )
        if machine is None:
            return status
        return replace_parts(status, self._machine_parts(machine, now_s))

    def freeze(self) -> None:
        """Keep the present status as the last one."""
        self.last_status = self.status()

    def frozen(self) -> Status | None:
        return self.last_status

    def _machine_parts(self, machine: PeerMachine, now_s: float) -> dict[str, Any]:
        view = machine.membership.view(now_s)
        coverage = machine.coverage
        present = view.present()
        suspects = sum(1 for peer in present if peer.liveness == "suspect")
        return {
            "stage": self._stage_part(machine),
            "slots": self._slots(machine, now_s),
            "stage_map": [
                StageMapEntry(
                    stage=stage,
                    peers=[peer.peer for peer in peers],
                    alive=len(peers),
                    contributing=sum(1 for peer in peers if peer.record.micro_batches > 0),
                )
                for stage, peers in enumerate(coverage.active)
            ],
            "stage_map_version": coverage.map_version(),
            "peers": PeerCounts(
                known=len(view.peers),
                alive=len(present),
                suspect=suspects,
                active=coverage.active_count,
                contributing=sum(1 for peer in present if peer.record.micro_batches > 0),
                observers=len(coverage.observers),
            ),
            "progress": self._progress(machine, now_s),
            "throughput": self._throughput(machine, now_s),
            "communication": self._communication(machine, now_s),
            **self._rounds(machine, now_s),
            "faults": self._faults(machine, now_s),
            "join": self._join(machine),
            "data": self._data(machine, now_s),
            "contribution": self._contribution(machine, now_s),
        }

    # --------------------------------------------------------------------------------------- parts

    def _peer_part(self) -> PeerPart:
        node = self._node
        addresses = [] if node.transport is None else node.transport.addresses()
        origin = "announce" if node.config.announce else "listen"
        info = {} if node.machine is None else node.machine.work.worker_info
        return PeerPart(
            id=node.identity.peer_id,
            name=node.name,
            incarnation=node.incarnation,
            pid=os.getpid(),
            home=str(node.home),
            started_at=node.started_at,
            observer=node.config.observe,
            device=Device(
                kind=_kind(info.get("device")),
                name=info.get("device_name"),
                threads=info.get("threads") or node.config.threads,
                micro_batch=info.get("micro_batch"),
            ),
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
        machine = self._node.machine
        since_s = machine.reasons.since_s if machine is not None else now_s
        for_s = max(0.0, now_s - since_s)
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

    def _health(self, reason: Reason) -> Any:
        for code in BAD:
            if code != reason.code:
                self.health.clear(code)
        if reason.code in BAD or reason.state == "failed":
            self.health.hold(reason.code, reason.text, has_failed=reason.state == "failed")
        if self._reachable() == "no":
            self.health.hold(
                "unreachable_from_outside",
                "no neighbour that was asked could dial this peer",
                impact="others cannot begin a connection to it",
                fix="open or forward its ports, or say what others can dial with --announce",
            )
        else:
            self.health.clear("unreachable_from_outside")
        self._hold_disk()
        return self.health.health()

    def _hold_disk(self) -> None:
        machine = self._node.machine
        code = "" if machine is None else machine.work.checkpoints.failed_code
        if code and code in BAD:
            text = f"the last checkpoint could not be written below {self._node.home.checkpoints}"
            impact = "training goes on; after a crash more of it would be done again"
            self.health.hold(code, text, impact=impact, fix="make room, or move the data directory")

    def _stage_part(self, machine: PeerMachine) -> StagePart | None:
        run = self._node.run
        if machine.work.stage is None or run is None:
            return None
        return StagePart(
            index=machine.work.stage,
            layers=run.layer_ranges[machine.work.stage],
            replicas=len(machine.coverage.active[machine.work.stage]),
            basis_version=machine.shape.basis_version,
            data_rank=_rank(machine),
        )

    def _slots(self, machine: PeerMachine, now_s: float) -> list[Slot]:
        if machine.work.stage is None:
            return []
        reason = machine.reasons.current
        return [
            Slot(
                device=str(machine.work.worker_info.get("device") or "cpu"),
                stage=machine.work.stage,
                state=reason.state,
                reason_code=reason.code,
                tokens_per_s=machine.work.tokens_per_s(now_s) or None,
            )
        ]

    def _progress(self, machine: PeerMachine, now_s: float) -> Progress:
        losses, ledger = machine.work.losses, machine.leases.ledger
        told = None if machine.work.pipeline is None else machine.work.pipeline.statistics(now_s)
        step = machine.work.step_of(None if told is None else told.last_step)
        held_out = None
        for number in range(min(machine.work.round, machine.shape.rounds - 1), -1, -1):
            held_out = machine.leases.held_out_loss(number)
            if held_out is not None:
                break
        done = sum(totals.samples for totals in ledger.contributions().values())
        seen = told.loss_last if told is not None else None
        rounds = machine.work.rounds
        last = None if rounds is None else rounds.keeper.totals.last
        return Progress(
            inner_step=step,
            outer_round=machine.work.round,
            round_phase=None if rounds is None else rounds.keeper.phase,
            round_median_s=None if rounds is None else rounds.keeper.round_median_s,
            disagreement=None if last is None else last.disagreement,
            disagreement_js=None if rounds is None else rounds.keeper.totals.divergence,
            loss=losses.latest if losses.latest is not None else seen,
            loss_first=losses.first if losses.first is not None else told and told.loss_first,
            loss_ema=losses.ema if losses.ema is not None else told and told.loss_ema,
            loss_last_tenth=losses.last_tenth,
            loss_heldout=held_out,
            tokens_total=done * machine.shape.sequence_tokens,
            eta_s=self._eta_s(machine, step, now_s),
        )

    def _eta_s(self, machine: PeerMachine, step: int, now_s: float) -> float | None:
        begun_s = machine.work.first_done_s
        if begun_s is None or step < 2 or now_s <= begun_s:
            return None
        return round((machine.shape.total_steps - step) * (now_s - begun_s) / step, 1)

    def _throughput(self, machine: PeerMachine, now_s: float) -> Throughput:
        if machine.work.pipeline is None or self._node.run is None:
            return Throughput()
        told = machine.work.pipeline.statistics(now_s)
        compute_s = told.wait_s.get("computing", 0.0)
        wait_s = sum(seconds for code, seconds in told.wait_s.items() if code != "computing")
        tokens = told.counters.counted * machine.shape.micro_batch_tokens
        begun_s = machine.work.first_done_s
        spent_s = now_s - begun_s if begun_s is not None else 0.0
        tokens_per_s = tokens / spent_s if spent_s > 1 else None
        flops = flops_per_token(self._node.run, machine.work.stage or 0)
        total = compute_s + wait_s
        return Throughput(
            tokens_per_s_self=tokens_per_s,
            flops_per_s=None if tokens_per_s is None else tokens_per_s * flops,
            compute_s=compute_s,
            wait_s=wait_s,
            compute_utilisation=compute_s / total if total else None,
            compute_s_total=compute_s,
            wait_s_total=wait_s,
            compute_utilisation_total=compute_s / total if total else None,
        )

    def _rounds(self, machine: PeerMachine, now_s: float) -> dict[str, Any]:
        if machine.work.rounds is None:
            return {}
        told = machine.work.rounds.keeper.statistics(now_s)
        return {"last_round": last_round(told), "totals": totals(told)}

    def _communication(self, machine: PeerMachine, now_s: float) -> Communication:
        transport = self._node.transport
        sent, received = (0, 0) if transport is None else transport.totals()
        raw_sent, raw_received = machine.traffic.raw_bytes_sent, machine.traffic.raw_bytes_received
        rounds = None
        if machine.work.rounds is not None:
            rounds = machine.work.rounds.keeper.statistics(now_s)
            raw_sent += rounds.raw_bytes_sent
            raw_received += rounds.raw_bytes_received
        wire = sent + received
        other = {} if transport is None else transport.sent_by_purpose()
        boundary_sent = sent - other.get("mix", 0) - other.get("state", 0)
        boundary_raw = machine.traffic.raw_bytes_sent
        return Communication(
            comm_s_per_round=None if rounds is None else rounds.comm_s_per_round,
            last_round=RoundTraffic() if rounds is None else last_traffic(rounds),
            total=TotalTraffic(
                raw_bytes_sent=raw_sent,
                wire_bytes_sent=sent,
                raw_bytes_received=raw_received,
                wire_bytes_received=received,
                compression_ratio=(raw_sent + raw_received) / wire if wire else None,
            ),
            boundary=BoundaryTraffic(
                raw_bytes_sent=boundary_raw,
                wire_bytes_sent=boundary_sent,
                compression_ratio=boundary_raw / boundary_sent if boundary_sent else None,
            ),
        )

    def _links(self) -> list[LinkStatistics]:
        transport = self._node.transport
        return [] if transport is None else transport.statistics()

    def _faults(self, machine: PeerMachine, now_s: float) -> Faults:
        if machine.work.pipeline is None:
            return Faults()
        told = machine.work.pipeline.statistics(now_s)
        last = told.fault_last
        return Faults(
            count=told.faults,
            recovery_s_last=told.recovery_s_last,
            recovery_s_max=told.recovery_s_max,
            lost_micro_batches=len(machine.leases.ledger.lost()),
            redone_micro_batches=told.counters.redone,
            last=LastFault()
            if last is None
            else LastFault(code=last.code, peer=last.peer, at=utc(time.time() - now_s + last.at_s)),
        )

    def _join(self, machine: PeerMachine) -> Join:
        first_s = machine.work.first_done_s
        begun_s = self._started_s
        return Join(
            started_at=self._node.started_at,
            first_contribution_s=None if first_s is None else round(first_s - begun_s, 3),
        )

    def _data(self, machine: PeerMachine, now_s: float) -> DataPart:
        audit = machine.leases.audit(now_s)
        return DataPart(
            leases_held=len(machine.leases.held()),
            samples_completed=audit.samples_completed,
            samples_repeated=sum(found.last - found.first + 1 for found in audit.repeats),
            batch_samples_global=machine.shape.micro_batches_per_step
            * machine.shape.micro_batch_samples,
        )

    def _contribution(self, machine: PeerMachine, now_s: float) -> Contribution:
        if machine.work.pipeline is None:
            return Contribution()
        counted = machine.work.pipeline.statistics(now_s).counters.counted
        seen = machine.leases.ledger.witnessed_total().get(tag_of(machine.peer), Witnessed())
        return Contribution(
            micro_batches=counted,
            tokens=counted * machine.shape.micro_batch_tokens,
            rounds=seen.rounds,
            receipts=seen.receipts,
        )

    def _resources_part(self) -> Resources:
        node = self._node
        measured = self._resources.read()
        lane = None if node.lane is None else node.lane.statistics()
        return Resources(
            rss_bytes=measured.rss_bytes,
            cpu_share=measured.cpu_share,
            threads=measured.threads,
            open_fds=measured.open_fds,
            worker_restarts=None if lane is None else lane.restarts,
        )

    def _time_part(self, now_s: float) -> TimePart:
        machine = self._node.machine
        uptime_s = time.monotonic() - self._started_s
        if machine is None:
            return TimePart(
                uptime_s=round(uptime_s, 3),
                by_reason={self._node.reason().code: round(uptime_s, 3)},
            )
        by_reason = machine.reasons.by_reason(now_s)
        before_s = uptime_s - machine.reasons.uptime_s(now_s)
        by_reason["starting"] = by_reason.get("starting", 0.0) + max(0.0, before_s)
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
        now_s = trio.current_time()
        links = {link.peer: link for link in self._links()}
        view = machine.membership.view(now_s)
        return Peers(
            peers=[
                self._peer_row(machine, peer, links.get(peer.peer), now_s) for peer in view.peers
            ]
        )

    def _peer_row(
        self, machine: PeerMachine, peer: Any, link: LinkStatistics | None, now_s: float
    ) -> PeerRow:
        record, is_self = peer.record, peer.peer == machine.peer
        rejected = machine.rejected_of(peer.peer)
        reason = machine.reasons.current
        return PeerRow(
            id=peer.peer,
            name=record.name,
            incarnation=record.incarnation,
            self=is_self,
            state=reason.state if is_self else None,
            reason_code=reason.code if is_self else None,
            stage=record.stage,
            observer=record.stage is None,
            liveness=str(peer.liveness),
            last_seen_s=0.0 if is_self else round(max(0.0, now_s - peer.last_heard_s), 3),
            path=None if link is None else link.path,
            rtt_ms=None if link is None or link.rtt_s is None else round(1e3 * link.rtt_s, 2),
            up_bytes_per_s=None if link is None else link.up_bytes_per_s,
            down_bytes_per_s=None if link is None else link.down_bytes_per_s,
            tokens_per_s=record.tokens_per_s or None,
            wire_bytes_sent=None if link is None else link.wire_bytes_sent,
            wire_bytes_received=None if link is None else link.wire_bytes_received,
            rejected=rejected,
            address=record.addresses[0] if record.addresses else None,
            protocol=record.protocol_max,
        )


def replace_parts(status: Status, parts: dict[str, Any]) -> Status:
    """The record with these of its parts filled in."""
    from dataclasses import replace

    return replace(status, **parts)


def _kind(device: object) -> Any:
    text = str(device or "")
    return next((kind for kind in ("cpu", "cuda", "mps") if text.startswith(kind)), None)


def _rank(machine: PeerMachine) -> int | None:
    """Our place among the replicas of our stage."""
    assert machine.work.stage is not None
    replicas = [peer.peer for peer in machine.coverage.active[machine.work.stage]]
    return replicas.index(machine.peer) if machine.peer in replicas else None
