"""One simulated run from a seed: start a swarm, let faults strike, heal, see whether it settles.

Two questions, in two phases. Safety: while anything may happen, nothing illegal does (checkers.py,
after every event). Liveness: once what lasts has been healed, the living agree within a bound; who
has crashed for good stays away, and liars go on lying. The answer is an exit code, and the last
line of the report repeats the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from swarmd.errors import UserError
from swarmd.protocols import assignment, membership_limits
from swarmd.protocols import effects as fx
from swarmd.sim.checkers import GOSSIP_CHECKERS, Checkers, unsettled
from swarmd.sim.clock import World
from swarmd.sim.cluster import Cluster, Factory, SimPeer, shape_of
from swarmd.sim.fault_draw import FaultOptions, draw_clocks, draw_faults, draw_profile
from swarmd.sim.faults import FaultPlan
from swarmd.sim.gossip_peer import gossip_factory
from swarmd.sim.scenarios import SCENARIOS

OK, INVARIANT_BROKEN, TARGET_MISSED, PEER_CRASHED = 0, 10, 11, 12
OUTCOMES = {
    OK: "target_reached",
    INVARIANT_BROKEN: "invariant_broken",
    TARGET_MISSED: "target_missed",
    PEER_CRASHED: "peer_crashed",
}
START_S = 12.0
"""For a swarm to find itself before faults begin."""
ROUND_S = 10.0
"""Virtual time of faults for each round asked for."""
SETTLE_S_MAX = 90.0
"""After healing. Guess: reuniting, catching up and one free move fit in twice."""
SETTLED_FOR_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The flags of `swarmd sim`. What is None is drawn from the seed."""

    peers: int = 12
    stages: int = 3
    rounds: int = 3
    seed: int = 1
    rtt_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    loss: float | None = None
    kill: int | None = None
    scenario: str | None = None
    trace: bool = False
    until_failure: bool = False
    seeds_max: int = 1_000_000
    """How many seeds `until_failure` tries."""
    exact: bool = False
    """Encode and decode every message."""

    def command(self) -> str:
        """Repeats this very run."""
        words = [f"swarmd sim --peers {self.peers} --stages {self.stages}"]
        words.append(f"--rounds {self.rounds} --seed {self.seed}")
        if self.rtt_s is not None:
            words.append(f"--rtt {self.rtt_s * 1000:g}ms")
        if self.bandwidth_bytes_per_s is not None:
            words.append(f"--bw {self.bandwidth_bytes_per_s * 8 / 1e6:g}mbit")
        if self.loss is not None:
            words.append(f"--loss {self.loss:g}")
        if self.kill is not None:
            words.append(f"--kill {self.kill}")
        if self.scenario is not None:
            words.append(f"--scenario {self.scenario}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class SimResult:
    """`swarmd.sim` (docs/cli.md, section 15)."""

    outcome: str
    exit_code: int
    seed: int
    command: str
    trace_hash: str
    events: int
    virtual_s: float
    faults_drawn: tuple[str, ...]
    violations: tuple[str, ...]
    rounds: int
    tokens_per_s: float | None
    bytes_per_peer_per_s: float
    messages_per_peer_per_s: float
    wait_share_by_reason: dict[str, float]
    settled_after_s: float | None = None
    """After healing."""

    def to_json(self) -> dict[str, Any]:
        return {"schema": "swarmd.sim", "schema_version": 1, **asdict(self)}


Line = Callable[[str], None]


class Trace:
    """One line for each change of state, in fixed columns, and a hash over every event."""

    def __init__(self, cluster: Cluster, line: Line | None) -> None:
        self._cluster = cluster
        self._line = line
        self._hash = hashlib.blake2b(digest_size=16)
        self.events = 0
        cluster.observe.append(self._event)
        cluster.on_emit.append(self._emit)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        self._hash.update(text.encode())
        if self._line is not None:
            self._line(text)

    def _event(self, peer: SimPeer, event: fx.Event, effects: list[fx.Effect]) -> None:
        self.events += 1
        now_s = self._cluster.world.now_s
        self._hash.update(f"{now_s!r}{peer.number}{type(event).__name__}{len(effects)}".encode())

    def _emit(self, peer: SimPeer, emit: fx.Emit) -> None:
        values = " ".join(f"{name}={_brief(value)}" for name, value in emit.fields.items())
        self.note(f"{self._cluster.world.now_s:10.3f}  {peer.name:<5} {emit.name:<18} {values}")


def run(options: SimOptions, line: Line | None = None) -> SimResult:
    """One run, or with `until_failure` one seed after the other up to the first that fails.

    line: takes the lines of the report; the trace too if asked for. Raises UserError for options
    that make no sense together.
    """
    _check(options)
    say = line or (lambda text: None)
    for seed in range(options.seed, options.seed + options.seeds_max):
        result = run_once(replace(options, seed=seed), say)
        if result.exit_code != OK or not options.until_failure:
            break
    return result


def _check(options: SimOptions) -> None:
    if options.scenario is not None and options.scenario not in SCENARIOS:
        raise UserError(
            f"there is no scenario {options.scenario}",
            code="usage",
            exit_code=2,
            hint=f"one of {', '.join(sorted(SCENARIOS))}",
        )
    if options.kill is not None and not 0 <= options.kill < options.peers:
        raise UserError(
            f"--kill {options.kill} of {options.peers} peers",
            code="usage",
            exit_code=2,
            hint="at least one peer must live",
        )


def run_once(options: SimOptions, say: Line) -> SimResult:
    """The run of one seed."""
    say(f"seed {options.seed}")
    simulation = Simulation(options, say)
    simulation.go()
    result = simulation.result()
    for text in result.violations:
        say(text)
    say(f"{result.outcome}: {result.events} events, {result.virtual_s:.1f} virtual seconds")
    say(result.command)
    return result


@dataclass(slots=True)
class _Ending:
    exit_code: int = OK
    problems: list[str] = field(default_factory=list)
    settled_after_s: float | None = None


class Simulation:
    """The parts of one run, put together."""

    def __init__(self, options: SimOptions, say: Line, factory: Factory | None = None) -> None:
        self._options = options
        self._say = say
        self.world = World(options.seed)
        given = FaultOptions(
            rtt_s=options.rtt_s,
            bandwidth_bytes_per_s=options.bandwidth_bytes_per_s,
            loss=options.loss,
            kill=options.kill,
        )
        self.limits = membership_limits.wan()
        self.cluster = Cluster(
            self.world,
            factory or gossip_factory(self.limits, assignment.local()),
            shape_of(options.stages, options.rounds, options.seed),
            draw_profile(self.world, given),
            options.peers,
            exact=options.exact,
        )
        self.trace = Trace(self.cluster, say if options.trace else None)
        self.checkers = Checkers(self.cluster, [kind(self.cluster) for kind in GOSSIP_CHECKERS])
        draw_clocks(self.cluster)
        self._faults_end_s = START_S + ROUND_S * options.rounds
        if options.scenario is None:
            faults = draw_faults(
                self.world, options.peers, self.limits, given, START_S, self._faults_end_s
            )
        else:
            scenario = SCENARIOS[options.scenario]
            faults = scenario(options.peers, START_S, self._faults_end_s)
        self.plan = FaultPlan(self.cluster, self.limits, faults)
        self._ending = _Ending()

    def go(self) -> None:
        """Start, suffer, heal, settle."""
        for fault in self.plan.faults:
            self._say(f"fault {fault}")
        try:
            self._start_all()
            self.plan.arm()
            self.world.run_until(self._faults_end_s)
            self.plan.heal()
            self._settle()
        except Exception as error:
            self._ending.exit_code = PEER_CRASHED
            self._ending.problems.append(f"{type(error).__name__}: {error}")
            self._ending.problems += _where(error)
        if self.checkers.violations:
            self._ending.exit_code = INVARIANT_BROKEN

    def result(self) -> SimResult:
        ending, network = self._ending, self.cluster.network
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
            rounds=self._options.rounds,
            tokens_per_s=None,
            bytes_per_peer_per_s=network.sent_bytes / peer_seconds,
            messages_per_peer_per_s=network.sent_messages / peer_seconds,
            wait_share_by_reason={},
            settled_after_s=ending.settled_after_s,
        )

    def _start_all(self) -> None:
        """The founder, then the others within the first seconds, or all at the same instant."""
        rng = self.world.rng_for("starts")
        spread_s = rng.choice((0.1, 1.0, START_S / 3))
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
            self.world.run_until(self.world.now_s + 1.0)
            problems = unsettled(self.cluster)
            if problems:
                well_since_s = None
            elif well_since_s is None:
                well_since_s = self.world.now_s
            elif self.world.now_s - well_since_s >= SETTLED_FOR_S:
                self._ending.settled_after_s = well_since_s - healed_s
                return
        self._ending.exit_code = TARGET_MISSED
        self._ending.problems += problems


def _where(error: BaseException) -> list[str]:
    """The innermost frames of a crash, without addresses or paths of this machine."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"  in {code.co_qualname} line {trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-6:]


def _brief(value: object) -> str:
    text = str(value)
    return f"·{text[-4:]}" if text.startswith("12D3KooW") else text
