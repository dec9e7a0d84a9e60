"""Which stage this peer holds, and how it comes to hold it.

    none -> choosing -> fetching -> loading -> held
                 \\____________________/            a run that has not begun starts from the seed

The stage is the user's (`--stage N`, pinned in the record) or what placement finds. State is made
from the run's seed as long as nobody has trained, and for a stage that lost all its peers in the
first round; later it comes only from a peer that holds the stage, from our own checkpoint, or from
a guardian: it is never invented. If nobody has it, the seat waits and says so (run_state_lost).

Nothing is decided before the roster can be trusted: others have been met, or this peer founds the
swarm. What the worker does is told by `loaded` and `lost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swarmd.protocols import effects as fx
from swarmd.protocols.checkpoint_keeper import Kept
from swarmd.protocols.coverage import Coverage, SwarmView
from swarmd.protocols.ids import PeerId
from swarmd.protocols.load_pace import LoadPace
from swarmd.protocols.messages import Message
from swarmd.protocols.placement import Placement
from swarmd.protocols.reasons import Reason
from swarmd.protocols.saved_states import Resuming, SavedState, name_of_fetched
from swarmd.protocols.set_aside import Aside
from swarmd.protocols.state_donor import Guarded
from swarmd.protocols.state_fetch import StateFetch

RESTORE_WAIT_S = 5.0
"""Before a guardian's snapshot is taken: who was killed may be back with a newer one of its own."""
STATE_CODES = ("malformed", "wrong_run", "wrong_stage", "wrong_shape", "not_finite")
"""With which a worker refuses a state that is whole."""
HAS_NO_DONOR_S = 3.0
"""So long nobody must hold a stage that was trained before it is called lost: rosters settle."""


@dataclass(frozen=True, slots=True)
class Move:
    """From one stage to another, and why."""

    before: int
    after: int
    why: str
    at_s: float


class Seat:
    """For the composite. `fields` gathers what the own record should say; take it with `take`."""

    def __init__(
        self,
        own: PeerId,
        placement: Placement,
        *,
        wanted: int | None,
        is_observer: bool,
        is_founder: bool,
        next_token: Callable[[], int],
        saved: tuple[SavedState, ...] = (),
        partial: Mapping[int, int] | None = None,
        guarded: Mapping[int, Guarded] | None = None,
    ) -> None:
        """partial: by stage, the round of a state that a former life began to fetch. guarded: by
        stage, what this peer keeps for others."""
        self._own = own
        self.placement = placement
        self._wanted = wanted
        self._is_observer = is_observer
        self._may_choose = is_founder or bool(saved)
        self._next_token = next_token
        self._partial = dict(partial or {})
        self._guarded = {} if guarded is None else guarded
        self._has_holders = False
        """Somebody trains our stage, as far as we can see."""
        self._fetched: str | None = None
        """The file of a fetched state that a worker holds: it starts from it again if it dies."""
        self._fields: dict[str, object] = {}
        self._no_donor_since_s: float | None = None
        self._is_kept = False
        """Nobody trains our stage, but somebody has its state and will give it."""
        self.phase = "none"
        self.stage: int | None = None
        self.fetch: StateFetch | None = None
        self.round = 0
        """Of the state that was fetched."""
        self.checkpoint: Kept | None = None
        """Our own last one of this life."""
        self.aside: Aside | None = None
        """What a pause has put into a file."""
        self.is_away = False
        """The stage is put away, and no other is looked for: the peer is paused."""
        self.resuming = _resuming(saved, wanted)
        """What former lives left on disk, until a state is held."""
        self._former = saved
        """The same, for when others who have a newer state go before they have given it."""
        self.is_from_disk = False
        """The state held, or being loaded, was on a disk: ours or a guardian's."""
        self._loading: str | None = None
        self._has_claimed = False
        self._load_pace = LoadPace()
        self.moves = 0
        self.last_move: Move | None = None
        self.why = ""

    def take(self) -> dict[str, object]:
        """What to say in our record since the last call."""
        fields, self._fields = self._fields, {}
        return fields

    # ------------------------------------------------------------------------------------- review

    def review(self, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        """Call it when the view has changed, and every second or so."""
        self._may_choose = self._may_choose or len(swarm.roster.present()) > 1
        if self._is_observer or not self._may_choose or self.is_away:
            return []
        effects = self._review(swarm, now_s)
        if not self._has_claimed and isinstance(self._fields.get("stage"), int):
            self._has_claimed = True
            effects.append(fx.Emit("stage_claimed"))
        return effects

    def _review(self, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        if self.resuming is not None:
            effects = self._resume(swarm, now_s)
            if self.resuming is not None or effects:
                return effects
        if self._wanted is not None:
            return self._review_wanted(swarm, now_s)
        change = self.placement.review(swarm.roster, now_s)
        self._fields |= change.fields
        if change.fields:
            self.why = change.why
        own = swarm.roster.get(self._own)
        assert own is not None, "we are not in our own roster"
        phase = change.fields.get("phase", own.record.phase)
        stage = change.fields.get("stage", own.record.stage)
        if phase == "syncing" and isinstance(stage, int):
            return self._towards(stage, swarm, now_s)
        return []

    def _resume(self, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        """Go on with what is on disk, or find that it is of no use."""
        resuming = self.resuming
        assert resuming is not None
        if self.phase == "none":
            self.stage, self.phase = resuming.stage, "choosing"
            self._fields |= {"stage": self.stage, "phase": "syncing"}
            self._fields |= {"saved_rounds": resuming.rounds, "pinned": self._wanted is not None}
            return []  # not before the others can know
        if self.phase != "choosing":
            return []
        found = resuming.review(swarm.roster, swarm.coverage, now_s)
        self.why = found.why
        if found.is_over:
            self.resuming = None
            self._fields["saved_rounds"] = ()
        if found.load is None:
            return []
        self.round, self.is_from_disk = found.load.round, True
        told = [fx.Emit("state/resumes", {"saved": found.load})] if found.is_alone else []
        return [*told, *self._load(found.load.name, now_s)]

    def _review_wanted(self, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        assert self._wanted is not None
        if self.phase == "none":
            self._fields |= {"stage": self._wanted, "phase": "syncing", "pinned": True}
        return self._towards(self._wanted, swarm, now_s)

    def _towards(self, stage: int, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        """Go on with getting hold of `stage`."""
        effects: list[fx.Effect] = []
        if stage != self.stage:
            self._note_move(stage, now_s)
            effects = self._forget_fetch()
            self.stage, self.phase, self.checkpoint = stage, "choosing", None
        self._has_holders = bool(swarm.coverage.active[stage])
        if self.phase not in ("choosing", "fetching"):
            return effects
        if self.phase == "choosing" and not swarm.has_begun:
            return [*effects, *self._load(None, now_s)]
        if not self._has_holders:
            return [*effects, *self._without_holders(stage, swarm, now_s)]
        self._no_donor_since_s = None
        donors = [v.peer for v in swarm.coverage.active[stage] if v.peer in swarm.linked]
        return [*effects, *self._fetch_from(stage, donors, now_s)]

    def _note_move(self, stage: int, now_s: float) -> None:
        if self.stage is not None:
            self.moves += 1
            self.last_move = Move(self.stage, stage, self.why, now_s)

    def _fetch_from(self, stage: int, donors: Sequence[PeerId], now_s: float) -> list[fx.Effect]:
        if self.phase == "fetching":
            assert self.fetch is not None
            return self.fetch.set_donors(donors, now_s)
        self.phase = "fetching"
        left = self._partial.pop(stage, None)
        self.fetch = StateFetch(stage, self._own, self._next_token, partial_round=left)
        return [*self.fetch.set_donors(donors, now_s), *self.fetch.start(now_s)]

    def _without_holders(self, stage: int, swarm: SwarmView, now_s: float) -> list[fx.Effect]:
        """Nobody trains the stage: what we wrote down ourselves; what somebody who is leaving has;
        what guardians have, unless somebody comes back with more. Else wait."""
        coverage, linked = swarm.coverage, swarm.linked
        if self._no_donor_since_s is None:
            self._no_donor_since_s = now_s
        own = self._on_own_disk(stage)
        if own is not None and self.phase == "choosing":
            return self._load_own(own, now_s)
        leaving = [v.peer for v in coverage.draining[stage] if v.peer in linked]
        if leaving:
            return self._fetch_from(stage, leaving, now_s)
        newest = max([number for number, _ in coverage.guards[stage]], default=-1)
        guards = [peer for number, peer in coverage.guards[stage] if number == newest]
        returning = [v for v in coverage.coming[stage] if v.record.saved_rounds]
        self._is_kept = newest >= 0 or bool(returning) or stage in self._guarded
        is_early = now_s - self._no_donor_since_s < RESTORE_WAIT_S
        if is_early or any(max(v.record.saved_rounds) >= newest for v in returning):
            return []
        former = max((s for s in self._former if s.stage == stage), key=_round, default=None)
        if former is not None and former.round >= newest:
            found = (former.round, former.name)
            return [*self._forget_fetch(), *self._load_own(found, now_s)]
        kept = self._guarded.get(stage)
        if kept is not None and kept.round >= newest and self.phase == "choosing":
            return self._load_own((kept.round, kept.path), now_s)
        if newest < 0 and self.phase == "choosing":
            return self._load(None, now_s) if is_first_round(coverage) else []
        return self._fetch_from(stage, [peer for peer in guards if peer in linked], now_s)

    def _on_own_disk(self, stage: int) -> tuple[int, str] | None:
        """(round, name) of what this life wrote down of it."""
        if self.aside is not None and self.aside.stage == stage:
            return self.aside.round, self.aside.name
        return None if self.checkpoint is None else (self.checkpoint.round, self.checkpoint.name)

    def _load_own(self, found: tuple[int, str], now_s: float) -> list[fx.Effect]:
        (self.round, name), self.is_from_disk = found, True
        return self._load(name, now_s)

    def wants_links(self, coverage: Coverage) -> list[PeerId]:
        """Whom else we need a link to: who has what nobody trains."""
        if self.stage is None or self.phase not in ("choosing", "fetching") or self._has_holders:
            return []
        leaving = [view.peer for view in coverage.draining[self.stage]]
        guards = [peer for _, peer in coverage.guards[self.stage]]
        return [peer for peer in (*leaving, *guards) if peer != self._own]

    def _forget_fetch(self) -> list[fx.Effect]:
        """What was fetched is of no more use."""
        fetch, self.fetch = self.fetch, None
        return [] if fetch is None else fetch.stop()

    def _load(self, path: str | None, now_s: float) -> list[fx.Effect]:
        assert self.stage is not None
        self.phase, self._loading = "loading", path
        came = None if path is None or self.fetch is None else self.fetch.pace(now_s)
        self._load_pace.begin(*(came or (0, None)), now_s)
        left = [name_of_fetched(stage, number) for stage, number in sorted(self._partial.items())]
        if self._fetched is not None and self._fetched != path:
            left.append(self._fetched)
        self._fetched = path if path is not None and self.fetch is not None else None
        self._partial.clear()
        return [fx.LoadStage(self.stage, path), *map(fx.RemoveFile, left)]

    def pin(self, stage: int | None) -> None:
        """Ask for one stage and stay there; None: as the swarm decides again."""
        self._wanted = stage
        if stage is not None and stage != self.stage:
            self.why = "pin"
            self._fields |= {"stage": stage, "phase": "syncing"}

    # ------------------------------------------------------------------------------------- events

    def expects(self, peer: PeerId, message: Message) -> bool:
        """Whether a message belongs to our transfer."""
        return self.fetch is not None and self.fetch.expects(peer, message)

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Messages, files and timers of a transfer."""
        if self.fetch is None:
            return []
        effects: list[fx.Effect] = []
        for effect in self.fetch.handle(event, now_s):
            if isinstance(effect, fx.Emit) and effect.name == "state/fetched":
                self.round = effect.fields["round"]
                self.is_from_disk = not self._has_holders
                effects += self._load(effect.fields["path"], now_s)
            else:
                effects.append(effect)
        return effects

    def is_expected(self, state: str | None) -> bool:
        """Whether a worker that started from `state` is the one that was asked for."""
        return self.phase == "loading" and state == self._loading

    def loaded(self, now_s: float) -> None:
        """The worker holds the stage."""
        self._load_pace.ended(now_s)
        self.phase, self.resuming, self.aside, self._former = "held", None, None, ()
        self._fields |= {"phase": "active", "saved_rounds": ()}

    def lost(self, code: str, now_s: float) -> list[fx.Effect]:
        """The worker is gone, and with it what it had learned; or it did not take the state that
        was fetched: then those who gave it are not asked again."""
        if self.phase == "held":
            self.phase, self.fetch = "choosing", None
            self._fields["phase"] = "syncing"
            if self.checkpoint is not None:
                self._fields["saved_rounds"] = (self.checkpoint.round,)
        elif self.phase == "loading" and code == "data_missing":
            return self._leave_without_data()
        elif self.phase == "loading" and self.fetch is not None and code in STATE_CODES:
            self.phase = "fetching"
            return self.fetch.begin_again(now_s)
        return []

    def _leave_without_data(self) -> list[fx.Effect]:
        """The first stage is none for us: whoever has the data may take it, we take another."""
        effects = self._forget_fetch()
        self.stage, self.phase, self.checkpoint = None, "none", None
        self._wanted = self.resuming = None
        self._fields |= {"stage": None, "phase": "joining", "pinned": False, "saved_rounds": ()}
        self._fields["lacks_data"] = True
        return effects

    def put_away(self, round_number: int) -> None:
        """The stage is in a file, the worker ends; `come_back` takes a stage again."""
        assert self.stage is not None, "no stage to put away"
        self.aside, self.is_away = Aside(self.stage, round_number), True
        self.stage, self.phase, self.fetch = None, "none", None

    def come_back(self) -> None:
        self.is_away = False

    def reason(self, now_s: float) -> Reason | None:
        """What the seat is at, if it is not held."""
        if self.phase == "fetching" and self.fetch is not None:
            return self.fetch.reason(now_s)
        if self.phase == "loading":
            return self._load_pace.reason(self.stage, now_s)
        if self.phase == "choosing" and self.resuming is not None:
            return self.resuming.reason()
        if self.phase == "choosing" and self._no_donor_since_s is not None and not self._is_kept:
            if now_s - self._no_donor_since_s >= HAS_NO_DONOR_S:
                text = f"nobody holds the state of stage {self.stage}"
                return Reason(code="run_state_lost", text=text, stage=self.stage)
        return None


def is_first_round(coverage: Coverage) -> bool:
    """What it began with is the seed's, whoever has trained since."""
    return not any(view.record.round for views in coverage.active for view in views)


def _round(saved: SavedState) -> int:
    return saved.round


def _resuming(saved: tuple[SavedState, ...], wanted: int | None) -> Resuming | None:
    """None if there is nothing on disk, or only of a stage that was not asked for."""
    stage = wanted if wanted is not None else saved[0].stage if saved else None
    of_stage = [state for state in saved if state.stage == stage]
    return Resuming(stage, of_stage) if stage is not None and of_stage else None
