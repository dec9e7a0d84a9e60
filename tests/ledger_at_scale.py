"""The ledger of a run of 10^9 sequences with 330 peers: its size, and what telling it costs.

    python tests/ledger_at_scale.py gossip [rounds] [micro-batches a step]
    python tests/ledger_at_scale.py size

Seven stages of 47 peers, links to the own stage and to those beside it; 4,883 rounds of 25,600
micro-batches of 8 sequences. A head begins a micro-batch every three seconds, so a round takes 27
minutes and the run three months. Every peer is as it is in truth, in virtual time; a micro-batch is
seen by one peer of each stage, chosen at random.

`gossip` simulates so many rounds (1.1 unless given: a round, its end, and its receipts) and tells
the bytes that heads and others heard, over the whole and over each thirtieth of it. With fewer
micro-batches a step than 256 rounds are shorter and the simulation is, too. What heads tell each
other in the middle of a round is the same then, and so is what a round's end costs, but that comes
more often.

`size` makes the ledger at the run's end, with every peer's receipts for all of its neighbours, and
saves it.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from lease_world import LeaseWorld, lease_shape, sign_as, verify

from swarmd.protocols import wire
from swarmd.protocols.effects import Arrived
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.lease_choice import share_of
from swarmd.protocols.lease_limits import wan
from swarmd.protocols.ledger import ROUNDS_KEPT, Ledger
from swarmd.protocols.ledger_entries import Entry, EntryKey, sign_entry
from swarmd.protocols.ledger_gossip import LedgerGossip
from swarmd.protocols.messages.ledger import LedgerTotals, WriterTotals
from swarmd.protocols.receipts import CALLED, CALLER, Seen, Witnessed, pack_proved, tag_of

PEERS, STAGES = 330, 7
HEADS = 47
SHAPE = lease_shape(
    stages=STAGES,
    inner_steps=100,
    micro_batches_per_step=256,
    micro_batch_samples=8,
    sequence_tokens=2_048,
    total_steps=488_300,
)
STRIDE_S = 3.0
"""From one micro-batch that a head begins to the next."""
PARTS = 30
"""Of the time simulated."""
IN_FLIGHT = 2 * STAGES


def name_of(number: int) -> PeerId:
    """As long as a real one."""
    return PeerId(f"p{number:03d}".ljust(52, "x"))


def stage_of(peer: PeerId) -> int:
    number = int(peer[1:4])
    return 0 if number < HEADS else 1 + (number - HEADS) * (STAGES - 1) // (PEERS - HEADS)


# ----------------------------------------------------------------------------------------- gossip


class LargeWorld(LeaseWorld):
    """Whole pipelines, and bytes counted for each peer."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.bytes_sent: Counter[PeerId] = Counter()
        self.bytes_heard: Counter[PeerId] = Counter()
        self.bytes_by_kind: Counter[str] = Counter()
        options: dict[str, Any] = {
            "heads": HEADS,
            "others": PEERS - HEADS,
            "shape": SHAPE,
            "limits": wan(),
            "latency_s": 0.05,
            "work_s": STRIDE_S,
        }
        super().__init__(seed, **{**options, **changes})
        for host in self.hosts.values():
            host.in_flight = IN_FLIGHT
        self.replicas = [
            [peer for peer in self.hosts if stage_of(peer) == stage] for stage in range(STAGES)
        ]

    def _name(self, number: int) -> PeerId:
        return name_of(number)

    def _neighbours(
        self, peer: PeerId, names: list[PeerId], degree: int | None
    ) -> tuple[PeerId, ...]:
        here = stage_of(peer)
        return tuple(name for name in names if name != peer and abs(stage_of(name) - here) <= 1)

    def _send(self, peer: PeerId, to: PeerId, message: Any) -> None:
        """Nothing is lost here, and a message that cannot change need not be read again."""
        size_bytes = bytes_of(message)
        self.bytes_sent[peer] += size_bytes
        self.bytes_heard[to] += size_bytes
        self.bytes_by_kind[type(message).__name__] += size_bytes
        delay_s = self.latency_s * self.random.uniform(0.5, 3.0)
        self.at(delay_s, lambda: self._deliver(to, "event", Arrived(peer, message), 1))

    def _work(self, peer: PeerId) -> None:
        if self.hosts[peer].is_head:
            super()._work(peer)

    def _witness(self, head: PeerId, micro_batch: MicroBatchId) -> None:
        passage = [head, *(self.random.choice(stage) for stage in self.replicas[1:])]
        for stage, (caller, called) in enumerate(pairwise(passage)):
            self.hosts[caller].book.saw(micro_batch, called, stage + 1, CALLED)
            self.hosts[called].book.saw(micro_batch, caller, stage, CALLER)


@lru_cache(maxsize=512)
def bytes_of(message: Any) -> int:
    """Of a head's news, which goes to all other heads, made once."""
    return len(wire.encode(message))


def gossip(rounds: float = 1.1, per_step: int = 256, seed: int = 1) -> dict[str, Any]:
    shape = replace(SHAPE, micro_batches_per_step=per_step)
    world = LargeWorld(seed, shape=shape)
    seconds = rounds * shape.micro_batches_of_round(0) * STRIDE_S / HEADS
    one = list(world.hosts)[200]
    parts = []
    for part in range(PARTS):
        before = world.bytes_heard.copy()
        world.run((part + 1) * seconds / PARTS)
        new = heard_per_s(world.bytes_heard - before, seconds / PARTS)
        settled = world.hosts[one].book.ledger.settled
        parts.append({"until_s": round(world.now_s), **new, "settled": settled})
        print(parts[-1], file=sys.stderr, flush=True)
    return {
        "virtual_s": round(seconds),
        "micro_batches_done": len(world.done),
        "done_twice": sum(times - 1 for times in world.done.values()),
        "bytes_per_s": heard_per_s(world.bytes_heard, seconds),
        "bytes_per_s_sent_at_most": round(max(world.bytes_sent.values()) / seconds),
        "bytes_per_peer_by_kind": {
            kind: round(total / PEERS) for kind, total in sorted(world.bytes_by_kind.items())
        },
        "peers_that_settled": Counter(h.book.ledger.settled for h in world.hosts.values()),
        "parts": parts,
    }


def heard_per_s(heard: Counter[PeerId], seconds: float) -> dict[str, int]:
    heads = sum(count for peer, count in heard.items() if stage_of(peer) == 0)
    return {
        "heads": round(heads / HEADS / seconds),
        "others": round((heard.total() - heads) / (PEERS - HEADS) / seconds),
        "all": round(heard.total() / PEERS / seconds),
        "most": round(max(heard.values(), default=0) / seconds),
    }


# ------------------------------------------------------------------------------------------- size


def size(seed: int = 1) -> dict[str, Any]:
    """Of the ledger when all but the last round are over and summed up as far as may be."""
    rng = random.Random(seed)
    peers = [name_of(number) for number in range(PEERS)]
    ledger = Ledger(SHAPE, verify)
    in_sum = SHAPE.rounds - ROUNDS_KEPT
    ledger.adopt(totals_of(rng, peers, in_sum))
    largest = 0
    for number in range(in_sum, SHAPE.rounds):
        for peer in peers:
            entry = entry_of(rng, peer, peers, number)
            ledger.put(sign_entry(entry, SHAPE, sign_as(peer)))
        largest = max(largest, saved_bytes(ledger))
        ledger.roll_up()
    detail = list(ledger.rounds_in_detail())
    return {
        "sequences": SHAPE.rounds * SHAPE.micro_batches_of_round(0) * SHAPE.micro_batch_samples,
        "rounds": SHAPE.rounds,
        "rounds_in_detail": len(detail),
        "bytes_saved": saved_bytes(ledger),
        "bytes_saved_at_most": largest,
        "bytes_of_sums": len(wire.encode(ledger.totals())),
    }


def saved_bytes(ledger: Ledger) -> int:
    """As it is written beside a checkpoint, whole."""
    return sum(map(len, map(wire.encode, LedgerGossip(ledger, name_of(0), 1).everything())))


def entry_of(rng: random.Random, peer: PeerId, peers: list[PeerId], number: int) -> Entry:
    """A head has done its share and some of others'; everybody saw everybody in the stages beside
    its own."""
    seen, here = [], stage_of(peer)
    for other in peers:
        role = {1: CALLED, -1: CALLER}.get(stage_of(other) - here)
        if role is not None:
            micro_batches = rng.randint(1, 40)
            samples = micro_batches * SHAPE.micro_batch_samples
            seen.append(Seen(stage_of(other), role, tag_of(other), micro_batches, samples))
    entry = Entry(EntryKey(number, peer, 1), 2_000, witnessed=tuple(sorted(seen)))
    if here > 0:
        return entry
    end = SHAPE.micro_batches_of_round(number)
    done = share_of(peer, tuple(peers[:HEADS]), end)
    for _ in range(5):
        done = done.with_index(rng.randrange(end))
    return replace(entry, done=done, loss_sum=rng.uniform(1e3, 1e5))


def totals_of(rng: random.Random, peers: list[PeerId], rounds: int) -> LedgerTotals:
    def some() -> Witnessed:
        done = rng.randint(1, 10**7)
        return Witnessed(done, 8 * done, rounds, rng.randint(1, 10**7))

    return LedgerTotals(
        rounds=rounds,
        processed_twice=10**6,
        writers=tuple(
            WriterTotals(peer=peer, micro_batches=done, samples=8 * done, rounds=rounds)
            for peer in peers[:HEADS]
            for done in [rng.randint(1, 10**7)]
        ),
        lost=(),
        witnessed=pack_proved({tag_of(peer): some() for peer in peers}),
    )


if __name__ == "__main__":
    what, *given = sys.argv[1:] or ["gossip"]
    if what == "size":
        print(json.dumps(size(), indent=1))
    else:
        print(json.dumps(gossip(*map(float, given[:1]), *map(int, given[1:2])), indent=1))
