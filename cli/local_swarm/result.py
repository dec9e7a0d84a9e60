"""From what a conductor saw to `swarmd.local`: the record, and whether it was a success."""

from __future__ import annotations

from swarmd.cli.local_swarm.conductor import Conductor, leftovers
from swarmd.cli.local_swarm.outcome import EXIT_CODES, Seen, judge, target_of
from swarmd.cli.local_swarm.twin import TwinFigures
from swarmd.result_records import AuditCounts, Local, LocalBoundary, LocalEvent, LocalPeer


def result_of(
    conductor: Conductor,
    *,
    loss_share: float,
    samples_total: int,
    dense_bytes_per_token: int,
    twin: TwinFigures | None,
    stopped: str,
) -> Local:
    """Call it once every peer is gone."""
    plan, view = conductor.plan, conductor.view
    loss_first = view.heads_mean("progress.loss_first")
    loss_last = view.heads_mean("progress.loss_last_tenth")
    completed = view.maximum("data.samples_completed")
    target = target_of(plan.loss_target, plan.steps, loss_first, loss_share)
    is_done = view.step >= plan.steps
    seen = Seen(
        total_steps=plan.steps,
        stage_steps=[view.stage_step(stage) for stage in range(plan.stages)],
        loss_first=loss_first,
        loss_last=loss_last,
        loss_target=target,
        peers=conductor.ends(),
        gaps=samples_total - int(completed or 0) if is_done else None,
        repeats=view.maximum("data.samples_repeated") if is_done else None,
        left_behind=leftovers(plan.dir),
        stopped=stopped,
        timed_out=conductor.timed_out,
    )
    outcome, failed = judge(seen)
    heldout = view.heads_mean("progress.loss_heldout")
    return Local(
        outcome=outcome,
        failed_conditions=failed,
        exit_code=EXIT_CODES[outcome],
        seed=plan.seed,
        command=plan.command,
        dir=str(plan.dir),
        wall_s=round(conductor.elapsed_s, 3),
        steps=view.step,
        rounds=view.round,
        rounds_partial=view.sum("totals.rounds_partial"),
        loss_first=loss_first,
        loss_last=loss_last,
        loss_target=target,
        loss_heldout=heldout,
        baseline_loss=None if twin is None else twin.loss_heldout,
        loss_gap_ratio=None if twin is None or heldout is None else heldout / twin.loss_heldout - 1,
        tokens_total=view.maximum("progress.tokens_total"),
        tokens_per_s=conductor.tokens_per_s,
        baseline_tokens_per_s=None if twin is None else twin.tokens_per_s,
        compute_utilisation=view.mean("throughput.compute_utilisation_total"),
        comm_s_per_round=view.mean("communication.comm_s_per_round"),
        raw_bytes=view.sum("communication.total.raw_bytes_sent"),
        wire_bytes=view.sum("communication.total.wire_bytes_sent"),
        compression_ratio=view.compression_ratio("total"),
        boundary=_boundary(view.compression_ratio("boundary"), dense_bytes_per_token),
        faults=view.sum("faults.count"),
        recovery_s_max=view.maximum("faults.recovery_s_max"),
        lost_micro_batches=view.maximum("faults.lost_micro_batches"),
        rejected_updates=view.sum("totals.rejected_updates"),
        audit=AuditCounts(samples=completed, gaps=seen.gaps, repeats=seen.repeats),
        events=[
            LocalEvent(event=state.event.text, at_s=state.at_s, outcome=state.outcome)
            for state in conductor.events
        ],
        peers=_peers(conductor),
    )


def _boundary(ratio: float | None, dense_bytes_per_token: int) -> LocalBoundary:
    if ratio is None:
        return LocalBoundary()
    return LocalBoundary(
        raw_bytes_per_token=dense_bytes_per_token,
        wire_bytes_per_token=round(dense_bytes_per_token / ratio, 1),
        compression_ratio=ratio,
    )


def _peers(conductor: Conductor) -> list[LocalPeer]:
    return [
        LocalPeer(
            name=peer.name,
            id=view.get("peer.id"),
            pid=peer.pid,
            stage=peer.stage,
            exit_code=peer.exit_code,
            planned_exit=peer.planned_exit,
            tokens=view.get("contribution.tokens"),
            tokens_per_s=view.get("throughput.tokens_per_s_self"),
        )
        for peer, view in zip(conductor.processes.peers, conductor.view.peers, strict=True)
    ]
