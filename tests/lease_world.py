"""A small world for LeaseBooks: a network that loses, repeats, reorders and splits; heads that
work, die, freeze and return; a roster that learns of it late. Seeded, in virtual time.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarmd.protocols import wire
from swarmd.protocols.effects import Arrived, Effect, Emit, Send, SetTimer, Started, TimerFired
from swarmd.protocols.ids import MicroBatchId, PeerId, RunId
from swarmd.protocols.lease_limits import LeaseLimits, local
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.receipts import CALLED, CALLER
from swarmd.protocols.run_shape import RunShape


def lease_shape(**changes: Any) -> RunShape:
    """Four rounds of twenty micro-batches, four a step."""
    values: dict[str, Any] = {
        "run_id": RunId("ab" * 32),
        "stages": 2,
        "inner_steps": 5,
        "total_steps": 20,
        "micro_batches_per_step": 4,
        "micro_batch_samples": 8,
        "sequence_tokens": 16,
        "held_out_micro_batches": 3,
        "width": 16,
    }
    return RunShape(**{**values, **changes})


def sign_as(peer: str) -> Callable[[bytes], bytes]:
    return lambda body: hashlib.blake2b(body, key=peer.encode()[:64], digest_size=32).digest()


def verify(peer: PeerId, body: bytes, signature: bytes) -> bool:
    return sign_as(peer)(body) == signature


def make_book(
    peer: str = "p0", shape: RunShape | None = None, incarnation: int = 1, **options: Any
) -> LeaseBook:
    return LeaseBook(
        PeerId(peer),
        incarnation,
        shape or lease_shape(),
        options.pop("limits", local()),
        sign=sign_as(peer),
        verify=verify,
        **options,
    )


@dataclass
class Host:
    """One peer: its book, its work in hand, its place in the world."""

    book: LeaseBook
    is_head: bool
    work_s: float
    in_flight: int = 2
    incarnation: int = 1
    alive: bool = True
    frozen: bool = False
    working: int = 0
    timers: dict[str, int] = field(default_factory=dict)
    missed: list[tuple[str, Any]] = field(default_factory=list)


class LeaseWorld:
    """`heads` heads and `others` peers of later stages, in a full mesh unless `degree` is given."""

    def __init__(
        self,
        seed: int,
        *,
        heads: int = 4,
        others: int = 1,
        shape: RunShape | None = None,
        limits: LeaseLimits | None = None,
        latency_s: float = 0.02,
        loss: float = 0.0,
        duplicates: float = 0.0,
        work_s: float = 0.3,
        notice_s: float = 2.0,
        degree: int | None = None,
        failures: float = 0.0,
    ) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        self.shape = shape or lease_shape()
        self.limits = limits or local()
        self.latency_s, self.loss, self.duplicates = latency_s, loss, duplicates
        self.notice_s, self.failures = notice_s, failures
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.hosts: dict[PeerId, Host] = {}
        self.groups: dict[PeerId, int] = {}
        self.done: Counter[MicroBatchId] = Counter()
        """How often each was really computed, by the world's own count."""
        self.seen: Counter[PeerId] = Counter()
        """Samples that a peer of the last stage really saw, by the world's own count."""
        self.emitted: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.order: list[tuple[float, PeerId, MicroBatchId]] = []
        names = [self._name(number) for number in range(heads + others)]
        for number, peer in enumerate(names):
            speed = self.random.uniform(0.7, 1.3)
            self.hosts[peer] = Host(self._book(peer, 1), number < heads, work_s * speed)
            self.groups[peer] = 0
        self.neighbours = {peer: self._neighbours(peer, names, degree) for peer in names}
        for peer in names:
            self._start(peer)

    def _name(self, number: int) -> PeerId:
        return PeerId(f"p{number:03d}")

    def _book(self, peer: PeerId, incarnation: int) -> LeaseBook:
        return make_book(peer, self.shape, incarnation, limits=self.limits)

    def _neighbours(
        self, peer: PeerId, names: list[PeerId], degree: int | None
    ) -> tuple[PeerId, ...]:
        if degree is None:
            return tuple(name for name in names if name != peer)
        here, count = names.index(peer), len(names)
        steps = [1, *(self.random.randrange(1, count) for _ in range(degree - 1))]
        near = {names[(here + step) % count] for step in steps}
        return tuple(sorted(near | {names[(here - 1) % count]} - {peer}))

    # ------------------------------------------------------------------------------------ faults

    def kill(self, peer: PeerId) -> None:
        host = self.hosts[peer]
        host.alive, host.working = False, 0
        host.timers.clear()
        self.at(self.notice_s, self.tell_rosters)

    def restart(self, peer: PeerId) -> None:
        """A new life with an empty ledger."""
        host = self.hosts[peer]
        host.incarnation += 1
        host.book, host.alive, host.frozen = self._book(peer, host.incarnation), True, False
        host.working = 0
        self._start(peer)
        self.at(self.notice_s, self.tell_rosters)

    def freeze(self, peer: PeerId, for_s: float, noticed: bool = False) -> None:
        """Nothing moves in it; what comes meanwhile is handled when it thaws."""
        host = self.hosts[peer]
        host.frozen = True
        life = host.incarnation
        if noticed:
            self.at(self.notice_s, self.tell_rosters)

        def thaw() -> None:
            if host.incarnation != life or not host.alive:
                return
            host.frozen = False
            missed, host.missed = host.missed, []
            for kind, what in missed:
                self._deliver(peer, kind, what, life)
            if noticed:
                self.at(self.notice_s, self.tell_rosters)

        self.at(for_s, thaw)

    def leave(self, peer: PeerId) -> None:
        """A polite end: leases back at once, and the goodbye arrives."""
        host = self.hosts[peer]
        host.book.give_back_all(self.now_s)
        self._carry_out(peer, host.book.take_effects())
        host.alive, host.working = False, 0
        self.at(self.latency_s, self.tell_rosters)

    def split(self, *groups: list[PeerId]) -> None:
        for number, group in enumerate(groups):
            for peer in group:
                self.groups[peer] = number
        self.at(self.notice_s, self.tell_rosters)

    def heal(self) -> None:
        self.groups = dict.fromkeys(self.groups, 0)
        self.at(self.notice_s, self.tell_rosters)

    # ------------------------------------------------------------------------------------- drive

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), what))

    def run(self, until_s: float) -> None:
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._queue)
            what()
        self.now_s = max(self.now_s, until_s)

    def run_until_complete(self, limit_s: float = 600.0) -> None:
        """Until every living peer knows that every index has ended; fails after `limit_s`."""
        while not self.is_complete:
            assert self.now_s < limit_s, self.describe()
            self.run(self.now_s + 0.5)

    @property
    def is_complete(self) -> bool:
        return all(host.book.is_complete for host in self.living())

    def living(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.alive and not host.frozen]

    def describe(self) -> str:
        lines = [f"not complete at {self.now_s:.1f} s; reasons {dict(self.reasons)}"]
        for peer, host in self.hosts.items():
            settled = host.book.ledger.settled
            missing = host.book.ledger.all_of(settled) - host.book.ledger.ended(settled)
            lines.append(
                f"{peer} alive={host.alive} frozen={host.frozen} settled={settled} "
                f"missing={list(missing)[:9]} held={[str(one) for one in host.book.held()][:9]} "
                f"{dict(host.book.counters)}"
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------ inside

    def tell_rosters(self) -> None:
        """What every peer's roster says now: who is alive and can be reached."""
        for peer, host in self.hosts.items():
            if host.alive and not host.frozen:
                self._tell_roster(peer, host)

    def _tell_roster(self, peer: PeerId, host: Host) -> None:
        there = {
            other
            for other, theirs in self.hosts.items()
            if theirs.alive and not theirs.frozen and self.groups[other] == self.groups[peer]
        }
        heads = [other for other in there if self.hosts[other].is_head]
        host.book.set_heads(heads, self.now_s)
        linked = [other for other in self.neighbours[peer] if other in there]
        host.book.set_recipients(linked, present=len(there) - 1)
        self._carry_out(peer, host.book.take_effects())
        self._work(peer)

    def _start(self, peer: PeerId) -> None:
        host = self.hosts[peer]
        self._carry_out(peer, host.book.handle(Started(), self.now_s))
        life = host.incarnation
        self.at(self.random.uniform(0.0, 0.5), lambda: self._first_roster(peer, life))

    def _first_roster(self, peer: PeerId, life: int) -> None:
        host = self.hosts[peer]
        if host.incarnation == life and host.alive and not host.frozen:
            self._tell_roster(peer, host)

    def _deliver(self, peer: PeerId, kind: str, what: Any, life: int) -> None:
        host = self.hosts[peer]
        if not host.alive or host.incarnation != life:
            return
        if host.frozen:
            host.missed.append((kind, what))
            return
        if kind == "done":
            self._finish(peer, what)
        else:
            self._carry_out(peer, host.book.handle(what, self.now_s))
        self._work(peer)

    def _carry_out(self, peer: PeerId, effects: list[Effect]) -> None:
        host = self.hosts[peer]
        for effect in effects:
            match effect:
                case Send(peer=to, message=message):
                    self._send(peer, to, message)
                case SetTimer(name=name, delay_s=delay_s):
                    number = next(self._order)
                    host.timers[name] = number
                    self.at(
                        delay_s,
                        lambda n=name, i=number, h=host.incarnation: self._fire(peer, n, i, h),
                    )
                case Emit(name=name):
                    self.emitted[name] += 1

    def _fire(self, peer: PeerId, name: str, number: int, life: int) -> None:
        host = self.hosts[peer]
        if host.incarnation == life and host.timers.get(name) == number:
            del host.timers[name]
            self._deliver(peer, "event", TimerFired(name), life)

    def _send(self, peer: PeerId, to: PeerId, message: Any) -> None:
        body = wire.encode(message)
        self.sent[type(message).__name__] += 1
        self.sent["bytes"] += len(body)
        theirs = self.hosts.get(to)
        if theirs is None or not theirs.alive or self.groups[peer] != self.groups[to]:
            return
        if self.random.random() < self.loss:
            return
        copies = 2 if self.random.random() < self.duplicates else 1
        for _ in range(copies):
            arrived = Arrived(peer, wire.decode(body))
            delay_s = self.latency_s * self.random.uniform(0.5, 3.0)
            life = theirs.incarnation
            self.at(delay_s, lambda a=arrived, n=life: self._deliver(to, "event", a, n))

    def _work(self, peer: PeerId) -> None:
        """Keep as much in flight as the head can carry."""
        host = self.hosts[peer]
        while host.alive and not host.frozen and host.working < host.in_flight:
            micro_batch, reason = host.book.next_lease(self.now_s)
            self.reasons[reason] += 1
            if micro_batch is None:
                micro_batch = host.book.next_held_out(self.now_s)
            if micro_batch is None:
                break
            self.order.append((self.now_s, peer, micro_batch))
            host.working += 1
            took_s = host.work_s * host.in_flight * self.random.uniform(0.8, 1.2)
            life = host.incarnation
            self.at(took_s, lambda m=micro_batch, n=life: self._deliver(peer, "done", m, n))
        self._carry_out(peer, host.book.take_effects())

    def _finish(self, peer: PeerId, micro_batch: MicroBatchId) -> None:
        host = self.hosts[peer]
        host.working -= 1
        if self.random.random() < self.failures:
            host.book.expired(micro_batch, "no_route", self.now_s)
        else:
            samples = self.shape.micro_batch_samples
            if not micro_batch.held_out:
                samples = self.shape.samples_of(micro_batch)
                self.done[micro_batch] += 1
                self._witness(peer, micro_batch)
            host.book.done(micro_batch, loss_of(micro_batch) * samples, samples, self.now_s)
        self._carry_out(peer, host.book.take_effects())

    def _witness(self, head: PeerId, micro_batch: MicroBatchId) -> None:
        """One of those that are no heads was the last stage of it: each saw the other work."""
        there = [
            peer
            for peer, host in self.hosts.items()
            if not host.is_head and host.alive and not host.frozen
            and self.groups[peer] == self.groups[head]
        ]  # fmt: skip
        if there and self.shape.stages == 2:
            last = there[micro_batch.index % len(there)]
            self.hosts[head].book.saw(micro_batch, last, 1, CALLED)
            self.hosts[last].book.saw(micro_batch, head, 0, CALLER)
            self.seen[last] += self.shape.samples_of(micro_batch)


def loss_of(micro_batch: MicroBatchId) -> float:
    """The loss that every micro-batch has in this world."""
    return 4.0 / (1 + micro_batch.round) + 0.01 * micro_batch.index
