"""What an outer round came to, as status and events show it, and what all of them together did."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from swarmd.protocols.exchange import Exchange
from swarmd.protocols.exchange_plan import ExchangeBytes
from swarmd.protocols.ids import PeerId
from swarmd.protocols.mix_group import LATE, Member
from swarmd.protocols.mix_jobs import JobPace
from swarmd.protocols.reducer import CLIPPED

ROUNDS_REMEMBERED = 10
"""`communication.comm_s_per_round` is a median over so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixReport:
    """One of a round's two mixes."""

    mix: int
    members: tuple[PeerId, ...]
    included: tuple[PeerId, ...]
    """Those whose values are in every part that has a mean."""
    weights: tuple[tuple[PeerId, int], ...]
    """Of those included."""
    missing: tuple[tuple[PeerId, str], ...]
    """Those whose values should be in and are not, and why."""
    parts: tuple[tuple[tuple[PeerId, ...], int], ...]
    """Who is in, to how many parts have just them: more than one entry if the parts differ."""
    rejected: tuple[tuple[PeerId, str, int], ...]
    """Whom we refused or clipped, why, and in how many parts."""
    mixed_parts: int
    kept_parts: int
    """Parts without a mean: our own values stay."""
    mixed: bool
    """Whether anything of another member is in the result."""
    was_late: bool
    elapsed_s: float
    own_pace: JobPace
    """At which our own jobs went."""

    @property
    def were_most_late(self) -> bool:
        """More than half of the members: then the time was too short, and not a member too slow."""
        late = sum(code == LATE for _, code in self.missing)
        return 2 * late > len(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """`last_round` and `communication.last_round` of status."""

    round: int
    outcome: str
    """committed, partial or skipped."""
    planned: tuple[PeerId, ...]
    included: tuple[PeerId, ...]
    missing: tuple[tuple[PeerId, str], ...]
    late_updates: int
    rejected_updates: int
    mixes: tuple[MixReport, ...]
    mix1_s: float = 0.0
    mix2_s: float = 0.0
    hidden_s: float = 0.0
    """Of Mix1, what ran while inner steps did."""
    blocking_s: float = 0.0
    """Of both, what no inner step ran beside."""
    held_s: float = 0.0
    """All that the pipeline was held for: the blocking part, and the outer step itself."""
    disagreement: float | None = None
    """norm(x - xmix) / norm(D) of this stage."""
    divergence: float | None = None
    """Jensen-Shannon distance between what the last stage predicts at x and at xmix; rarely."""
    gradient_norm: float | None = None
    was_reset: bool = False
    """We were too far from the group and started again from its mean."""
    bytes: ExchangeBytes = field(default_factory=ExchangeBytes)

    @property
    def weights(self) -> tuple[tuple[PeerId, int], ...]:
        """Of those in the last mix (Mix2, where there was one), in samples; Mix1's are equal."""
        return self.mixes[-1].weights if self.mixes else ()

    @property
    def event(self) -> str:
        return f"round_{self.outcome}"

    def fields(self) -> dict[str, Any]:
        """The event's `data`: last_round's fields, and each mix part by part."""
        return {
            "round": self.round,
            "outcome": self.outcome,
            "planned": list(self.planned),
            "included": list(self.included),
            "missing": [{"peer": peer, "code": code} for peer, code in self.missing],
            "late_updates": self.late_updates,
            "rejected_updates": self.rejected_updates,
            "mix1_s": self.mix1_s,
            "mix2_s": self.mix2_s,
            "blocking_s": self.blocking_s,
            "hidden_s": self.hidden_s,
            "held_s": self.held_s,
            "bytes_sent": self.bytes.wire_sent,
            "bytes_received": self.bytes.wire_received,
            "weights": dict(self.weights),
            "disagreement": self.disagreement,
            "disagreement_js": self.divergence,
            "was_reset": self.was_reset,
            "parts": [
                {"mix": mix.mix, "included": list(peers), "parts": count}
                for mix in self.mixes
                for peers, count in mix.parts
            ],
        }


def mix_report(exchange: Exchange, now_s: float) -> MixReport:
    """Of an exchange that is decided."""
    plan, record = exchange.plan, exchange.record

    def peers_of(bits: int) -> tuple[PeerId, ...]:
        return tuple(peer for number, peer in enumerate(plan.members) if bits >> number & 1)

    included = peers_of(record.included(exchange.group.own))
    ended_s = now_s if record.decided_s is None else record.decided_s
    return MixReport(
        mix=plan.mix,
        members=plan.members,
        included=included,
        weights=tuple((peer, _weight_of(exchange, peer)) for peer in included),
        missing=tuple(sorted(_missing(exchange, included).items())),
        parts=tuple((peers_of(bits), count) for bits, count in sorted(record.parts_of.items())),
        rejected=tuple(
            (plan.members[number], code, count)
            for (number, code), count in sorted(record.rejected.items())
        ),
        mixed_parts=record.mixed_parts,
        kept_parts=len(record.kept),
        mixed=exchange.has_mixed,
        was_late=record.was_late,
        elapsed_s=ended_s - exchange.clock.times.start_s,
        own_pace=exchange.clock.own_pace,
    )


def _weight_of(exchange: Exchange, peer: PeerId) -> int:
    member = exchange.group.get(peer)
    return exchange.plan.weight if member is None else member.weight


def _missing(exchange: Exchange, included: tuple[PeerId, ...]) -> dict[PeerId, str]:
    """Members who should be in and are not, and why: what we saw before what others say."""
    known = [*sorted(exchange.record.told), *sorted(exchange.record.rejected)]
    codes = {number: code for number, code in known if code != CLIPPED}
    return {
        member.peer: codes.get(member.number) or member.out or LATE
        for member in exchange.group.members
        if member.peer not in included and _brings_something(exchange, member)
    }


def _brings_something(exchange: Exchange, member: Member) -> bool:
    """Whether it was to be in the means at all: a newcomer only receives."""
    if member.number == exchange.group.own:
        return exchange.plan.weight > 0
    return member.weight > 0 or not member.is_there


def outcome_of(
    mixes: tuple[MixReport, ...], own: PeerId
) -> tuple[str, tuple[PeerId, ...], tuple[PeerId, ...], tuple[tuple[PeerId, str], ...]]:
    """(outcome, planned, included, missing) over a round's mixes.

    Planned is who should be in; included, who is in every mix that it should be in. A round in
    which parts have no mean is partial even if nobody is missing.
    """
    missing: dict[PeerId, str] = {}
    planned: set[PeerId] = {own}
    for mix in mixes:
        missing |= {peer: code for peer, code in mix.missing if peer not in missing}
        planned |= set(mix.included) | {peer for peer, _ in mix.missing}
    included = tuple(sorted(planned - missing.keys()))
    outcome = "committed"
    if missing or any(mix.kept_parts and len(mix.members) > 1 for mix in mixes):
        outcome = "partial" if any(mix.mixed for mix in mixes) else "skipped"
    return outcome, tuple(sorted(planned)), included, tuple(sorted(missing.items()))


@dataclass(slots=True)
class RoundTotals:
    """Since the start of the machine."""

    outcomes: Counter[str] = field(default_factory=Counter)
    resets: int = 0
    bytes: ExchangeBytes = field(default_factory=ExchangeBytes)
    contributions: Counter[PeerId] = field(default_factory=Counter)
    """Peer to how many rounds had it in."""
    last: RoundReport | None = None
    divergence: float | None = None
    """As measured last."""
    _comm_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_REMEMBERED))
    _disagreements: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    def add(self, report: RoundReport) -> None:
        self.last = report
        self.outcomes[report.outcome] += 1
        self.resets += report.was_reset
        self.bytes.add(report.bytes)
        self.contributions.update(report.included)
        if report.divergence is not None:
            self.divergence = report.divergence
        self._comm_s.append(report.hidden_s + report.blocking_s)
        if report.disagreement is not None:
            self._disagreements.append(report.disagreement)

    @property
    def comm_s_per_round(self) -> float | None:
        return median(self._comm_s) if self._comm_s else None

    @property
    def disagreement_median(self) -> float | None:
        return median(self._disagreements) if self._disagreements else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStatistics:
    """Everything there is to tell, frozen."""

    round: int
    phase: str
    """As status shows it: inner, mix2, commit."""
    is_newcomer: bool
    last: RoundReport | None
    committed: int
    partial: int
    skipped: int
    late_updates: int
    rejected_updates: int
    resets: int
    comm_s_per_round: float | None
    round_median_s: float | None
    round_deadline_s: float
    update_grace_s: float
    raw_bytes_sent: int
    wire_bytes_sent: int
    raw_bytes_received: int
    wire_bytes_received: int
    raw_by_peer: Mapping[PeerId, tuple[int, int]]
    """Bytes sent and received."""
    contributions: Mapping[PeerId, int]
    absent: tuple[PeerId, ...]
    """Members of our stage that nobody waits for until they give a sign of life."""

    @classmethod
    def of(cls, totals: RoundTotals, **others: Any) -> RoundStatistics:
        """From the sums over all rounds, and what the keeper knows beside them."""
        moved = totals.bytes
        return cls(
            last=totals.last,
            committed=totals.outcomes["committed"],
            partial=totals.outcomes["partial"],
            skipped=totals.outcomes["skipped"],
            resets=totals.resets,
            comm_s_per_round=totals.comm_s_per_round,
            raw_bytes_sent=moved.raw_sent,
            wire_bytes_sent=moved.wire_sent,
            raw_bytes_received=moved.raw_received,
            wire_bytes_received=moved.wire_received,
            raw_by_peer=moved.raw_by_peer.told(),
            contributions=dict(totals.contributions),
            **others,
        )
