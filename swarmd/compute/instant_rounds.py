"""Outer rounds of a stage's replicas inside one process: the swarm's own machines, without time.

Every replica has the RoundKeeper that it has in a daemon (protocols/rounds.py), and its worker does
the same jobs on the same bytes (outer_calls.py): groups, weights, guards, wires, the outer step. A
message arrives when it is sent and a job has ended when it is asked for. No mixing loses anything
by that: Mix1's input is settled before the inner phase (algorithms.md 2.2), so a result that came
at once is the one that would have come during it, and nobody is ever late.

Virtual time stands still unless nothing else can happen; then the next timer fires.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from swarmd.compute.stage_worker import StageWorker
from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef, Job, JobResult, StageCall
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.protocols.rounds import RoundKeeper
from swarmd.run_config import RunConfig

TIMERS_MAX = 10_000
"""In one round. Then it is not going to end."""


class InstantRounds:
    """Of one stage. `begin` once, `end` after each inner phase; the workers' weights change."""

    def __init__(self, run: RunConfig, stage: int, workers: Mapping[PeerId, StageWorker]) -> None:
        self._now_s = 0.0
        self._due: deque[Callable[[], None]] = deque()
        self._replicas = {
            peer: _Replica(peer, run, stage, worker, self) for peer, worker in workers.items()
        }

    @property
    def told(self) -> Counter[str]:
        """How often the replicas' round machines told what: round_committed, round_partial ..."""
        return sum((replica.told for replica in self._replicas.values()), Counter())

    def begin(self) -> None:
        """All replicas have the start state."""
        present = dict.fromkeys(self._replicas, 0)
        for replica in self._replicas.values():
            replica.carry_out(replica.keeper.set_replicas(present, self._now_s))
        for replica in self._replicas.values():
            replica.carry_out(replica.keeper.start(0, self._now_s))
        self._settle()

    def end(self, round_number: int, samples: Mapping[PeerId, int]) -> None:
        """The inner phase is over everywhere; samples: how many each replica worked on."""
        for peer, replica in self._replicas.items():
            effects = replica.keeper.inner_ended(round_number, samples[peer], self._now_s)
            replica.carry_out(effects)
        self._settle()
        for _ in range(TIMERS_MAX):
            if all(replica.ended == round_number for replica in self._replicas.values()):
                return
            self._next_timer()
        raise AssertionError(f"round {round_number} does not end")

    # ------------------------------------------------------------------------------------- inside

    def soon(self, action: Callable[[], None]) -> None:
        """After all that is due already."""
        self._due.append(action)

    def deliver(self, peer: PeerId, event: fx.Event) -> None:
        replica = self._replicas[peer]
        replica.carry_out(replica.keeper.handle(event, self._now_s))

    def send(self, sender: PeerId, effect: fx.Send, body: bytearray | None) -> None:
        """The bytes are the receiver's own: either side may let go of them first."""
        receiver = self._replicas[effect.peer]

        def arrive() -> None:
            payload = None if body is None else receiver.hold(body)
            self.deliver(effect.peer, fx.Arrived(sender, effect.message, payload))

        self.soon(arrive)

    def after(self, delay_s: float) -> float:
        """When a timer that is set now will fire."""
        return self._now_s + delay_s

    def _settle(self) -> None:
        while self._due:
            self._due.popleft()()

    def _next_timer(self) -> None:
        at_s, peer, name = min(
            (at_s, peer, name)
            for peer, replica in self._replicas.items()
            for name, at_s in replica.timers.items()
        )
        self._now_s = max(self._now_s, at_s)
        del self._replicas[peer].timers[name]
        self.deliver(peer, fx.TimerFired(name))
        self._settle()


class _Replica:
    """One machine and its worker. Carries effects out as the daemon's driver does."""

    def __init__(
        self,
        peer: PeerId,
        run: RunConfig,
        stage: int,
        worker: StageWorker,
        rounds: InstantRounds,
    ) -> None:
        numbers = itertools.count()
        self.keeper = RoundKeeper(
            peer,
            stage,
            run.shape,
            OuterRules(**asdict(run.outer)),
            next_job_id=numbers.__next__,
            limits=RoundLimits.local(),
        )
        self.timers: dict[str, float] = {}
        self.told: Counter[str] = Counter()
        self.ended = -1
        """The last round whose outer step is in the weights."""
        self._peer = peer
        self._worker = worker
        self._rounds = rounds
        self._slots: dict[BufferRef, bytearray] = {}
        self._slot_numbers = itertools.count()

    def hold(self, body: bytearray) -> BufferRef:
        ref = BufferRef(next(self._slot_numbers), 0, len(body))
        self._slots[ref] = body
        return ref

    def carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Send(payload=payload):
                    body = None if payload is None else self._slots[payload]
                    self._rounds.send(self._peer, effect, body)
                case fx.Compute(job_id, job):
                    self._submit(job_id, job)
                case fx.Release(ref):
                    del self._slots[ref]
                case fx.SetTimer(name, delay_s):
                    self.timers[name] = self._rounds.after(delay_s)
                case fx.ClearTimer(name):
                    self.timers.pop(name, None)
                case fx.Emit(name, fields):
                    self._hear(name, fields)
                case _:
                    raise AssertionError(f"a round asks for {effect}")

    def _submit(self, job_id: int, job: Job) -> None:
        """What it reads is taken now: its asker may let go of the slots at once."""
        assert isinstance(job, StageCall), job
        inputs = [self._slots[ref] for ref in job.inputs]

        def run() -> None:
            output = bytearray(job.output_bytes)
            answer = self._worker.run(
                job, [memoryview(body) for body in inputs], memoryview(output)
            )
            ref = self.hold(output[: answer.output_bytes]) if answer.output_bytes else None
            result = JobResult(output=ref, data=answer.result.data)
            self._rounds.deliver(self._peer, fx.ComputeDone(job_id, result))

        self._rounds.soon(run)

    def _hear(self, name: str, fields: dict[str, Any]) -> None:
        self.told[name] += 1
        if name == "rounds/ended":
            self.ended = fields["round"]
