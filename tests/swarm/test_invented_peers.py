"""What a peer says of itself, and of peers that it has made up, moves nobody from a stage.

Two real trainers, a stage each, and a stranger with real links: it says that it holds the second
stage, faster than anybody, and brings signed records of hundreds more that hold the first one.
Believed, each trainer would find itself to spare, and go where it seems to be needed.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from daemons import LIMIT_S, Daemons, daemons
from strangers import Stranger, stranger

from swarmd.peer_id import peer_id_of
from swarmd.protocols import wire
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.gossip import Ack, Gossip, PeerRecord, Probe, SignedRecord
from swarmd.run_link import parse_run_link

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]
INVENTED = 300
A_BATCH = 50
A_ROUND = 5
"""Inner steps."""
TEMPTED_S = 30.0
"""Longer than a claim, a dwell and a quiet map take on the local time scale together."""


def boast(run_id: RunId, peer: PeerId, stage: int, **fields: object) -> PeerRecord:
    said = {"incarnation": 1, "version": 1, "name": "boaster", "phase": "active", "settled": True}
    figures = {"tokens_per_s": 1e9, "memory_bytes": 1 << 36, "micro_batches": 1000}
    return PeerRecord(peer=peer, run_id=run_id, stage=stage, **{**said, **figures, **fields})  # type: ignore[arg-type]


def invented(run_id: RunId) -> SignedRecord:
    key = Ed25519PrivateKey.generate()
    peer = peer_id_of(key.public_key().public_bytes_raw())
    body = wire.encode(boast(run_id, peer, 0, addresses=("/ip4/127.0.0.1/tcp/9",)))
    return SignedRecord(body=body, signature=key.sign(body))


def lives(message: Message) -> Message | None:
    """It answers probes, and does no work."""
    return Ack(sequence=message.sequence) if isinstance(message, Probe) else None


def stage_and_step(swarm: Daemons, name: str) -> tuple[int, int]:
    status = swarm.status(name)
    return status["stage"]["index"], status["progress"]["inner_step"]


async def boast_and_look(swarm: Daemons, liar: Stranger) -> list[tuple[int, int]]:
    """The trainers' stages and steps after they were tempted for long enough."""
    link = parse_run_link(swarm.link("p0"))
    liar.answer = lives
    peer = await liar.connect(next(e for e in link.entries if e.peer == swarm.id("p0")))
    await liar.greet(peer, link.run_id, boast(link.run_id, liar.id, 1))
    for _ in range(INVENTED // A_BATCH):
        liar.say(peer, Gossip(records=tuple(invented(link.run_id) for _ in range(A_BATCH))))

    def is_tempted() -> bool:
        return bool(swarm.status("p0")["peers"]["known"] > INVENTED // 2)

    await trio.to_thread.run_sync(swarm.wait, "p0 has heard of them", is_tempted)
    begun_s = time.monotonic()
    before = [stage_and_step(swarm, name) for name in ("p0", "p1")]

    def trains_on() -> bool:
        _, step = stage_and_step(swarm, "p0")
        return time.monotonic() - begun_s > TEMPTED_S and step >= before[0][1] + A_ROUND

    await trio.to_thread.run_sync(swarm.wait, "it trains on", trains_on, 2 * LIMIT_S)
    return [stage_and_step(swarm, name) for name in ("p0", "p1")]


def test_trainers_keep_their_stages_whatever_unproven_peers_claim(tmp_path: Path) -> None:
    with daemons(
        tmp_path, stages=2, peers_min=2, inner_steps=A_ROUND, total_steps=100_000
    ) as swarm:
        swarm.start("p0", first=True)
        swarm.start("p1", via="p0")
        swarm.wait(
            "three rounds are done", lambda: swarm.status("p0")["progress"]["outer_round"] > 2
        )
        before = [stage_and_step(swarm, name)[0] for name in ("p0", "p1")]

        async def all_of_it() -> list[tuple[int, int]]:
            async with stranger() as liar:
                return await boast_and_look(swarm, liar)

        after = trio.run(all_of_it)
        assert [stage for stage, _ in after] == before
