"""What a peer has on disk of a stage, and which of it a swarm that was shut down goes on from.

Every peer writes its stage's state down when a round begins, and says in its record which rounds it
has. If all peers of a swarm were killed and come back, in any order, each takes up the newest round
that every stage has: `common_round`. If the swarm lives, a peer that comes back takes its own state
only while that is still the state of the swarm's round; else others give it a newer one: those who
train the stage, or a guardian of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from swarmd.protocols.coverage import Coverage
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.gossip import SAVED_ROUNDS_MAX
from swarmd.protocols.reasons import Reason
from swarmd.protocols.roster import RosterView

SETTLE_S = 1.0
"""So long what everybody has must have been the same: peers come back one after the other."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checkpoint of our own that was found whole."""

    stage: int
    round: int
    """The round that begins with it."""
    step: int
    ledger: tuple[Message, ...]
    """What the swarm had done by then, for LeaseBook.restore."""

    @property
    def name(self) -> str:
        return name_of_saved(self.stage, self.round)


def name_of_saved(stage: int, round_number: int) -> str:
    """What machines call its state file, and the disk its folder."""
    return f"stage-{stage:02}-round-{round_number:06}"


def is_name_of_saved(name: str) -> bool:
    return name.startswith("stage-")


GUARDED = "guarded-"


def name_of_guarded(stage: int, round_number: int) -> str:
    """Of a snapshot that is kept for others."""
    return GUARDED + name_of_saved(stage, round_number)


_FETCHED = re.compile(r"fetch-(\d+)-(\d+)\.safetensors")


def name_of_fetched(stage: int, round_number: int, name: str = "fetch") -> str:
    """A state that comes, or came, from others."""
    return f"{name}-{stage:02}-{round_number:06}.safetensors"


def fetched_in(names: Iterable[str]) -> dict[int, int]:
    """By stage, the newest round of those that a former life fetched, or began to."""
    found = sorted(match.groups() for match in map(_FETCHED.fullmatch, names) if match)
    return {int(stage): int(round_number) for stage, round_number in found}


def common_round(
    claims: Iterable[tuple[int, tuple[int, ...]]], stages: int
) -> tuple[int | None, str]:
    """The newest round that every stage has, and why not, if there is none.

    claims: (stage, rounds) of every peer that is there. `waiting_for_stage N`: nobody has anything
    of stage N. `nothing_in_common`: every stage has something, but no round is everywhere.
    """
    rounds: list[set[int]] = [set() for _ in range(stages)]
    for stage, saved in claims:
        if stage < stages:
            rounds[stage].update(saved)
    for stage, saved_of_stage in enumerate(rounds):
        if not saved_of_stage:
            return None, f"waiting_for_stage {stage}"
    common = set.intersection(*rounds)
    return (max(common), "newest_in_common") if common else (None, "nothing_in_common")


def newest_up_to(saved: Iterable[SavedState], round_number: int) -> SavedState | None:
    """The newest that is not newer than `round_number`; if all are, the oldest."""
    ordered = sorted(saved, key=lambda state: state.round)
    older = [state for state in ordered if state.round <= round_number]
    return older[-1] if older else (ordered[0] if ordered else None)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What to do about our saved states now.

    load: take this one up. is_alone: nobody trains, so the saved ledger counts as well.
    is_over: they are of no use, get the state from others. None of these: wait.
    """

    load: SavedState | None = None
    is_alone: bool = False
    is_over: bool = False
    why: str = ""


class Resuming:
    """Of one stage, from the start until a state is held. `review` as often as the roster changes,
    and every second or so."""

    def __init__(self, stage: int, saved: Iterable[SavedState]) -> None:
        self.stage = stage
        ordered = sorted(saved, key=lambda state: state.round, reverse=True)
        self._saved = tuple(ordered[:SAVED_ROUNDS_MAX])
        self._claims: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
        self._claims_since_s = 0.0
        self._why = ""

    @property
    def rounds(self) -> tuple[int, ...]:
        """To be told in our record."""
        return tuple(state.round for state in self._saved)

    def review(self, view: RosterView, coverage: Coverage, now_s: float) -> Resumption:
        active = [peer for peers in coverage.active for peer in peers]
        if active:
            return self._join(max(peer.record.round for peer in active), coverage)
        found = self._gather(view, coverage.stages, now_s)
        self._why = found.why
        return found

    def reason(self) -> Reason:
        """Why we wait."""
        rounds = ", ".join(str(number) for number in sorted(self.rounds))
        missing = self._why.partition("waiting_for_stage ")[2]
        text = f"stage {self.stage} is on disk here at rounds {rounds}"
        if missing:
            text = f"{text}; nobody who is there has stage {missing}"
        stage = int(missing) if missing else self.stage
        return Reason(code="waiting_for_stage", text=text, stage=stage)

    def _join(self, swarm_round: int, coverage: Coverage) -> Resumption:
        """Others train, or have just taken up what they had."""
        own = newest_up_to(self._saved, swarm_round)
        assert own is not None, "there is something on disk"
        if own.round != swarm_round and coverage.active[self.stage]:
            return Resumption(is_over=True, why="others_are_further")
        if any(kept > own.round for kept, _ in coverage.guards[self.stage]):
            return Resumption(is_over=True, why="guardian_is_further")
        return Resumption(load=own, why="swarm_lives")

    def _gather(self, view: RosterView, stages: int, now_s: float) -> Resumption:
        """Nobody holds anything yet."""
        claims = frozenset(
            (peer.record.stage, peer.record.saved_rounds)
            for peer in view.present()
            if peer.record.stage is not None and peer.record.saved_rounds
        )
        if claims != self._claims:
            self._claims, self._claims_since_s = claims, now_s
        wanted, why = common_round(claims, stages)
        if why.startswith("waiting_for_stage") or now_s - self._claims_since_s < SETTLE_S:
            return Resumption(why=why)
        if wanted is None:
            return Resumption(load=self._saved[0], is_alone=True, why=why)
        own = next((state for state in self._saved if state.round == wanted), None)
        return Resumption(load=own, is_alone=True, why=why)  # None: another replica has it
