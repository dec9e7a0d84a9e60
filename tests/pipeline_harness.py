"""Several Pipeline machines joined by a wire, compute workers and a ledger that are all virtual.

No trio, no torch, no clock: a heap of (time, number, action) and a seeded Random. Links delay, lose
and break; peers are killed, frozen, restarted; a ledger leases each index until it is done and
opens the rounds; the composite's part at the end of a round is played. What must never happen is
asserted where it would (here and in pipeline_worker.py).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline_worker import FAST_LIMITS, Bytes, Slots, Worker, run_shape

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.messages import Message
from swarmd.protocols.messages import pipeline as wire
from swarmd.protocols.pipeline import Pipeline
from swarmd.protocols.pipeline_shape import PipelineLimits, PipelineShape
from swarmd.protocols.routing import Candidate, Router
from swarmd.protocols.run_shape import RunShape
from swarmd.protocols.wire import decode, encode


class VirtualPeer:
    """One Pipeline with its worker and slots; carries its effects out as the driver would."""

    def __init__(self, world: World, peer: PeerId, stage: int, duration_s: float) -> None:
        self.world = world
        self.id = peer
        self.stage = stage
        self.shape = PipelineShape(world.run, stage)
        self.duration_s = duration_s
        self.incarnation = 0
        self.is_alive = True
        self.is_frozen = False
        self.drop_share = 0.0
        """Of the forwards that reach it: neither taken nor answered."""
        self._backlog: list[fx.Event] = []
        self.rounds_announced: list[int] = []
        self.told: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """A new process: nothing of the former one is left."""
        self.incarnation += 1
        self.slots = Slots()
        self.worker = Worker(self, self.duration_s)
        self.machine = Pipeline(
            self.shape,
            router=Router(random.Random(f"{self.world.seed} {self.id} {self.incarnation}")),
            bounds=self.world.bounds,
            next_job_id=itertools.count().__next__,
            round_number=self.world.round_gate,
        )
        self.deliver(fx.ComputeReady({}))

    def deliver(self, event: fx.Event) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._backlog.append(event)
            return
        self.carry_out(self.machine.handle(event, self.world.now_s))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.world.after(delay_s, action)

    def next_origin(self) -> int:
        return next(self.world.origins)

    def freeze(self, seconds: float) -> None:
        self.is_frozen = True
        self.world.after(seconds, self.thaw)

    def thaw(self) -> None:
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self.deliver(event)

    def carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Send():
                    self.world.send(self, effect)
                case fx.Compute(job_id, job):
                    self.worker.submit(job_id, job)
                case fx.Release(ref):
                    self.slots.release(ref)
                case fx.SetTimer(name, delay_s):
                    self.world.set_timer(self, name, delay_s)
                case fx.ClearTimer(name):
                    self.world.set_timer(self, name, None)
                case fx.Emit(name, fields):
                    self.told[name] += 1
                    self.world.told(self, name, fields)

    def arrive(self, sender: PeerId, body: bytes, content: Bytes | None) -> None:
        message = decode(body)
        if isinstance(message, wire.Forward) and self.world.rng.random() < self.drop_share:
            return
        if content is None:
            self.deliver(fx.Arrived(sender, message))
        elif self.slots.has_room():
            self.deliver(fx.Arrived(sender, message, self.slots.acquire(content)))
        else:
            self.deliver(fx.Arrived(sender, message, payload_refused=True))


@dataclass
class Ended:
    """What the head of a micro-batch was told."""

    done: dict[MicroBatchId, dict[str, Any]] = field(default_factory=dict)
    expired: Counter[MicroBatchId] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


class World:
    """`durations_s`: for each stage, a forward's duration at each of its replicas."""

    def __init__(
        self,
        durations_s: tuple[tuple[float, ...], ...],
        *,
        seed: int = 0,
        run: RunShape | None = None,
        bounds: PipelineLimits = FAST_LIMITS,
        latency_s: float = 0.002,
        loss: float = 0.0,
        mix_s: float = 0.05,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.run = run or run_shape(len(durations_s))
        self.bounds = bounds
        self.latency_s = latency_s
        self.loss = loss
        self.mix_s = mix_s
        self.now_s = 0.0
        self.origins = itertools.count()
        self.round_gate = 0
        self.ended = Ended()
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._timers: dict[tuple[PeerId, str], int] = {}
        self._arrives_s: dict[tuple[PeerId, PeerId, bool], float] = {}
        self._on_wire = 0
        self._cut: set[frozenset[PeerId]] = set()
        self._link_epoch: Counter[frozenset[PeerId]] = Counter()
        self._free: list[list[MicroBatchId]] = []
        self._leased: dict[MicroBatchId, PeerId] = {}
        self.peers = [
            VirtualPeer(self, PeerId(f"peer-{stage}{chr(97 + index)}"), stage, duration_s)
            for stage, replicas in enumerate(durations_s)
            for index, duration_s in enumerate(replicas)
        ]
        self._by_id = {peer.id: peer for peer in self.peers}
        for round_number in range(self.run.rounds):
            count = self.run.micro_batches_of_round(round_number)
            self._free.append([MicroBatchId(round_number, index) for index in range(count)])
        for one, other in itertools.combinations(self.peers, 2):
            one.deliver(fx.LinkUp(other.id))
            other.deliver(fx.LinkUp(one.id))
        self.tell_candidates()

    def __getitem__(self, name: str) -> VirtualPeer:
        """By the end of its name: "1b" is the second replica of stage 1."""
        return next(peer for peer in self.peers if peer.id.endswith(name))

    def of_stage(self, stage: int) -> list[VirtualPeer]:
        return [peer for peer in self.peers if peer.stage == stage]

    # -------------------------------------------------------------------------------------- time

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), action))

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        self.after(time_s - self.now_s, action)

    def set_timer(self, peer: VirtualPeer, name: str, delay_s: float | None) -> None:
        assert name.startswith("pipeline/")
        number = next(self._numbers)
        self._timers[peer.id, name] = number
        if delay_s is not None:
            machine = peer.machine
            self.after(delay_s, lambda: self._fire(peer, machine, name, number))

    def _fire(self, peer: VirtualPeer, machine: Pipeline, name: str, number: int) -> None:
        if self._timers.get((peer.id, name)) == number and peer.machine is machine:
            peer.deliver(fx.TimerFired(name))

    def run_until(self, condition: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Raises AssertionError with the seed if it does not come to that in virtual time."""
        self._lead()
        while not condition():
            assert self._heap, f"seed {self.seed}: nothing can happen any more"
            time_s, _, action = heapq.heappop(self._heap)
            assert time_s <= limit_s, f"seed {self.seed}: not within {limit_s} s, {self.report()}"
            self.now_s = time_s
            action()
            self.events += 1
            self._lead()

    def run_for(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.at(end_s, lambda: None)
        self.run_until(lambda: self.now_s >= end_s)

    def run_all(self, limit_s: float = 120.0) -> None:
        """Every index done, then nothing under way anywhere."""
        self.run_until(lambda: self.is_done, limit_s)
        self.run_until(self.is_quiet, limit_s)
        for peer in self.peers:
            if peer.is_alive:
                last = self.run.rounds - 1
                peer.carry_out(peer.machine.finish_round(last, self.now_s))
        self.run_until(lambda: all(not p.worker._queue for p in self.peers if p.is_alive), limit_s)

    @property
    def is_done(self) -> bool:
        total = sum(self.run.micro_batches_of_round(r) for r in range(self.run.rounds))
        return len(self.ended.done) == total

    def is_quiet(self) -> bool:
        return not self._on_wire and all(
            peer.machine.is_empty and not peer.worker._queue and not peer.is_frozen
            for peer in self.peers
            if peer.is_alive
        )

    def report(self) -> str:
        return "; ".join(
            f"{peer.id} {peer.machine.statistics(self.now_s).in_flight}" for peer in self.peers
        )

    # -------------------------------------------------------------------------------------- wire

    def send(self, sender: VirtualPeer, effect: fx.Send) -> None:
        link = frozenset((sender.id, effect.peer))
        body = encode(effect.message)
        content = sender.slots.read(effect.payload) if effect.payload is not None else None
        receiver = self._by_id[effect.peer]
        if link in self._cut or not receiver.is_alive:
            self.after(0.0, lambda: self._not_sent(sender, effect))
            return
        if self.rng.random() < self.loss:
            return
        key = (sender.id, receiver.id, content is not None)
        arrives_s = self.now_s + self.latency_s * self.rng.uniform(0.5, 1.5)
        arrives_s = max(arrives_s, self._arrives_s.get(key, 0.0))
        self._arrives_s[key] = arrives_s
        epoch = self._link_epoch[link]
        self._on_wire += 1
        self.at(arrives_s, lambda: self._arrive(link, epoch, sender.id, receiver, body, content))

    def _arrive(
        self,
        link: frozenset[PeerId],
        epoch: int,
        sender: PeerId,
        receiver: VirtualPeer,
        body: bytes,
        content: Bytes | None,
    ) -> None:
        self._on_wire -= 1
        if self._link_epoch[link] == epoch and receiver.is_alive:
            receiver.arrive(sender, body, content)

    def _not_sent(self, sender: VirtualPeer, effect: fx.Send) -> None:
        message: Message = effect.message
        sender.deliver(fx.SendFailed(effect.peer, message, "no_link"))

    # ------------------------------------------------------------------------------------- faults

    def cut(self, one: VirtualPeer, other: VirtualPeer, seconds: float) -> None:
        """The link breaks on both sides and comes back."""
        link = frozenset((one.id, other.id))
        if link in self._cut:
            return
        self._cut.add(link)
        self._link_epoch[link] += 1
        one.deliver(fx.LinkDown(other.id, "lost"))
        other.deliver(fx.LinkDown(one.id, "lost"))
        self.after(seconds, lambda: self._mend(one, other))

    def _mend(self, one: VirtualPeer, other: VirtualPeer) -> None:
        self._cut.discard(frozenset((one.id, other.id)))
        if one.is_alive and other.is_alive:
            one.deliver(fx.LinkUp(other.id))
            other.deliver(fx.LinkUp(one.id))

    def kill(self, victim: VirtualPeer) -> None:
        """SIGKILL: its links close, its leases go back."""
        victim.is_alive = victim.is_frozen = False
        victim._backlog.clear()
        victim.worker.epoch += 1
        for peer in self.peers:
            if peer is not victim:
                self._link_epoch[frozenset((peer.id, victim.id))] += 1
                peer.deliver(fx.LinkDown(victim.id, "lost"))
        self.tell_candidates()
        for micro_batch in [m for m, head in self._leased.items() if head == victim.id]:
            self._give_back(micro_batch)

    def restart(self, peer: VirtualPeer) -> None:
        if peer.is_alive:
            return
        peer.is_alive = True
        peer.begin()
        for other in self.peers:
            link = frozenset((peer.id, other.id))
            if other is not peer and other.is_alive and link not in self._cut:
                peer.deliver(fx.LinkUp(other.id))
                other.deliver(fx.LinkUp(peer.id))
        self.tell_candidates()

    def tell_candidates(self) -> None:
        """What the roster would: the living replicas of the next stage."""
        for peer in self.peers:
            candidates = tuple(
                Candidate(other.id, other.incarnation, 16 / (3 * other.duration_s))
                for other in self.of_stage(peer.stage + 1)
                if other.is_alive
            )
            if peer.is_alive:
                peer.carry_out(peer.machine.set_next_stage(candidates, self.now_s))
                peer.machine.set_round_gate(self.round_gate)

    # ------------------------------------------------------------------------------------- ledger

    def _lead(self) -> None:
        """Each head starts what it may."""
        self._open_rounds()
        if not any(self._free[: self.round_gate + 1]):
            return
        for head in self.of_stage(0):
            while head.is_alive and not head.is_frozen:
                if head.machine.capacity(self.now_s) == 0:
                    break
                micro_batch = self._lease(head.id)
                if micro_batch is None:
                    break
                head.carry_out(head.machine.start(micro_batch, self.now_s))

    def _lease(self, head: PeerId) -> MicroBatchId | None:
        for round_number in range(self.round_gate + 1):
            if self._free[round_number]:
                micro_batch = self._free[round_number].pop(0)
                assert micro_batch not in self._leased
                self._leased[micro_batch] = head
                self._open_rounds()
                return micro_batch
        return None

    def _open_rounds(self) -> None:
        """The next one when all of the newest is leased and all before it has ended."""
        while (
            self.round_gate + 1 < self.run.rounds
            and not self._free[self.round_gate]
            and not any(self._free[: self.round_gate])
            and all(leased.round >= self.round_gate for leased in self._leased)
        ):
            self.round_gate += 1
            for peer in self.peers:
                peer.machine.set_round_gate(self.round_gate)

    def _give_back(self, micro_batch: MicroBatchId) -> None:
        del self._leased[micro_batch]
        self._free[micro_batch.round].insert(0, micro_batch)

    def told(self, peer: VirtualPeer, name: str, fields: dict[str, Any]) -> None:
        if name == "pipeline/first_of_round":
            peer.rounds_announced.append(fields["round"])
            machine = peer.machine
            peer.carry_out(machine.finish_round(fields["round"] - 1, self.now_s))
            self.after(self.mix_s, lambda: self._mixed(peer, machine))
        elif name in ("pipeline/done", "pipeline/expired"):
            micro_batch = fields["micro_batch"]
            assert self._leased.get(micro_batch) == peer.id, f"{micro_batch} ended more than once"
            if name == "pipeline/done":
                assert micro_batch not in self.ended.done
                del self._leased[micro_batch]
                self.ended.done[micro_batch] = fields
            else:
                self.ended.expired[micro_batch] += 1
                self.ended.reasons[fields["reason"]] += 1
                self._give_back(micro_batch)

    def _mixed(self, peer: VirtualPeer, machine: Pipeline) -> None:
        if peer.is_alive and peer.machine is machine:
            peer.carry_out(machine.hold(False, self.now_s))
