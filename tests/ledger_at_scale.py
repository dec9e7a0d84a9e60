"""The ledger of a run of 10^9 sequences with 330 peers: its size, and what telling it costs.

    python tests/ledger_at_scale.py [rounds] [micro-batches a step]

Seven stages of 47 peers, links to the own stage and to those beside it; 4,883 rounds of 25,600
micro-batches of 8 sequences. A head begins a micro-batch every three seconds, so a round takes 27
minutes and the run three months; `rounds` of it are simulated (1.5 unless given), every peer as it
is in truth, in virtual time. A micro-batch is seen by one peer of each stage, chosen at random.

With fewer micro-batches a step than 256 rounds are shorter and the simulation is, too. What heads
tell each other in the middle of a round is the same then, and so is what a round's end costs, but
that comes more often: `parts` tells one from the other.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lease_world import LeaseWorld, lease_shape

from swarmd.protocols import wire
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.lease_limits import wan
from swarmd.protocols.receipts import CALLED, CALLER

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


def stage_of(peer: PeerId) -> int:
    number = int(peer[1:])
    return 0 if number < HEADS else 1 + (number - HEADS) * (STAGES - 1) // (PEERS - HEADS)


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

    def _neighbours(
        self, peer: PeerId, names: list[PeerId], degree: int | None
    ) -> tuple[PeerId, ...]:
        here = stage_of(peer)
        return tuple(name for name in names if name != peer and abs(stage_of(name) - here) <= 1)

    def _send(self, peer: PeerId, to: PeerId, message: Any) -> None:
        size_bytes = len(wire.encode(message))
        self.bytes_sent[peer] += size_bytes
        self.bytes_heard[to] += size_bytes
        self.bytes_by_kind[type(message).__name__] += size_bytes
        super()._send(peer, to, message)

    def _witness(self, head: PeerId, micro_batch: MicroBatchId) -> None:
        passage = [head, *(self.random.choice(stage) for stage in self.replicas[1:])]
        for stage, (caller, called) in enumerate(pairwise(passage)):
            self.hosts[caller].book.saw(micro_batch, called, stage + 1, CALLED)
            self.hosts[called].book.saw(micro_batch, caller, stage, CALLER)

    def ledger_bytes(self, peer: PeerId) -> int:
        """As it is written beside a checkpoint, whole."""
        return sum(len(wire.encode(message)) for message in self.hosts[peer].book.save())


def measure(rounds: float = 1.5, per_step: int = 256, seed: int = 1) -> dict[str, Any]:
    shape = replace(SHAPE, micro_batches_per_step=per_step)
    world = LargeWorld(seed, shape=shape)
    seconds = rounds * shape.micro_batches_of_round(0) * STRIDE_S / HEADS
    one, heads = PeerId("p200"), sorted(world.hosts)[:HEADS]
    largest, parts = 0, []
    for part in range(PARTS):
        before = world.bytes_heard.copy()
        world.run((part + 1) * seconds / PARTS)
        size_bytes = world.ledger_bytes(one)
        largest = max(largest, size_bytes)
        new = world.bytes_heard - before
        all_heads = sum(new[peer] for peer in heads)
        parts.append(
            {
                "until_s": round(world.now_s),
                "heads_bytes_per_s": round(all_heads / HEADS / (seconds / PARTS)),
                "others_bytes_per_s": round(
                    (new.total() - all_heads) / (PEERS - HEADS) / (seconds / PARTS)
                ),
                "settled": world.hosts[one].book.ledger.settled,
                "ledger_bytes": size_bytes,
            }
        )
        print(parts[-1], file=sys.stderr, flush=True)
    return {
        "virtual_s": round(seconds),
        "micro_batches_done": len(world.done),
        "done_twice": sum(times - 1 for times in world.done.values()),
        "ledger_bytes_largest": largest,
        "bytes_per_s": {
            way: {"mean": round(found.total() / PEERS / seconds), "most": round(most / seconds)}
            for way, found in (("sent", world.bytes_sent), ("heard", world.bytes_heard))
            for most in [max(found.values())]
        },
        "bytes_per_peer_by_kind": {
            kind: round(total / PEERS) for kind, total in sorted(world.bytes_by_kind.items())
        },
        "peers_that_settled": Counter(h.book.ledger.settled for h in world.hosts.values()),
        "parts": parts,
    }


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]]
    print(json.dumps(measure(*given[:1], *map(int, given[1:2])), indent=1))
