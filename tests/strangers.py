"""A peer of the test's own: real libp2p and a real key, and it says whatever the test has it say.

async with stranger() as liar:
    peer = await liar.connect(entry)
    await liar.greet(peer, run_id, liar.record(run_id))
    liar.say(peer, Gossip(records=(liar.sign(record),)))
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmd.net.heap_store import HeapStore
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import FrameArrived, LinkOpened
from swarmd.protocols import wire
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.control import Hello, Refusal
from swarmd.protocols.messages.gossip import PeerRecord, SignedRecord
from swarmd.run_link import PeerAddress

Answer = Callable[[Message], Message | None]
PATIENCE_S = 30.0


class Stranger:
    def __init__(self, key: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(key)
        self._transport = SwarmTransport(key, ["/ip4/127.0.0.1/tcp/0"], HeapStore())
        self.id = PeerId(self._transport.peer_id)
        self._linked: set[PeerId] = set()
        self._news = trio.Event()
        self.heard: list[tuple[PeerId, Message]] = []
        self.answer: Answer = lambda message: None
        """To each message, if anything."""

    @property
    def address(self) -> str:
        return next(a for a in self._transport.addresses() if "127.0.0.1" in a)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._transport.run)
            nursery.start_soon(self._listen)
            task_status.started()

    async def _listen(self) -> None:
        while True:
            event = await self._transport.next_event()
            if isinstance(event, LinkOpened):
                self._linked.add(event.peer)
            elif isinstance(event, FrameArrived):
                message = wire.decode(event.body)
                self.heard.append((event.peer, message))
                answer = self.answer(message)
                if answer is not None:
                    self.say(event.peer, answer)
            self._news.set()
            self._news = trio.Event()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        with trio.move_on_after(PATIENCE_S):
            while not condition():
                await self._news.wait()
            return
        raise AssertionError(f"never: {what}; heard {self.heard}")

    async def connect(self, entry: PeerAddress) -> PeerId:
        peer = PeerId(entry.peer)
        self._transport.dial(peer, (entry.base,))
        await self.until(lambda: peer in self._linked, f"a link to {peer}")
        return peer

    async def greet(self, peer: PeerId, run_id: str, record: PeerRecord | None = None) -> Message:
        """Say who we are; returns the answer: a Hello or a Refusal."""
        signed = None if record is None else self.sign(record)
        hello = Hello(run_id=run_id, incarnation=1, protocol_min=1, protocol_max=1, record=signed)
        self.say(peer, hello)

        def answers() -> list[Message]:
            return [
                message
                for who, message in self.heard
                if who == peer
                and (
                    isinstance(message, Refusal)
                    or (isinstance(message, Hello) and message.is_reply)
                )
            ]

        await self.until(lambda: bool(answers()), "an answer to our Hello")
        return answers()[0]

    def say(self, peer: PeerId, message: Message) -> None:
        self._transport.send(peer, wire.encode(message))

    def sign(self, record: PeerRecord) -> SignedRecord:
        """With our own key, whomever the record speaks of."""
        body = wire.encode(record)
        return SignedRecord(body=body, signature=self._key.sign(body))

    def record(self, run_id: str) -> PeerRecord:
        return PeerRecord(
            peer=self.id, incarnation=1, version=1, run_id=run_id, name="stranger", phase="joining"
        )


@asynccontextmanager
async def stranger() -> AsyncIterator[Stranger]:
    found = Stranger(os.urandom(32))
    async with trio.open_nursery() as nursery:
        await nursery.start(found.run)
        try:
            yield found
        finally:
            nursery.cancel_scope.cancel()
