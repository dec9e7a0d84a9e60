"""Keeps snapshots of stages that are not ours, so that no stage is lost with its last peer.

Every `rounds` outer rounds, and when the run or its last holder ends, the guardians of a stage
fetch what the round began with, as a newcomer would, and keep the newest on disk. Who guards
follows from the roster alone: `copies` peers of other stages, by rendezvous hash, the same ones as
long as they are there. What a peer guards stands in its record: whoever takes a stage that nobody
holds knows whom to ask, and a last holder when it may go.

A run of one stage has no other stages: there, checkpoints of the replicas are what remains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swarmd.protocols import effects as fx
from swarmd.protocols.coverage import Coverage
from swarmd.protocols.ids import PeerId
from swarmd.protocols.limits import GIB
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.state import GUARDED_MAX, GuardedStage
from swarmd.protocols.roster import PeerView
from swarmd.protocols.saved_states import name_of_guarded
from swarmd.protocols.state_donor import Guarded
from swarmd.protocols.state_fetch import StateFetch
from swarmd.protocols.wire import encode

RETRY_S = 30.0
"""After a snapshot could not be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """The run's, and this peer's own quota."""

    rounds: int = 5
    copies: int = 2
    bytes_max: int = 16 * GIB


def guardians_of(stage: int, coverage: Coverage, copies: int) -> tuple[PeerId, ...]:
    """Peers that train other stages, best first."""
    others = [v.peer for s, views in enumerate(coverage.active) if s != stage for v in views]
    return tuple(sorted(others, key=lambda peer: (_rank(stage, peer), peer))[:copies])


class Guard:
    """For the composite: `review` as often as the seat's, `expects` and `handle` as StateFetch's.

    held: by stage, shared with the donor, which gives them on. save_ledger: what lies beside each:
    a swarm may come back with nobody else who knows what was done.
    """

    def __init__(
        self,
        own: PeerId,
        rounds: int,
        rules: GuardRules,
        next_number: Callable[[], int],
        save_ledger: Callable[[], Iterable[Message]],
        held: Iterable[Guarded] = (),
    ) -> None:
        self._own = own
        self._rounds = rounds
        self._rules = rules
        self._next_number = next_number
        self._save_ledger = save_ledger
        self.held = {guarded.stage: guarded for guarded in held}
        self.fetch: StateFetch | None = None
        self._keeping: tuple[int, Guarded] | None = None
        """Token, and what is being kept under it."""
        self._retry_s: dict[int, float] = {}
        self.collecting: set[int] = set()
        """Stages of which a snapshot is wanted now, for our own user."""

    def collect(self, stages: Iterable[int]) -> None:
        """Have a snapshot of each, as new as there is."""
        self.collecting = set(stages)
        self._retry_s.clear()

    @property
    def told(self) -> tuple[GuardedStage, ...]:
        """For the own record."""
        held = sorted(self.held.values(), key=lambda guarded: guarded.stage)
        return tuple(GuardedStage(stage=g.stage, round=g.round) for g in held[:GUARDED_MAX])

    def review(
        self, coverage: Coverage, own_stage: int | None, linked: frozenset[PeerId], now_s: float
    ) -> list[fx.Effect]:
        """See whether a snapshot is due, and go on with the one that is being fetched."""
        if self._keeping is not None:
            return []
        effects: list[fx.Effect] = []
        if self.fetch is not None and self.fetch.stage == own_stage:
            effects = self.drop()
        if self.fetch is None:
            stage = self._due(coverage, own_stage, now_s)
            if stage is None:
                return effects
            self.fetch = StateFetch(stage, self._own, self._next_number, name="guard")
            effects += self.fetch.start(now_s)
        givers = [view.peer for view in holders_of(self.fetch.stage, coverage)]
        return [*effects, *self.fetch.set_donors([p for p in givers if p in linked], now_s)]

    def drop(self) -> list[fx.Effect]:
        """Fetch nothing any more."""
        fetch, self.fetch = self.fetch, None
        return [] if fetch is None else fetch.stop()

    def wants_links(self, coverage: Coverage) -> list[PeerId]:
        if self.fetch is None:
            return []
        return [view.peer for view in holders_of(self.fetch.stage, coverage)]

    def _due(self, coverage: Coverage, own_stage: int | None, now_s: float) -> int | None:
        wanted = [stage for stage in sorted(self.collecting) if holders_of(stage, coverage)]
        if wanted:
            return wanted[0]
        for stage in range(coverage.stages):
            held = self.held.get(stage)
            target = self._target(stage, coverage)
            if stage == own_stage or target < 1 or (held is not None and held.round >= target):
                continue
            if self._retry_s.get(stage, now_s) > now_s:
                continue
            if self._own in guardians_of(stage, coverage, self._rules.copies):
                return stage
        return None

    def _target(self, stage: int, coverage: Coverage) -> int:
        """The round of which a snapshot should be guarded by now; 0: none yet."""
        reached = max((view.record.round for view in holders_of(stage, coverage)), default=0)
        if reached >= self._rounds or not coverage.active[stage]:
            return min(reached, self._rounds)  # the end of the run, or the last holder goes
        return reached - reached % self._rules.rounds if self._rules.rounds else 0

    # ------------------------------------------------------------------------------------- events

    def expects(self, peer: PeerId, message: Message) -> bool:
        return self.fetch is not None and self.fetch.expects(peer, message)

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        if self._keeping is not None and getattr(event, "token", None) == self._keeping[0]:
            return self._kept(event, now_s)
        if self.fetch is None:
            return []
        effects: list[fx.Effect] = []
        for effect in self.fetch.handle(event, now_s):
            if isinstance(effect, fx.Emit) and effect.name == "state/fetched":
                effects += self._keep(effect.fields)
            elif not isinstance(effect, fx.Emit) or effect.name == "state/rejected":
                effects.append(effect)  # the rest is told of transfers that the peer waits for
        if self.fetch is not None and self.fetch.plan is not None and not self.fetch.is_done:
            effects += self._refuse_too_much(self.fetch.stage, self.fetch.plan.size_bytes, now_s)
        return effects

    def _refuse_too_much(self, stage: int, size_bytes: int, now_s: float) -> list[fx.Effect]:
        others = sum(g.size_bytes for s, g in self.held.items() if s != stage)
        if others + size_bytes <= self._rules.bytes_max:
            return []
        return [*self.drop(), *self._failed(stage, "disk_limit", now_s)]

    def _keep(self, fields: dict[str, object]) -> list[fx.Effect]:
        assert self.fetch is not None
        assert self.fetch.plan is not None
        stage, plan = self.fetch.stage, self.fetch.plan
        path, self.fetch = self.fetch.path, None
        name = name_of_guarded(stage, plan.round)
        guarded = Guarded(stage, plan.round, plan.step, name, plan.middle, plan.size_bytes)
        token = self._next_number()
        self._keeping = (token, guarded)
        about = GuardedStage(stage=stage, round=plan.round, sketch=plan.middle)
        ledger = tuple(encode(message) for message in (about, *self._save_ledger()))
        return [fx.KeepCheckpoint(token, path, stage, plan.round, plan.step, ledger, guarded=True)]

    def _kept(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        assert self._keeping is not None
        (_, guarded), self._keeping = self._keeping, None
        if isinstance(event, fx.FileFailed):
            return self._failed(guarded.stage, event.code, now_s)
        self.held[guarded.stage] = guarded
        self.collecting.discard(guarded.stage)
        return [fx.Emit("state_guarded", {"stage": guarded.stage, "round": guarded.round})]

    def _failed(self, stage: int, code: str, now_s: float) -> list[fx.Effect]:
        self._retry_s[stage] = now_s + RETRY_S
        self.collecting.discard(stage)
        return [fx.Emit("guard_failed", {"stage": stage, "code": code})]


def holders_of(stage: int, coverage: Coverage) -> Sequence[PeerView]:
    """Those who train it; if nobody does, those who are about to leave it."""
    return coverage.active[stage] or coverage.draining[stage]


def _rank(stage: int, peer: PeerId) -> bytes:
    return hashlib.blake2b(f"{stage}/{peer}".encode(), digest_size=8).digest()
