"""Several RoundKeepers joined by a wire and workers that are virtual. No trio, no torch, no clock.

Each replica has a few weights that are really mixed (swarmd/sim/fake_outer.py), slots that notice a
leak or a double release, and the composite's part: an inner phase of some length that changes the
weights, then `inner_ended`, then on when rounds/ended is told.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.jobs import BufferRef, JobFailure, JobResult, StageCall
from swarmd.protocols.messages import Message
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.protocols.rounds import RoundKeeper
from swarmd.protocols.run_shape import RunShape
from swarmd.protocols.wire import decode, encode
from swarmd.sim.fake_outer import FakeJobFailed, FakeOuter, Values

SHAPE = RunShape(
    run_id=RunId("5" * 64),
    stages=1,
    inner_steps=4,
    total_steps=4_000,
    micro_batches_per_step=4,
    micro_batch_samples=2,
    sequence_tokens=8,
    held_out_micro_batches=0,
    width=8,
)
INNER_S_MIN = 0.05
"""A replica that begins a round when its data are used up still has something to finish."""
SAMPLES = SHAPE.micro_batches_of_round(0) * SHAPE.micro_batch_samples


class Slots:
    """`free_max`: at most so many may be held when something arrives; else its bytes are lost."""

    def __init__(self) -> None:
        self._content: dict[BufferRef, Values] = {}
        self._numbers = itertools.count()
        self.free_max: int | None = None
        self.held_max = 0

    def acquire(self, content: Values, size_bytes: int) -> BufferRef:
        ref = BufferRef(next(self._numbers), 0, size_bytes)
        self._content[ref] = content
        self.held_max = max(self.held_max, len(self._content))
        return ref

    def has_room(self) -> bool:
        return self.free_max is None or len(self._content) < self.free_max

    def read(self, ref: BufferRef) -> Values:
        assert ref in self._content, f"slot {ref.slot} was released before it was read"
        return self._content[ref]

    def release(self, ref: BufferRef) -> None:
        assert ref in self._content, f"slot {ref.slot} was released twice"
        del self._content[ref]

    def __len__(self) -> int:
        return len(self._content)


class Replica:
    """One RoundKeeper with its worker; carries its effects out as the driver would."""

    def __init__(self, world: World, number: int, weights: list[float]) -> None:
        self.world = world
        self.id = PeerId(f"replica-{number:02d}")
        self.number = number
        self.outer = FakeOuter(weights, world.covered)
        self.slots = Slots()
        self.keeper = RoundKeeper(
            self.id,
            0,
            world.shape,
            world.rules,
            next_job_id=itertools.count().__next__,
            limits=world.limits,
        )
        self.rng = random.Random(f"{world.seed} {self.id}")
        self.backlog_s: Callable[[int], float] = lambda round_number: 0.0
        """How much later than the others its inner phase of a round ends."""
        self.job_s = 0.001
        self.micro_batch_s = 0.0
        """The worker computes one before it does what stands in its queue, and then the next."""
        self._turn = 0
        """Jobs that it does before it computes again."""
        self.samples = SAMPLES
        self.inner: Callable[[Replica], None] = drift
        self.spoil: Callable[[Message, Values], Values] | None = None
        """What this replica does to the tensors it sends."""
        self.rewrite: Callable[[Message], Message] | None = None
        """... and to the messages."""
        self.is_alive = True
        self.is_frozen = False
        self.round = 0
        self.refused_payloads = 0
        self._ended_inner_s: float | None = None
        self.rounds: list[dict[str, Any]] = []
        """The fields of every round_* event."""
        self.starts: dict[int, list[float]] = {}
        self.gradients: dict[int, list[float]] = {}
        self.stepped_with: dict[int, dict[int, float]] = {}
        """By round: x, D, and the outer gradient that each coordinate was stepped with."""
        self.held_s: list[float] = []
        self.told: Counter[str] = Counter()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.log: list[str] = []
        self._jobs: list[tuple[int, StageCall, list[Values]]] = []
        self._backlog: list[Callable[[], None]] = []
        self._late: list[tuple[float, str]] = []

    # ------------------------------------------------------------------------------- composite

    def start(self, round_number: int = 0, *, joins: bool = False) -> None:
        self.round = round_number
        now_s = self.world.now_s
        self.carry_out(self.keeper.start(round_number, now_s, joins=joins))
        self._begin_inner()

    def see(self, roster: dict[PeerId, int]) -> None:
        self.when_awake(lambda: self.carry_out(self.keeper.set_replicas(roster, self.world.now_s)))

    def _begin_inner(self) -> None:
        end_s = self.world.inner_end_s(self.round) + self.backlog_s(self.round)
        rest_s = max(INNER_S_MIN, end_s - self.world.now_s)
        self.world.after(rest_s, lambda: self.when_awake(self._end_inner))

    def _end_inner(self) -> None:
        start = list(self.weights)
        self.inner(self)
        self.starts[self.round] = start
        self.gradients[self.round] = [x - y for x, y in zip(start, self.weights, strict=True)]
        self._ended_inner_s = self.world.now_s
        ended = self.round
        if self.world.leaves_behind:
            newest = max(peer.round for peer in self.world.replicas if peer.is_alive)
            ended = max(self.round, newest - 1)
        effects = self.keeper.inner_ended(ended, self.samples, self.world.now_s)
        self.carry_out(effects)

    def _round_ended(self, number: int) -> None:
        assert number >= self.round
        assert self._ended_inner_s is not None
        self.held_s.append(self.world.now_s - self._ended_inner_s)
        self._ended_inner_s = None
        self.round = number + 1
        if self.round < self.world.rounds:
            self._begin_inner()

    # ---------------------------------------------------------------------------------- driver

    def when_awake(self, action: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._backlog.append(action)
        else:
            action()

    def freeze(self, seconds: float = math.inf) -> None:
        self.is_frozen = True
        if seconds < math.inf:
            self.world.after(seconds, self.thaw)

    def thaw(self) -> None:
        """As the driver goes on: timers that are late first, each telling by how much."""
        self.is_frozen = False
        late, self._late = self._late, []
        for due_s, name in late:
            self.deliver(fx.LoopLag(self.world.now_s - due_s))
            self.deliver(fx.TimerFired(name))
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.when_awake(action)

    def timer_fired(self, name: str) -> None:
        if self.is_frozen:
            self._late.append((self.world.now_s, name))
        else:
            self.deliver(fx.TimerFired(name))

    def deliver(self, event: fx.Event) -> None:
        self.when_awake(lambda: self.carry_out(self.keeper.handle(event, self.world.now_s)))

    def carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Send():
                    self.world.send(self, effect)
                case fx.Compute(job_id, job):
                    self._submit(job_id, job)
                case fx.Release(ref):
                    self.slots.release(ref)
                case fx.SetTimer(name, delay_s):
                    self.world.set_timer(self, name, delay_s)
                case fx.ClearTimer(name):
                    self.world.set_timer(self, name, None)
                case fx.Emit(name, fields):
                    self._told(name, fields)
                case _:
                    raise AssertionError(f"nobody asked for {effect}")

    def _told(self, name: str, fields: dict[str, Any]) -> None:
        self.told[name] += 1
        self.events.append((name, fields))
        if name == "rounds/ended":
            self._round_ended(fields["round"])
        elif name.startswith("round_"):
            self.rounds.append(fields)
            self.stepped_with[fields["round"]] = dict(self.outer.stepped)

    def _submit(self, job_id: int, job: StageCall | Any) -> None:
        assert isinstance(job, StageCall)
        self._jobs.append((job_id, job, [self.slots.read(ref) for ref in job.inputs]))
        if len(self._jobs) == 1:
            self._go_on()

    def _go_on(self) -> None:
        if self._turn or not self.micro_batch_s:
            self.world.after(self.job_s, lambda: self.when_awake(self._job_done))
        else:
            self.world.after(self.micro_batch_s, lambda: self.when_awake(self._micro_batch_done))

    def _micro_batch_done(self) -> None:
        self._turn = len(self._jobs)
        if self._turn:
            self._go_on()

    def _job_done(self) -> None:
        self._turn = max(0, self._turn - 1)
        if not self._jobs:
            return  # the worker was lost meanwhile
        job_id, job, inputs = self._jobs.pop(0)
        if self._jobs:
            self._go_on()
        self.log.append(job.name)
        try:
            data, content = self.outer.run(job, inputs)
        except FakeJobFailed as failure:
            self.deliver(fx.ComputeFailed(job_id, JobFailure(failure.code)))
            return
        output = None
        if content is not None:
            is_bytes = isinstance(content, bytes)
            size = len(content) if is_bytes else job.output_bytes
            output = self.slots.acquire(content, size)
        self.deliver(fx.ComputeDone(job_id, JobResult(output=output, data=data)))

    def lose_worker(self) -> None:
        lost, self._jobs = self._jobs, []
        for job_id, _, _ in lost:
            self.deliver(fx.ComputeFailed(job_id, JobFailure("worker_died")))
        self.deliver(fx.ComputeLost("killed"))

    def arrive(self, sender: PeerId, body: bytes, content: Values | None, size: int) -> None:
        message = decode(body)
        if content is None:
            event = fx.Arrived(sender, message)
        elif self.slots.has_room():
            event = fx.Arrived(sender, message, self.slots.acquire(content, size))
        else:
            self.refused_payloads += 1
            event = fx.Arrived(sender, message, payload_refused=True)
        self.carry_out(self.keeper.handle(event, self.world.now_s))

    # ----------------------------------------------------------------------------------- views

    @property
    def weights(self) -> list[float]:
        return self.outer.weights

    def last(self) -> dict[str, Any]:
        return self.rounds[-1]


def drift(replica: Replica) -> None:
    """An inner phase: half-way to the replica's own optimum, which lies near the others'."""
    target = optimum(replica.number)
    replica.outer.weights = [w + 0.5 * (target - w) for w in replica.outer.weights]


def optimum(number: int) -> float:
    """No two groups of replicas have the same mean."""
    return 8.0 + number + 0.1234 * number**2 + 0.0171 * number**3


def noise(replica: Replica) -> None:
    """An inner phase that adds unit noise."""
    replica.outer.weights = [w + replica.rng.gauss(0.0, 1.0) for w in replica.outer.weights]


class World:
    def __init__(
        self,
        replicas: int,
        *,
        elements: int = 12,
        rules: OuterRules | None = None,
        seed: int = 0,
        rounds: int = 6,
        inner_s: float = 3.0,
        latency_s: float = 0.01,
        covered: int | None = None,
        limits: RoundLimits | None = None,
        leaves_behind: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.rules = rules or OuterRules(mix1_wire="fp32")
        self.rounds = rounds
        self.shape = replace(SHAPE, total_steps=rounds * SHAPE.inner_steps)
        self.inner_s = inner_s
        self.latency_s = latency_s
        self.covered = covered
        self.limits = limits or RoundLimits(mix1_s_first=4.0, mix2_s_first=4.0)
        self.leaves_behind = leaves_behind
        self.now_s = 0.0
        self.delay: Callable[[Replica, Replica, Message], float | None] = lambda a, b, m: 0.0
        """More than the latency, or None: lost."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._timers: dict[tuple[PeerId, str], int] = {}
        self._ends_s: dict[int, float] = {}
        self._links_down: set[frozenset[PeerId]] = set()
        self._arrives_s: dict[tuple[PeerId, PeerId, bool], float] = {}
        self.replicas = [Replica(self, number, [0.0] * elements) for number in range(replicas)]
        self._by_id = {replica.id: replica for replica in self.replicas}
        self.tell_roster()

    def tell_roster(self, first: dict[int, int] | None = None) -> None:
        """Everybody alive sees all that are alive. first: number to the round it mixes from."""
        roster = {replica.id: (first or {}).get(replica.number, 0) for replica in self.alive()}
        for replica in self.alive():
            replica.see(roster)

    # -------------------------------------------------------------------------------------- time

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._sequence), action))

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        self.after(time_s - self.now_s, action)

    def run(self, until_s: float = 1e6) -> None:
        """Until nothing happens any more, or until then."""
        steps = 0
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
            steps += 1
            assert steps < 2_000_000, "it does not come to an end"

    def inner_end_s(self, round_number: int) -> float:
        """When the data of a round are used up: the same moment for everybody."""
        return self._ends_s.setdefault(round_number, self.now_s + self.inner_s)

    def start(self) -> None:
        for replica in self.replicas:
            replica.start()

    def set_timer(self, replica: Replica, name: str, delay_s: float | None) -> None:
        key = (replica.id, name)
        number = next(self._sequence)
        self._timers[key] = number
        if delay_s is None:
            return

        def fire() -> None:
            if self._timers.get(key) == number:
                replica.timer_fired(name)

        self.after(delay_s, fire)

    # -------------------------------------------------------------------------------------- wire

    def send(self, sender: Replica, effect: fx.Send) -> None:
        receiver = self._by_id[effect.peer]
        content = None if effect.payload is None else sender.slots.read(effect.payload)
        if frozenset((sender.id, receiver.id)) in self._links_down:
            sender.deliver(fx.SendFailed(effect.peer, effect.message, "no_link"))
            return
        message = effect.message if sender.rewrite is None else sender.rewrite(effect.message)
        if content is not None and sender.spoil is not None:
            content = sender.spoil(message, content)
        more_s = self.delay(sender, receiver, message)
        if more_s is None:
            return
        size = 0 if effect.payload is None else effect.payload.size_bytes
        lane = (sender.id, receiver.id, content is None)
        due_s = max(self._arrives_s.get(lane, 0.0), self.now_s + self.latency_s + more_s)
        self._arrives_s[lane] = due_s
        body = encode(message)

        def arrive() -> None:
            if frozenset((sender.id, receiver.id)) not in self._links_down:
                receiver.when_awake(lambda: receiver.arrive(sender.id, body, content, size))

        self.at(due_s, arrive)

    def kill(self, replica: Replica) -> None:
        """As SIGKILL: links end, nothing is said."""
        replica.is_alive = False
        for other in self.replicas:
            if other is not replica:
                self._links_down.add(frozenset((replica.id, other.id)))
                other.deliver(fx.LinkDown(replica.id, "lost"))

    # ------------------------------------------------------------------------------------- checks

    def alive(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.is_alive]

    def disagreement(self) -> float:
        return spread([replica.weights for replica in self.alive()])

    def assert_nothing_is_held(self) -> None:
        for replica in self.alive():
            assert len(replica.slots) == 0, f"{replica.id} holds {len(replica.slots)} slots"
            statistics = replica.keeper.statistics(self.now_s)
            assert statistics.round == -1, f"{replica.id} is still in round {statistics.round}"


def spread(vectors: list[list[float]]) -> float:
    """Unbiased variance between replicas, averaged over coordinates."""
    total = 0.0
    for column in zip(*vectors, strict=True):
        mean = math.fsum(column) / len(column)
        total += math.fsum((x - mean) ** 2 for x in column) / (len(column) - 1)
    return total / len(vectors[0])
