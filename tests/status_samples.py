"""Status and peers as a daemon gives them: one that trains, one that waits, one just started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swarmd.health import HealthItem, health_of
from swarmd.json_record import render
from swarmd.peer_id import peer_id_of
from swarmd.peers_record import PeerRow, Peers
from swarmd.status import (
    Communication,
    Contribution,
    DataPart,
    Device,
    Faults,
    LastRound,
    Move,
    Moves,
    PeerCounts,
    PeerPart,
    Progress,
    ReasonPart,
    RoundTraffic,
    RunPart,
    Slot,
    StageMapEntry,
    StagePart,
    StateTransfer,
    Status,
    Subject,
    Throughput,
    TimePart,
    TotalTraffic,
)

NOW = "2026-11-30T12:00:00.000Z"
RUN_ID = "7f3a" * 16
IDS = [peer_id_of(bytes([number]) * 32) for number in range(6)]
NAMES = ["alder", "birch", "elm", "fir", "hazel", "oak"]


def smallest_status(**more: Any) -> Status:
    """A peer in its first instant: nothing measured, nobody known."""
    return Status(
        peer=PeerPart(id=IDS[0], name="alder", incarnation=1, pid=7, home="/h", started_at=NOW),
        state="starting",
        reason=ReasonPart(code="starting", text="step 1 of 5: network", since=NOW, for_s=0.2),
        time=TimePart(uptime_s=0.2, by_reason={"starting": 0.2}),
        **more,
    )


def training_status() -> Status:
    """The imagined swarm of docs/cli.md section 17."""
    return Status(
        peer=PeerPart(
            id=IDS[0],
            name="alder",
            incarnation=3,
            pid=41210,
            home="/home/alder",
            started_at="2026-11-30T09:46:00.000Z",
            reachable="yes",
            device=Device(kind="cuda", name="RTX 4090", micro_batch=2),
        ),
        run=RunPart(
            id=RUN_ID, name="prairie-1b", link=f"swarmd://{RUN_ID}", stages=4, inner_steps=100,
            total_steps=40000, peers_min=1,
        ),
        state="training",
        reason=ReasonPart(
            code="training", text="training", since="2026-11-30T11:58:10.400Z", for_s=109.6,
            subject=Subject(stage=2, round=42),
        ),
        health=health_of(
            [
                HealthItem(
                    code="rate_capped", severity="warn",
                    text="upload is held at 20 Mbit/s by your limit",
                    since="2026-11-30T09:46:00.000Z",
                    impact="adds about 2 s to each round",
                    fix="raise `limit_up`, or leave it: your work still counts",
                )
            ]
        ),
        stage=StagePart(index=2, layers=(8, 11), replicas=3, basis_version=5, data_rank=1),
        slots=[Slot(device="cuda:0", stage=2, state="training", reason_code="training")],
        stage_map=[
            StageMapEntry(stage=stage, peers=IDS[:3], alive=3, contributing=3)
            for stage in range(4)
        ],
        stage_map_version="ab12",
        peers=PeerCounts(known=13, alive=13, suspect=1, active=12, contributing=11, observers=1),
        progress=Progress(
            inner_step=4161, outer_round=42, round_phase="inner", round_elapsed_s=116.0,
            round_median_s=190.0, eta_s=68_000.0, loss=3.412, loss_first=10.98, loss_ema=3.415,
            loss_heldout=3.431, tokens_total=44_000_000, disagreement=0.31,
        ),
        throughput=Throughput(
            tokens_per_s_swarm=5470.0, tokens_per_s_self=1840.0, flops_per_s=1.1e13,
            peak_flops_per_s=3.55e13, mfu=0.31, compute_s=1790.0, wait_s=114.0,
            compute_utilisation=0.94,
        ),
        communication=Communication(
            comm_s_per_round=7.6,
            last_round=RoundTraffic(
                mix1_s=5.7, mix2_s=1.9, blocking_s=1.9, hidden_s=5.7,
                raw_bytes_sent=1_503_000_000, wire_bytes_sent=31_300_000,
            ),
            total=TotalTraffic(
                raw_bytes_sent=63_000_000_000, wire_bytes_sent=1_312_000_000,
                raw_bytes_received=62_000_000_000, wire_bytes_received=1_298_000_000,
                compression_ratio=48.0,
            ),
            bytes_per_step=313_000.0,
        ),
        last_round=LastRound(
            round=41, outcome="committed", planned=IDS[:3], included=IDS[:3], late_updates=0,
            rejected_updates=0,
        ),
        faults=Faults(
            count=2, recovery_s_last=2.4, recovery_s_max=3.1, redone_micro_batches=6,
            lost_micro_batches=0, lost_tokens=0, lost_inner_steps=0,
        ),
        data=DataPart(leases_held=2),
        contribution=Contribution(
            micro_batches=1806, tokens=14_800_000, rounds=40, receipts=40
        ),
        moves=Moves(count=1, last=Move(from_=1, to=2, why="stage 2 had no peer", at=NOW)),
        limits={"status_reply_s": 1.0, "lease_s": None},
        time=TimePart(uptime_s=8040.0, by_reason={"training": 8037.9, "starting": 2.1}),
    )  # fmt: skip


def waiting_status() -> Status:
    """The second picture of section 17.1: another stage has no peer."""
    before = training_status()
    return replace(
        before,
        peer=replace(before.peer, name="cedar", id=IDS[1]),
        state="waiting",
        reason=ReasonPart(
            code="waiting_for_stage",
            text="stage 3 has no peer; 2 peers could take it",
            since="2026-11-30T11:59:45.800Z",
            for_s=14.2,
            eta_s=25.0,
            eta_basis="deadline",
            subject=Subject(stage=3, round=42),
        ),
        health=health_of([]),
        peers=PeerCounts(known=9, alive=9, suspect=0, active=9, contributing=0, observers=0),
        stage_map=[
            StageMapEntry(stage=stage, peers=[], alive=alive, contributing=0)
            for stage, alive in enumerate((3, 3, 3, 0))
        ],
        faults=Faults(),
        contribution=Contribution(),
        communication=Communication(),
        throughput=Throughput(),
        state_transfer=StateTransfer(),
        time=TimePart(uptime_s=70.0, by_reason={"waiting_for_stage": 70.0}),
    )


def peer_rows() -> list[PeerRow]:
    """Section 17.2, by id."""
    rows = [
        PeerRow(id=IDS[0], name="alder", self=True, state="training", stage=2, liveness="alive",
                last_seen_s=0.0, up_bytes_per_s=2_275_000.0, down_bytes_per_s=2_237_500.0,
                tokens_per_s=1840.0, observer=False),
        PeerRow(id=IDS[1], name="birch", state="training", stage=2, liveness="alive",
                path="direct", rtt_ms=31.0, up_bytes_per_s=2_125_000.0,
                down_bytes_per_s=2_075_000.0, tokens_per_s=1790.0, wire_bytes_sent=212_000_000,
                compression_ratio=6.1, last_seen_s=0.2, observer=False),
        PeerRow(id=IDS[2], name="elm", state="training", stage=3, liveness="alive",
                path="direct", rtt_ms=28.0, up_bytes_per_s=2_425_000.0,
                down_bytes_per_s=2_375_000.0, tokens_per_s=1910.0, wire_bytes_sent=388_000_000,
                compression_ratio=57.0, traffic_share=0.52, last_seen_s=0.1, observer=False,
                contribution=1000, rejected={"late": 1}),
        PeerRow(id=IDS[3], name="fir", state="training", stage=3, liveness="alive",
                path="relay", rtt_ms=140.0, tokens_per_s=920.0, wire_bytes_sent=171_000_000,
                compression_ratio=57.0, traffic_share=0.25, last_seen_s=1.2, observer=False),
        PeerRow(id=IDS[4], name="hazel", state="training", stage=3, liveness="suspect",
                path="direct", wire_bytes_sent=166_000_000, compression_ratio=57.0,
                traffic_share=0.23, last_seen_s=6.4, observer=False),
        PeerRow(id=IDS[5], name="oak", state="standby", liveness="alive", path="direct",
                rtt_ms=12.0, up_bytes_per_s=12_500.0, down_bytes_per_s=12_500.0,
                wire_bytes_sent=3_000_000, last_seen_s=0.4, observer=True),
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.id)


def rendered_status(status: Status | None = None) -> dict[str, Any]:
    return render(status or training_status(), generated_at=NOW)


def rendered_peers() -> dict[str, Any]:
    return render(Peers(peers=peer_rows()), generated_at=NOW)
