"""One simulated run: start a swarm, let faults strike, heal, and see whether it comes to rest.

Two questions, in two phases. Safety: while anything may happen, nothing illegal does (checkers.py,
after every event). Liveness: once what lasts has been healed, the living agree, and whole peers
finish their run, within a bound; who has crashed for good stays away, and liars go on lying. The
answer is an exit code.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from swarmd.errors import UserError
from swarmd.protocols import assignment, membership_limits
from swarmd.protocols.run_shape import RunShape
from swarmd.sim.checkers import GOSSIP_CHECKERS, Checker, Checkers, unsettled
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster
from swarmd.sim.fake_compute import CostModel
from swarmd.sim.fault_draw import FaultOptions, draw_clocks, draw_faults, draw_profile
from swarmd.sim.faults import Fault, FaultPlan
from swarmd.sim.gossip_peer import gossip_factory
from swarmd.sim.options import (
    INVARIANT_BROKEN,
    OK,
    OUTCOMES,
    PEER_CRASHED,
    TARGET_MISSED,
    SimOptions,
    SimResult,
)
from swarmd.sim.scenarios import SCENARIOS
from swarmd.sim.small_run import shape_of
from swarmd.sim.trace import Line, Trace
from swarmd.sim.whole_peer import whole_factory
from swarmd.sim.whole_run import (
    REPLICA_MICRO_BATCHES_PER_S,
    SLOWER,
    WHOLE_CHECKERS,
    RunWatch,
)

START_S = 12.0
"""For a swarm to find itself before faults begin."""
COORDINATOR_START_S = 6.0
"""The same, where no state has to be fetched and nothing trained."""
COORDINATOR_ROUND_S = 1.0
"""Of pretended work."""
CALM_ROUNDS = 2
"""After the faults, so that the run is still on when they are over."""
SETTLE_S_MAX = 90.0
"""After healing. Guess: reuniting, catching up and one free move fit in twice."""
SETTLED_FOR_S = 3.0
SLICE_S = 0.1
"""Of virtual time, done in one go: well below a second of work, however many peers."""
FINISH_S_MAX = 600.0
"""For whole peers to finish their run. Guess: ten times what it takes without faults."""


@dataclass(slots=True)
class _Ending:
    exit_code: int = OK
    problems: list[str] = field(default_factory=list)
    settled_after_s: float | None = None


class Simulation:
    """The parts of one run, put together.

    between: called between slices of virtual time. It may end the run with a UserError.
    """

    def __init__(
        self, options: SimOptions, say: Line, between: Callable[[], None] | None = None
    ) -> None:
        self._options = options
        self._say = say
        self._between = between
        self.world = World(options.seed)
        given = FaultOptions(
            rtt_s=options.rtt_s,
            bandwidth_bytes_per_s=options.bandwidth_bytes_per_s,
            loss=options.loss,
            kill=options.kill,
        )
        self.limits = membership_limits.wan()
        placing = assignment.local()
        coordinator = gossip_factory(self.limits, placing, COORDINATOR_ROUND_S)
        whole = whole_factory(self.limits, lambda spec: None, placing=placing)
        self.cluster = Cluster(
            self.world,
            coordinator if options.coordinator_only else whole,
            _shape(options),
            draw_profile(self.world, given),
            options.peers,
            costs=_slower(CostModel()),
            exact=options.exact,
        )
        self.trace = Trace(self.cluster, say if options.trace else None)
        kinds = GOSSIP_CHECKERS if options.coordinator_only else GOSSIP_CHECKERS + WHOLE_CHECKERS
        checkers: list[Checker] = [kind(self.cluster) for kind in kinds]
        self.checkers = Checkers(self.cluster, checkers)
        self.watch = None if options.coordinator_only else RunWatch(self.cluster)
        draw_clocks(self.cluster)
        round_s = COORDINATOR_ROUND_S if options.coordinator_only else options.round_s
        self._start_s = COORDINATOR_START_S if options.coordinator_only else START_S
        self._faults_end_s = self._start_s + round_s * options.rounds
        self.plan = FaultPlan(self.cluster, self.limits, self._faults(given), self.trace.note)
        self._ending = _Ending()

    def _faults(self, given: FaultOptions) -> list[Fault]:
        peers = self._options.peers
        if self._options.scenario is not None:
            return SCENARIOS[self._options.scenario](peers, self._start_s, self._faults_end_s)
        return draw_faults(self.world, peers, self.limits, given, self._start_s, self._faults_end_s)

    # ------------------------------------------------------------------------------------- running

    def go(self) -> None:
        """Start, suffer, heal, come to rest."""
        for fault in self.plan.faults:
            self._say(f"fault {fault}")
        try:
            with _cycles_kept():
                self._go()
        except UserError:  # of `between`: nobody has crashed
            raise
        except Exception as error:
            self._ending.exit_code = PEER_CRASHED
            self._ending.problems.append(f"{type(error).__name__}: {error}")
            self._ending.problems += _where(error)
        if self.checkers.violations:
            self._ending.exit_code = INVARIANT_BROKEN

    def _go(self) -> None:
        self._start_all()
        self.plan.arm()
        self._run_until(self._faults_end_s)
        self.plan.heal()
        if self.watch is None:
            self._settle()
        else:
            self._finish(self.watch)

    def _run_until(self, time_s: float) -> None:
        while self._between is not None and self.world.now_s + SLICE_S < time_s:
            self.world.run_until(self.world.now_s + SLICE_S)
            self._between()
        self.world.run_until(time_s)

    def _start_all(self) -> None:
        """The founder, then the others within the first seconds, or all at the same instant."""
        rng = self.world.rng_for("starts")
        spread_s = rng.choice((0.1, 1.0, self._start_s / 3))
        self.cluster.start(0)
        first = [peer.number for peer in self.cluster.peers if peer.number not in self.plan.late]
        for number in first[1:]:
            at_s = rng.uniform(0.0, spread_s)
            self.world.at(at_s, self.cluster.start, number, (0, rng.choice(first)))

    def _settle(self) -> None:
        """Everybody agrees, and goes on agreeing for a moment."""
        healed_s = self.world.now_s
        well_since_s: float | None = None
        problems: list[str] = []
        while self.world.now_s - healed_s < SETTLE_S_MAX:
            self._run_until(self.world.now_s + 1.0)
            problems = unsettled(self.cluster)
            if problems:
                well_since_s = None
            elif well_since_s is None:
                well_since_s = self.world.now_s
            elif self.world.now_s - well_since_s >= SETTLED_FOR_S:
                self._ending.settled_after_s = well_since_s - healed_s
                return
        self._miss(problems)

    def _finish(self, watch: RunWatch) -> None:
        """The run comes to its last step at everybody that lives."""
        healed_s = self.world.now_s
        problems = watch.unfinished()
        while problems:
            if self.world.now_s - healed_s >= FINISH_S_MAX:
                self._miss(problems)
                return
            self._run_until(self.world.now_s + 1.0)
            problems = watch.unfinished()
        self._ending.settled_after_s = self.world.now_s - healed_s

    def _miss(self, problems: list[str]) -> None:
        self._ending.exit_code = TARGET_MISSED
        self._ending.problems += problems

    # -------------------------------------------------------------------------------------- result

    def result(self) -> SimResult:
        ending, network, watch = self._ending, self.cluster.network, self.watch
        peer_seconds = max(1e-9, self.world.now_s * len(self.cluster.peers))
        return SimResult(
            outcome=OUTCOMES[ending.exit_code],
            exit_code=ending.exit_code,
            seed=self._options.seed,
            command=self._options.command(),
            trace_hash=self.trace.digest,
            events=self.trace.events,
            virtual_s=self.world.now_s,
            faults_drawn=tuple(str(fault) for fault in self.plan.faults),
            violations=(*map(str, self.checkers.violations), *ending.problems),
            rounds=self.cluster.shape.rounds if watch is not None else self._options.rounds,
            tokens_per_s=None if watch is None else watch.tokens_per_s(),
            bytes_per_peer_per_s=network.sent_bytes / peer_seconds,
            messages_per_peer_per_s=network.sent_messages / peer_seconds,
            wait_share_by_reason={} if watch is None else watch.shares(),
            settled_after_s=ending.settled_after_s,
        )


def _shape(options: SimOptions) -> RunShape:
    """A run whose rounds take about `round_s` when nobody fails."""
    replicas = options.peers / options.stages
    steps = 5
    per_step = round(options.round_s * replicas * REPLICA_MICRO_BATCHES_PER_S / steps)
    return shape_of(
        options.stages,
        options.rounds + CALM_ROUNDS,
        options.seed,
        micro_batches_per_step=max(2, per_step),
    )


def _slower(costs: CostModel) -> CostModel:
    return CostModel(
        forward_s=SLOWER * costs.forward_s,
        backward_s=SLOWER * costs.backward_s,
        step_s=costs.step_s,
        call_s=costs.call_s,
        load_s=costs.load_s,
        jitter=costs.jitter,
    )


def _where(error: BaseException) -> list[str]:
    """The innermost frames of a crash, without addresses or paths of this machine."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"  in {code.co_qualname} line {trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-6:]


@contextmanager
def _cycles_kept() -> Iterator[None]:
    """Without the collector of cycles: it takes a fifth of the time to find that nothing of a run
    can go before its end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_on:
            gc.enable()
