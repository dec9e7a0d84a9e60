"""One outer round at one replica: Factored Gossip DiLoCo, from the snapshot to the next start.

    SNAPSHOT   the weights are remembered as x
    INNER      inner steps run; beside them Mix1 averages the x of a group
    MIX1       the inner phase is over (the pipeline is held from here on) and Mix1 is not
    GRADIENT   D = x - y is looked at: its norm, and that it is finite
    MIX2       D is averaged over a group, up to a deadline
    APPLY      the outer step, range by range: with Mix2's mean where there is one, else with our D
    COMMIT     what the steps made of x becomes the weights

Mix2's means are applied as they come, so their bytes are never held. Alone, with alpha 1 and mu 0,
there is nothing to do: the replica goes on from where it is, bit for bit (RND-07). What the round
began with is remembered in any case: who else is there may show only later, and newcomers,
guardians and exports want it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.exchange import Exchange
from swarmd.protocols.exchange_plan import ExchangeBytes, ExchangePlan
from swarmd.protocols.gradient_look import GradientLook
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import JobFailure, JobResult
from swarmd.protocols.messages.mixing import MixRef
from swarmd.protocols.mix_jobs import JobDesk
from swarmd.protocols.mix_parts import PartLayout
from swarmd.protocols.mixing import MIX1, MIX2, group_digest
from swarmd.protocols.outer_rules import (
    Range,
    apply_call,
    commit_call,
    cut,
    joined,
    snapshot_call,
)
from swarmd.protocols.round_report import MixReport, RoundReport, mix_report, outcome_of
from swarmd.protocols.round_surroundings import Surroundings


class Phase(Enum):
    SNAPSHOT = "snapshot"
    INNER = "inner"
    MIX1 = "mix1"
    GRADIENT = "gradient"
    MIX2 = "mix2"
    APPLY = "apply"
    COMMIT = "commit"
    DONE = "done"


class OuterRound:
    """weightless: a newcomer; it receives and is not counted. is_first: of this replica's rounds.
    Call `advance` after any event."""

    def __init__(
        self,
        number: int,
        around: Surroundings,
        desk: JobDesk,
        effects: list[fx.Effect],
        *,
        weightless: bool,
        is_first: bool,
        now_s: float,
    ) -> None:
        self.number = number
        self.weightless = weightless
        self._is_first = is_first
        self.phase = Phase.SNAPSHOT
        self.begun_s = now_s
        self.inner_ended_s: float | None = None
        self.mix1: Exchange | None = None
        self.mix2: Exchange | None = None
        self.failure: JobFailure | None = None
        """Why the outer step could not be taken; the weights are what the inner steps made."""
        self._around = around
        self._desk = desk
        self._effects = effects
        self._lag_s = 0.0
        """How long our own loop stood still while the rest of Mix1 was waited for."""
        self._elements = 0
        self._covered = 0
        self._norm = 0.0
        self._samples = 0
        self._weight_caps: Mapping[PeerId, int] = {}
        self._gradient = GradientLook(desk, self, self._gradient_seen)
        self._applying = 0
        self._resets = False
        self._skips_to: int | None = None

    # ----------------------------------------------------------------------------------- the owner

    @property
    def exchanges(self) -> list[Exchange]:
        return [exchange for exchange in (self.mix1, self.mix2) if exchange is not None]

    @property
    def is_started(self) -> bool:
        """The snapshot is made and, where Mix1 must not be hidden, Mix1 is over."""
        if self.phase is Phase.SNAPSHOT:
            return False
        waits = self._around.rules.mix1_blocking and self.mix1 is not None
        return not waits or self.mix1 is None or self.mix1.is_decided

    def is_past(self, mix: int) -> bool:
        """Whether that mix has begun here, or will not."""
        if mix == MIX1:
            return self.phase is not Phase.SNAPSHOT
        return self.phase in (Phase.MIX2, Phase.APPLY, Phase.COMMIT, Phase.DONE)

    def group(self, mix: int) -> tuple[PeerId, ...]:
        """As the roster is now."""
        return self._around.group(self.number, mix)

    @property
    def last_number(self) -> int:
        """The last round that is over when this one is: its own, or that to which it was skipped
        because the others are so far."""
        return self.number if self._skips_to is None else self._skips_to

    def begin(self, now_s: float) -> None:
        self._desk.ask(self, snapshot_call(self.number), self._snapshot_made)

    def inner_ended(
        self,
        samples: int,
        weight_caps: Mapping[PeerId, int],
        now_s: float,
        *,
        skips_to: int | None = None,
    ) -> None:
        """All inner steps are in the worker's queue. skips_to: the others have ended that round
        already, so nobody is there to average with."""
        self.inner_ended_s = now_s
        self._samples = samples
        self._weight_caps = weight_caps
        self._skips_to = skips_to

    @property
    def tail_s(self) -> float | None:
        """Until when the rest of Mix1 is waited for, once the inner phase is over."""
        if self.phase is not Phase.MIX1 or self.inner_ended_s is None:
            return None
        if self._skips_to is not None:
            return self.inner_ended_s
        return self.inner_ended_s + self._around.grace_s + self._lag_s

    def advance(self, now_s: float) -> None:
        """Go on as far as possible."""
        before = None
        while before is not self.phase:
            before = self.phase
            match self.phase:
                case Phase.INNER if self.inner_ended_s is not None:
                    self.phase = Phase.MIX1
                case Phase.MIX1:
                    self._finish_mix1(now_s)
                case Phase.MIX2:
                    assert self.mix2 is not None
                    if self.mix2.is_decided:
                        self.mix2.close(now_s)
                        self._begin_apply()
                case Phase.APPLY if not self._applying:
                    self.phase = Phase.COMMIT
                    self._desk.ask(self, commit_call(self.number), self._committed)

    def lagged(self, lag_s: float, now_s: float) -> None:
        """Our own loop stood still for so long."""
        if self.inner_ended_s is not None:
            self._lag_s += lag_s
        for exchange in self.exchanges:
            exchange.lagged(lag_s, now_s)

    def abort(self) -> None:
        """The worker is gone."""
        for exchange in self.exchanges:
            exchange.abort()
        self._desk.forget(self)
        self.phase = Phase.DONE

    # ---------------------------------------------------------------------------------------- Mix1

    def _snapshot_made(self, outcome: JobResult | JobFailure, now_s: float) -> None:
        self.phase = Phase.INNER
        if isinstance(outcome, JobFailure):
            self.failure = outcome
            return
        self._elements = outcome.data["elements"]
        self._covered = outcome.data["covered"]
        self._norm = outcome.data["norm"]
        members = self.group(MIX1)
        if self._may_differ and len(members) > 1 and self._elements:
            usual = self._around.usual_distance(self._norm, is_newcomer=self.weightless)
            self.mix1 = self._exchange(
                MIX1,
                members,
                self._elements,
                now_s,
                weight=int(not self.weightless),
                norm=self._norm,
                usual_norm=usual,
            )
            self.mix1.begin(now_s)

    @property
    def _may_differ(self) -> bool:
        """Whether there is anything to average. Round 0 begins everywhere with the seed's weights,
        and before all who are to take part have loaded them: no two would see the same group."""
        return self.number > 0 and self._skips_to is None

    def _finish_mix1(self, now_s: float) -> None:
        if self.failure is not None or not self._elements:
            self.phase = Phase.DONE
            return
        if self.mix1 is not None:
            tail_s = self.tail_s
            if not self.mix1.is_decided and tail_s is not None and now_s >= tail_s:
                self.mix1.close(now_s)
            if not self.mix1.is_decided:
                return
            self.mix1.close(now_s)
        elif len(self.group(MIX2)) == 1 or self._skips_to is not None:
            if self._around.rules.is_plain:
                self.phase = Phase.DONE  # the step would change nothing
            else:
                self._begin_apply()
            return
        self._look_at_gradient()

    def _exchange(
        self, mix: int, members: tuple[PeerId, ...], elements: int, now_s: float, **brought: Any
    ) -> Exchange:
        around = self._around
        digest = group_digest(members)
        plan = ExchangePlan(
            ref=MixRef(round=self.number, mix=mix, stage=around.stage, group=digest),
            members=members,
            own=around.own,
            rules=around.rules,
            layout=PartLayout(elements, around.rules.wire_of(mix), len(members)),
            excluded=around.excluded(self.number),
            tardy=frozenset(around.tardy if mix == MIX2 or around.rules.mix1_blocking else ()),
            **brought,
        )
        deadline = around.deadline(mix)
        times = deadline.times(now_s, around.grace_s)
        return Exchange(plan, times, deadline, self._desk, self._effects)

    # ------------------------------------------------------------------------------ gradient, Mix2

    def _look_at_gradient(self) -> None:
        self.phase = Phase.GRADIENT
        measures = self._has_mixed and self._around.measures_divergence(self.number)
        self._gradient.begin(
            self._covered,
            self._elements,
            owes=bool(self._around.rules.sparse_topk and self._samples and not self.weightless),
            measures_divergence=measures,
        )

    def _gradient_seen(self, failure: JobFailure | None, now_s: float) -> None:
        if failure is not None:
            self.failure = failure
            self.phase = Phase.DONE
            return
        norm = self.gradient_norm
        # Too far from the group, or not finite: start again from the group's mean.
        self._resets = norm is None or self._around.is_too_far(self._gradient.delta_norm, norm)
        self._begin_mix2(now_s)

    @property
    def _has_mixed(self) -> bool:
        return self.mix1 is not None and self.mix1.has_mixed

    @property
    def gradient_norm(self) -> float | None:
        """norm(D); None where it was not looked at, or is not finite."""
        return self._gradient.norm

    def _begin_mix2(self, now_s: float) -> None:
        members = self.group(MIX2)
        if len(members) == 1 or not self._covered or self._skips_to is not None:
            self._begin_apply()
            return
        counts = not self.weightless and not self._resets
        claim = min(self._samples, self._weight_caps.get(self._around.own, self._samples))
        self.mix2 = self._exchange(
            MIX2,
            members,
            self._covered,
            now_s,
            weight=claim if counts else 0,
            norm=self.gradient_norm or 0.0,
            usual_norm=self._around.usual_norm(self._norm),
            resets=self._resets,
            weight_caps=self._weight_caps,
        )
        self.phase = Phase.MIX2
        self.mix2.begin(now_s)

    # ---------------------------------------------------------------------------------- outer step

    def _begin_apply(self) -> None:
        """What Mix2 has not stepped already is stepped with our own D."""
        self.phase = Phase.APPLY
        kept, sent, uncovered = [], False, 0
        if self.mix2 is not None:
            plan = self.mix2.plan
            kept = [plan.range_of(part) for part in sorted(self.mix2.record.kept)]
            sent, uncovered = plan.weight > 0, self._covered
        for where in joined(kept):
            for piece in cut(where.first, where.first + where.count):
                self._ask_apply(piece, sent=sent)
        for piece in cut(uncovered, self._elements):
            self._ask_apply(piece, sent=False)

    def _ask_apply(self, where: Range, *, sent: bool) -> None:
        self._applying += 1
        job = apply_call(
            self._around.rules,
            where,
            None,
            usual_norm=0.0,
            members=1,
            resets=self._resets,
            sent=sent,
        )
        self._desk.ask(self, job, self._applied)

    def _applied(self, outcome: JobResult | JobFailure, now_s: float) -> None:
        self._applying -= 1
        if isinstance(outcome, JobFailure):
            self.failure = outcome
            self.phase = Phase.DONE

    def _committed(self, outcome: JobResult | JobFailure, now_s: float) -> None:
        if isinstance(outcome, JobFailure):
            self.failure = outcome
        self.phase = Phase.DONE

    # -------------------------------------------------------------------------------------- report

    def mix_reports(self, now_s: float) -> tuple[MixReport, ...]:
        return tuple(mix_report(exchange, now_s) for exchange in self.exchanges)

    def report(
        self, mixes: tuple[MixReport, ...], late: int, rejected: int, now_s: float
    ) -> RoundReport:
        """Once it is done."""
        outcome, planned, included, missing = outcome_of(mixes, self._around.own)
        if self.failure is not None or self._skips_to is not None:
            outcome = "skipped"
        seconds = {mix.mix: mix.elapsed_s for mix in mixes}
        ended_s = now_s if self.inner_ended_s is None else self.inner_ended_s
        hidden_s = 0.0
        held_mix1 = self._around.rules.mix1_blocking and not self._is_first
        if self.mix1 is not None and not held_mix1:
            hidden_s = max(0.0, min(seconds[MIX1], ended_s - self.mix1.clock.times.start_s))
        moved = ExchangeBytes()
        for exchange in self.exchanges:
            moved.add(exchange.record.bytes)
        return RoundReport(
            round=self.number,
            outcome=outcome,
            planned=planned,
            included=included,
            missing=missing,
            late_updates=late,
            rejected_updates=rejected,
            mixes=mixes,
            mix1_s=seconds.get(MIX1, 0.0),
            mix2_s=seconds.get(MIX2, 0.0),
            hidden_s=hidden_s,
            blocking_s=seconds.get(MIX1, 0.0) - hidden_s + seconds.get(MIX2, 0.0),
            held_s=now_s - ended_s,
            disagreement=self._gradient.disagreement if self._has_mixed else None,
            divergence=self._gradient.divergence,
            gradient_norm=self.gradient_norm,
            was_reset=self._resets,
            bytes=moved,
        )
