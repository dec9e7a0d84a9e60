"""How far an outer round is: for status, and for the reason why the pipeline is held."""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.outer_round import OuterRound, Phase
from swarmd.protocols.round_surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class RoundView:
    phase: str = "inner"
    """As status shows it: inner, mix2, commit."""
    deadline_s: float | None = None
    """When what holds the pipeline must have ended, on the machine's own clock."""
    mixing: tuple[int, int] | None = None
    """(others that are there, others that there should be), while a mix holds the pipeline."""


def view_of(current: OuterRound | None, around: Surroundings) -> RoundView:
    if current is None or current.phase is Phase.SNAPSHOT:
        return RoundView()
    phase = "mix2"
    if current.phase in (Phase.APPLY, Phase.COMMIT, Phase.DONE):
        phase = "commit"
    elif current.phase is Phase.INNER:
        phase = "inner"
    if current.inner_ended_s is None:
        return RoundView(phase)
    deadline_s = current.inner_ended_s + around.grace_s + around.mix2_deadline.seconds
    if current.phase is Phase.MIX2 and current.mix2 is not None:
        times = current.mix2.clock.times
        deadline_s = times.grace_until_s + times.last_words_s
    on = [exchange.group for exchange in current.exchanges if not exchange.is_closed]
    mixing = (len(on[-1].present()), len(on[-1]) - 1) if on else None
    return RoundView(phase, deadline_s, mixing)
