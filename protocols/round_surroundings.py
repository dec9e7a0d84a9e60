"""What an outer round needs to know that outlives it: who is there, and how things usually are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.mix_deadline import MixDeadline
from swarmd.protocols.mix_group import LATE, SILENT, UNREACHABLE, WITHDRAWN, Member
from swarmd.protocols.mixing import MIX1, Draw, group_of, mix1_group_size
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.round_report import MixReport

CAUGHT_ROUNDS, CAUGHT_ROUNDS_MAX = 4, 128
"""How long a peer that broke a rule of mixing is left out: doubling with each time."""
GRADIENT_SHARE = 0.05
"""How long an outer gradient is taken to be, in lengths of x, before one was seen. Guess."""
RESET_GRADIENTS, RESET_MEDIANS = 3.0, 8.0
"""Own disagreement that is too much: in lengths of an outer gradient, and against its median."""


DIVERGENCE_ROUNDS = 5
"""Between two looks at how differently replicas predict: two forward passes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """The longest exchanges until five are known; from then on deadlines adapt."""

    mix1_s_first: float = 60.0
    mix2_s_first: float = 30.0

    @classmethod
    def local(cls) -> RoundLimits:
        """All on one machine."""
        return cls(mix1_s_first=10.0, mix2_s_first=5.0)


@dataclass(slots=True)
class Surroundings:
    """Kept up to date by RoundKeeper."""

    run_id: RunId
    rounds: int
    """Of the run."""
    own: PeerId
    stage: int
    is_last: bool
    """The stage predicts tokens."""
    rules: OuterRules
    mix1_deadline: MixDeadline
    mix2_deadline: MixDeadline
    replicas: Callable[[int], tuple[PeerId, ...]]
    """Who takes part in a round, as seen now."""
    absent: dict[PeerId, str] = field(default_factory=dict)
    """Those who gave no sign of life in their last exchange, nor since, or have withdrawn."""
    tardy: set[PeerId] = field(default_factory=set)
    """Those who lived and had not come when their last exchange stopped waiting."""
    unreachable: set[PeerId] = field(default_factory=set)
    """Those to whom we had a link, and have none."""
    caught: dict[PeerId, tuple[int, str]] = field(default_factory=dict)
    """Those who broke a rule of mixing: until which round they are left out, and for what."""
    grace_s: float = 1.0
    gradient_norm: float | None = None
    """How long outer gradients are, as of late; None before the first."""
    disagreement_median: float | None = None

    def group(self, round_number: int, mix: int) -> tuple[PeerId, ...]:
        """Whom we mix with, as the roster is now; we alone where that mix is off."""
        replicas = self.replicas(round_number)
        size = self.rules.mix2_group
        if mix == MIX1:
            size = mix1_group_size(self.rules.mix1_group, len(replicas))
        return group_of(self.own, replicas, size, Draw(self.run_id, self.stage, round_number, mix))

    def measures_divergence(self, round_number: int) -> bool:
        return self.is_last and round_number % DIVERGENCE_ROUNDS == 1

    def excluded(self, round_number: int) -> dict[PeerId, str]:
        """Whom nobody needs to wait for, and why."""
        codes = self.absent | dict.fromkeys(self.unreachable, UNREACHABLE)
        for peer, (until, code) in self.caught.items():
            if round_number < until:
                codes[peer] = code
        return codes

    def catch(self, peer: PeerId, round_number: int, code: str, offences: int) -> None:
        """A peer broke a rule, seen by ourselves. Longer each time: it stays a member, and may be
        right again, but it does not reduce for others meanwhile."""
        rounds = min(CAUGHT_ROUNDS_MAX, CAUGHT_ROUNDS << min(offences - 1, 8))
        self.caught[peer] = (round_number + 1 + rounds, code)

    def deadline(self, mix: int) -> MixDeadline:
        return self.mix1_deadline if mix == MIX1 else self.mix2_deadline

    def usual_distance(self, own_norm: float, *, is_newcomer: bool) -> float:
        """How far apart starts are (Mix1), given the length of ours: about an outer gradient
        (algorithms.md 2.7). A newcomer's may be some rounds old."""
        usual = self.usual_norm(own_norm)
        return max(usual, GRADIENT_SHARE * own_norm) if is_newcomer else usual

    def usual_norm(self, own_norm: float) -> float:
        """How long outer gradients are, given the length of our x."""
        return GRADIENT_SHARE * own_norm if self.gradient_norm is None else self.gradient_norm

    def is_too_far(self, delta_norm: float, gradient_norm: float) -> bool:
        """Whether a replica whose start was `delta_norm` from the mean of the starts has lost its
        group. Measured by the usual outer gradient too: a short round's is short."""
        scale = max(gradient_norm, self.gradient_norm or 0.0)
        limit = max(RESET_GRADIENTS, RESET_MEDIANS * (self.disagreement_median or 0.0))
        return scale > 0 and delta_norm > limit * scale

    def saw_gradient(self, norm: float | None) -> None:
        """A round of few samples has a short one: what was usual is forgotten by half a round."""
        if norm is not None:
            self.gradient_norm = max(norm, (self.gradient_norm or 0.0) / 2) or None

    def saw_member(self, member: Member) -> None:
        """What a member did in an exchange decides whether the next one waits for it."""
        if member.out in (SILENT, WITHDRAWN):
            self.absent[member.peer] = member.out
        if member.is_there:
            self.tardy.discard(member.peer)
        elif member.out == LATE and not member.is_ahead:
            self.tardy.add(member.peer)

    def saw_exchange(self, mix: MixReport) -> None:
        """What an exchange that has ended teaches about how long the next may take."""
        deadline = self.deadline(mix.mix)
        whole = mix.mixed_parts + mix.kept_parts
        if not mix.missing and not mix.kept_parts:
            deadline.observe(mix.elapsed_s, mix.own_pace)
        elif mix.mixed_parts and (not mix.missing or mix.were_most_late):
            deadline.missed(mix.elapsed_s * whole / mix.mixed_parts)
