"""Between the pipeline and the outer rounds of one stage: who holds, who goes on, and when.

A round's inner phase ends when the pipeline meets the next round or the ledger says so. Then the
pipeline takes its last step and holds, the round keeper mixes and steps, and the pipeline goes on.
What else ends meanwhile is remembered and ended next; if several rounds have, this replica was left
behind, and all but the last are skipped.

For the composite (StageWork): `begin` when the worker holds the state, `end` when a round is over,
`ended` when the keeper tells rounds/ended; everything that the driver tells goes to `handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.pace import Pace
from swarmd.protocols.pipeline import Pipeline
from swarmd.protocols.reasons import Reason
from swarmd.protocols.roster import PeerView
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.protocols.rounds import RoundKeeper
from swarmd.protocols.run_shape import RunShape


class RoundWork:
    """One stage's. `next_number` gives job ids that no other machine of this peer uses."""

    def __init__(
        self,
        own: PeerId,
        stage: int,
        shape: RunShape,
        rules: OuterRules,
        limits: RoundLimits,
        next_number: Callable[[], int],
    ) -> None:
        self._own = own
        self.stage = stage
        self._shape = shape
        self.keeper = RoundKeeper(own, stage, shape, rules, next_job_id=next_number, limits=limits)
        self.ending: int | None = None
        """The round whose mixes and outer step are under way; the pipeline is held."""
        self._ended = -1
        """The last round that is known to have ended."""
        self._counted = 0
        self._replicas: dict[PeerId, int] = {}
        self._counts_from = 0
        """The first round whose mixes a newcomer counts in: the one it comes into has begun without
        it, and in the next one it has weight 0."""
        self._came_in = 0
        """The round in which the pipeline began."""
        self._pace = Pace()
        """Of the micro-batches of the swarm since then, while this is a newcomer."""

    @property
    def replicas(self) -> tuple[PeerId, ...]:
        """The active peers of our stage, ourselves among them."""
        return tuple(sorted(self._replicas))

    def begin(self, round_number: int, now_s: float, *, joins: bool) -> list[fx.Effect]:
        """The worker holds the state, and the pipeline is a new one.

        joins: the state is another replica's.
        """
        self.ending, self._counted, self._ended = None, 0, round_number - 1
        self._counts_from = round_number + 2 if joins else 0
        self._came_in, self._pace = round_number, Pace()
        return self.keeper.start(round_number, now_s, joins=joins)

    def set_replicas(self, views: Iterable[PeerView], now_s: float) -> list[fx.Effect]:
        """The active peers of our stage."""
        replicas = {view.peer: view.record.mixes_from for view in views}
        if self._own not in replicas or replicas == self._replicas:
            return []
        self._replicas = replicas
        return self.keeper.set_replicas(replicas, now_s)

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Messages of mixing, jobs, links, timers, the worker's end."""
        if isinstance(event, fx.ComputeLost):
            self.ending = None
        return self.keeper.handle(event, now_s)

    def end(self, round_number: int, pipeline: Pipeline, now_s: float) -> list[fx.Effect]:
        """A round has ended for the swarm; the pipeline takes its last step here, and holds."""
        self._ended = max(self._ended, round_number)
        if self.ending is not None:
            return []
        self.ending = self._ended
        effects = pipeline.finish_round(self.ending, now_s)
        counted = pipeline.statistics(now_s).counters.counted
        samples = (counted - self._counted) * self._shape.micro_batch_samples
        self._counted = counted
        return [*effects, *self.keeper.inner_ended(self.ending, samples, now_s)]

    def ended(self, round_number: int, pipeline: Pipeline, now_s: float) -> list[fx.Effect]:
        """The keeper says that the round's outer step is in the weights: let the pipeline go on, or
        end what else has ended meanwhile."""
        self.ending = None
        if self._ended > round_number:
            return self.end(self._ended, pipeline, now_s)
        return pipeline.hold(False, now_s)

    def reason(self, now_s: float) -> Reason | None:
        """Why the pipeline is held, once that takes longer than a hiccup."""
        view = self.keeper.view
        if self.ending is None or view.mixing is None:
            return None
        here, planned = view.mixing
        return Reason(
            code="mixing",
            text=f"exchange of round {self.ending} with {here} of {planned} replicas",
            stage=self.stage,
            round=self.ending,
            eta_at_s=view.deadline_s,
            eta_basis="unknown" if view.deadline_s is None else "deadline",
        )

    def warming_up(self, ended: int, now_s: float) -> Reason | None:
        """While this replica is a newcomer: when it will count. ended: micro-batches of the present
        round that have."""
        number = self.keeper.round
        if not self.keeper.is_newcomer or number is None:
            return None
        counts_from = max(self._counts_from, number + 1)
        self._pace.note(self._micro_batches(self._came_in, number) + ended, now_s)
        more = self._micro_batches(number, min(counts_from, self._shape.rounds)) - ended
        takes_s = self._pace.takes_s(more, now_s)
        eta_at_s = None if takes_s is None else now_s + takes_s
        return Reason(
            code="training",
            text=f"warms up: trains, and counts in the mixes from round {counts_from}",
            stage=self.stage,
            round=number,
            eta_at_s=eta_at_s,
            eta_basis="unknown" if eta_at_s is None else "measured",
        )

    def _micro_batches(self, first: int, end: int) -> int:
        """Of the rounds from `first` up to `end`, which does not count."""
        return sum(map(self._shape.micro_batches_of_round, range(first, end)))
