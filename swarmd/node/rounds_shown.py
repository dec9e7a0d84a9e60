"""Outer rounds as status shows them: from the machine's frozen figures to records."""

from __future__ import annotations

from swarmd.protocols.round_report import RoundStatistics
from swarmd.status import LastRound, Missing, RoundTraffic, Totals


def last_round(told: RoundStatistics) -> LastRound:
    """`last_round`: empty before the first has ended."""
    last = told.last
    if last is None:
        return LastRound()
    return LastRound(
        round=last.round,
        outcome=last.outcome,  # type: ignore[arg-type]
        planned=list(last.planned),
        included=list(last.included),
        missing=[Missing(peer=peer, code=code) for peer, code in last.missing],
        late_updates=last.late_updates,
        rejected_updates=last.rejected_updates,
    )


def totals(told: RoundStatistics) -> Totals:
    return Totals(
        rounds_committed=told.committed,
        rounds_partial=told.partial,
        rounds_skipped=told.skipped,
        late_updates=told.late_updates,
        rejected_updates=told.rejected_updates,
    )


def last_traffic(told: RoundStatistics) -> RoundTraffic:
    """`communication.last_round`: what the two mixes of a round took and moved. Payloads only:
    which round a frame on a socket belongs to is not known there."""
    last = told.last
    if last is None:
        return RoundTraffic()
    return RoundTraffic(
        mix1_s=last.mix1_s,
        mix2_s=last.mix2_s,
        blocking_s=last.blocking_s,
        hidden_s=last.hidden_s,
        raw_bytes_sent=last.bytes.raw_sent,
        wire_bytes_sent=last.bytes.wire_sent,
        raw_bytes_received=last.bytes.raw_received,
        wire_bytes_received=last.bytes.wire_received,
    )
