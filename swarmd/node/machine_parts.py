"""A machine's parts of the status record: stage, progress, throughput, traffic, faults, data.

Made for one status and thrown away: what the parts share is asked of the machine once. Reads,
decides nothing; what a peer is beside its machine (addresses, reason, resources) is in report.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swarmd.json_record import utc
from swarmd.ledger_shown import contribution_shown
from swarmd.net.transport import Transport
from swarmd.node.life import Life
from swarmd.node.rounds_shown import last_round, last_traffic, totals
from swarmd.node.watchers import counted_tokens
from swarmd.partition import flops_per_token
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.pipeline_statistics import Fault
from swarmd.protocols.stage_past import Spent
from swarmd.protocols.state_offers import agreed_digest
from swarmd.run_config import RunConfig
from swarmd.status import (
    BoundaryTraffic,
    Communication,
    Contribution,
    DataPart,
    Donor,
    Faults,
    Join,
    LastFault,
    Move,
    Moves,
    PeerCounts,
    Progress,
    RoundTraffic,
    Slot,
    StageMapEntry,
    StagePart,
    StateTransfer,
    Throughput,
    TotalTraffic,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is measured beside the machine, and what the user says of the device."""

    tokens_per_s_swarm: float | None = None
    bytes_per_step: float | None = None
    recent: Callable[[Spent], Spent] | None = None
    """Of what was spent since the start, the last rounds' part."""
    peak_flops_per_s: float | None = None


class MachineParts:
    """Of `machine` at `now_s`. `started_s`: when the daemon began, on the system's own clock."""

    def __init__(
        self,
        machine: PeerMachine,
        run: RunConfig | None,
        transport: Transport | None,
        now_s: float,
        *,
        life: Life,
        started_s: float,
        gauges: Gauges,
    ) -> None:
        self.machine, self.run, self.transport, self.now_s = machine, run, transport, now_s
        self.life, self.started_s, self.gauges = life, started_s, gauges
        work = machine.work
        self.pipeline = None if work.pipeline is None else work.pipeline.statistics(now_s)
        self.rounds = None if work.rounds is None else work.rounds.keeper.statistics(now_s)

    def record(self) -> dict[str, Any]:
        """Names of parts to parts."""
        machine = self.machine
        view = machine.membership.view(self.now_s)
        coverage = machine.coverage
        present = view.present()
        suspects = sum(1 for peer in present if peer.liveness == "suspect")
        return {
            "stage": self._stage_part(),
            "slots": self._slots(),
            "stage_map": [
                StageMapEntry(
                    stage=stage,
                    peers=[peer.peer for peer in peers],
                    alive=len(peers),
                    contributing=sum(machine.standstill.contributes(p.peer) for p in peers),
                )
                for stage, peers in enumerate(coverage.active)
            ],
            "stage_map_version": coverage.map_version(),
            "peers": PeerCounts(
                known=len(view.peers),
                alive=len(present),
                suspect=suspects,
                active=coverage.active_count,
                contributing=sum(machine.standstill.contributes(p.peer) for p in present),
                observers=len(coverage.observers),
            ),
            "progress": self._progress(),
            "throughput": self._throughput(),
            "communication": self._communication(),
            **self._rounds(),
            "faults": self._faults(),
            "join": self._join(),
            "state_transfer": self._transfer(),
            "data": self._data(),
            "contribution": self._contribution(),
            "moves": self._moves(),
        }

    def _stage_part(self) -> StagePart | None:
        machine = self.machine
        run = self.run
        if machine.work.stage is None or run is None:
            return None
        return StagePart(
            index=machine.work.stage,
            layers=run.layer_ranges[machine.work.stage],
            replicas=len(machine.coverage.active[machine.work.stage]),
            basis_version=machine.shape.basis_version,
            data_rank=_rank(machine),
        )

    def _slots(self) -> list[Slot]:
        machine = self.machine
        if machine.setup.is_observer:
            return []
        reason = machine.reasons.current
        return [
            Slot(
                device=str(machine.work.worker_info.get("device") or "-"),
                stage=machine.work.stage,
                state=reason.state,
                reason_code=reason.code,
                tokens_per_s=machine.work.tokens_per_s(self.now_s) or None,
            )
        ]

    def _progress(self) -> Progress:
        machine = self.machine
        losses = machine.work.losses
        told = self.pipeline
        step = machine.work.step_of(None if told is None else told.last_step)
        held_out = None
        for number in range(min(machine.work.round, machine.shape.rounds - 1), -1, -1):
            held_out = machine.leases.held_out_loss(number)
            if held_out is not None:
                break
        seen = told.loss_last if told is not None else None
        rounds = machine.work.rounds
        last = None if rounds is None else rounds.keeper.totals.last
        return Progress(
            inner_step=step,
            outer_round=machine.work.round,
            round_phase=None if rounds is None else rounds.keeper.view.phase,
            round_elapsed_s=self._round_elapsed_s(),
            round_median_s=None if rounds is None else rounds.keeper.round_median_s,
            disagreement=None if last is None else last.disagreement,
            disagreement_js=None if rounds is None else rounds.keeper.totals.divergence,
            loss=losses.latest if losses.latest is not None else seen,
            loss_first=losses.first if losses.first is not None else told and told.loss_first,
            loss_ema=losses.ema if losses.ema is not None else told and told.loss_ema,
            loss_last_tenth=losses.last_tenth,
            loss_heldout=held_out,
            tokens_total=counted_tokens(machine),
            eta_s=self._eta_s(machine.shape.total_steps - step),
        )

    def _round_elapsed_s(self) -> float | None:
        began_s = self.machine.leases.seen_since_s(self.machine.work.round)
        return None if began_s is None else round(self.now_s - began_s, 3)

    def _eta_s(self, steps_left: int) -> float | None:
        eta_s = self.machine.work.pace.takes_s(steps_left, self.now_s)
        return None if eta_s is None else round(eta_s, 1)

    def _throughput(self) -> Throughput:
        work, gauges = self.machine.work, self.gauges
        peak, spent = gauges.peak_flops_per_s, work.past.spent(self.pipeline)
        if spent == Spent():
            return Throughput(tokens_per_s_swarm=gauges.tokens_per_s_swarm, peak_flops_per_s=peak)
        recent = spent if gauges.recent is None else gauges.recent(spent)
        recent_s = recent.compute_s + recent.wait_s
        if recent == spent and work.first_done_s is not None:  # what came before is no speed
            recent_s = min(recent_s, self.now_s - work.first_done_s)
        flops_per_s = tokens_per_s = None
        if recent_s > 1 and self.run is not None and work.first_done_s is not None:
            tokens_per_s = recent.micro_batches * self.machine.shape.micro_batch_tokens / recent_s
            flops_per_s = tokens_per_s * flops_per_token(self.run, work.stage or 0)
        return Throughput(
            tokens_per_s_swarm=gauges.tokens_per_s_swarm,
            tokens_per_s_self=tokens_per_s,
            flops_per_s=flops_per_s,
            peak_flops_per_s=peak,
            mfu=flops_per_s / peak if flops_per_s is not None and peak else None,
            compute_s=recent.compute_s,
            wait_s=recent.wait_s,
            compute_utilisation=_share(recent),
            compute_s_total=spent.compute_s,
            wait_s_total=spent.wait_s,
            compute_utilisation_total=_share(spent),
        )

    def _rounds(self) -> dict[str, Any]:
        if self.rounds is None:
            return {}
        return {"last_round": last_round(self.rounds), "totals": totals(self.rounds)}

    def _communication(self) -> Communication:
        machine = self.machine
        transport = self.transport
        sent, received = (0, 0) if transport is None else transport.totals()
        raw_sent, raw_received = machine.traffic.raw_bytes_sent, machine.traffic.raw_bytes_received
        rounds = self.rounds
        if rounds is not None:
            raw_sent += rounds.raw_bytes_sent
            raw_received += rounds.raw_bytes_received
        wire, raw = sent + received, raw_sent + raw_received
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
                compression_ratio=raw / wire if wire and raw else None,
            ),
            boundary=BoundaryTraffic(
                raw_bytes_sent=boundary_raw,
                wire_bytes_sent=boundary_sent,
                compression_ratio=boundary_raw / boundary_sent
                if boundary_sent and boundary_raw
                else None,
            ),
            bytes_per_step=self.gauges.bytes_per_step,
        )

    def _faults(self) -> Faults:
        machine = self.machine
        faults, redone = machine.work.past.faults, machine.work.past.redone
        if self.pipeline is not None:
            redone += self.pipeline.counters.redone
        lost = sum(found.last - found.first + 1 for found in machine.leases.ledger.lost())
        return Faults(
            count=faults.count,
            recovery_s_last=faults.recovery_s_last,
            recovery_s_max=faults.recovery_s_max,
            lost_micro_batches=lost,
            redone_micro_batches=redone,
            lost_tokens=lost * machine.shape.micro_batch_tokens,
            lost_inner_steps=machine.work.past.lost_steps,
            last=LastFault() if faults.last is None else self._last_fault(faults.last),
        )

    def _last_fault(self, fault: Fault) -> LastFault:
        """Of what another peer did, its stage; else ours."""
        stage = self.machine.work.stage
        if fault.peer is not None:
            view = self.machine.membership.view(self.now_s).get(fault.peer)
            stage = None if view is None else view.record.stage
        return LastFault(code=fault.code, peer=fault.peer, stage=stage, at=self._at(fault.at_s))

    def _at(self, then_s: float) -> str:
        return utc(time.time() - self.now_s + then_s)

    def _join(self) -> Join:
        machine = self.machine
        first_s, after_s = machine.work.first_done_s, None
        if first_s is not None:  # the machine's clock is not the daemon's: only differences count
            uptime_s = time.monotonic() - self.started_s
            after_s = round(uptime_s - (self.now_s - first_s), 3)
        return Join(
            started_at=self.life.started_at,
            first_contribution_s=after_s,
            rejoins=machine.membership.record.incarnation - self.life.incarnation,
        )

    def _transfer(self) -> StateTransfer:
        fetch, donor = self.machine.work.seat.fetch, self.machine.work.donor
        if fetch is None or fetch.plan is None or fetch.pieces is None:
            return StateTransfer(serving_now=donor.serving_now)
        givers = [found for found in fetch.donors.values() if found.outcome in ("gives", "done")]
        digest = agreed_digest(found.manifest for found in givers if found.manifest is not None)
        return StateTransfer(
            manifest_round=fetch.plan.round,
            manifest_hash=None if digest is None else digest.hex(),
            verified=fetch.is_done,
            bytes_total=fetch.plan.size_bytes,
            bytes_done=fetch.pieces.bytes_done,
            bytes_refetched=fetch.pieces.bytes_refetched,
            donors=[
                Donor(peer=peer, bytes=found.bytes_received, outcome=found.outcome)
                for peer, found in sorted(fetch.donors.items())
            ],
            serving_now=donor.serving_now,
        )

    def _data(self) -> DataPart:
        machine = self.machine
        audit = machine.leases.audit(self.now_s)
        return DataPart(
            leases_held=len(machine.leases.held()),
            samples_completed=audit.samples_completed,
            samples_returned=machine.leases.counters["given_back_samples"],
            samples_expired=machine.leases.counters["expired_samples"],
            samples_repeated=sum(found.last - found.first + 1 for found in audit.repeats),
            batch_samples_global=machine.shape.micro_batches_per_step
            * machine.shape.micro_batch_samples,
        )

    def _contribution(self) -> Contribution:
        if self.pipeline is None:
            return Contribution()
        machine, counted = self.machine, self.pipeline.counters.counted
        return contribution_shown(machine.leases.ledger, machine.peer, counted)

    def _moves(self) -> Moves:
        seat = self.machine.work.seat
        last = seat.last_move
        if last is None:
            return Moves(count=seat.moves)
        at = self._at(last.at_s)
        return Moves(
            count=seat.moves,
            last=Move(from_=last.before, to=last.after, why=last.why, at=at),
        )


def _share(spent: Spent) -> float | None:
    whole_s = spent.compute_s + spent.wait_s
    return spent.compute_s / whole_s if whole_s else None


def adaptive_limits(machine: PeerMachine, now_s: float) -> dict[str, float | None]:
    """The present values of the named limits that follow from what was measured."""
    rounds = machine.work.rounds
    told = None if rounds is None else rounds.keeper.statistics(now_s)
    return {
        "round_deadline_s": None if told is None else told.round_deadline_s,
        "update_grace_s": None if told is None else told.update_grace_s,
        "stall_after_s": machine.standstill.after_s,
        "lease_s": machine.leases.lease_s(),
    }


def _rank(machine: PeerMachine) -> int | None:
    """Our place among the replicas of our stage."""
    assert machine.work.stage is not None
    replicas = [peer.peer for peer in machine.coverage.active[machine.work.stage]]
    return replicas.index(machine.peer) if machine.peer in replicas else None
