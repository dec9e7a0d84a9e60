"""What every Transport owes its user, as one suite, for the twin in memory and the real one.

A test module makes a class of `TransportContract` and a fixture `pair` that gives two running
transports which are not linked yet.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

import pytest
import trio

from swarmd.errors import Backpressure, LinkClosed
from swarmd.net.heap_store import HeapStore
from swarmd.net.link import LinkLimits
from swarmd.net.link_transport import LinkTransport
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import (
    DialEnded,
    FrameArrived,
    LinkEnded,
    LinkOpened,
    LinkStatistics,
    TransportEvent,
)
from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId

STRANGER = PeerId("12D3KooWGC8xfFjnnHnZeCVv1xZQ5PYvhDYQZ5GUJmZ3N2kFbG1S")


@dataclass
class Outcomes:
    """What `on_sent` said, in order."""

    said: list[bool] = field(default_factory=list)

    def __call__(self, sent: bool) -> None:
        self.said.append(sent)


class Side:
    """One transport of the pair, its store, and a cautious way to wait for its events."""

    def __init__(self, transport: LinkTransport, store: HeapStore) -> None:
        self.transport = transport
        self.store = store
        self.peer_id = transport.peer_id

    async def next(self, within_s: float = 20.0) -> TransportEvent:
        with trio.fail_after(within_s):
            return await self.transport.next_event()

    async def arrival(self) -> FrameArrived:
        event = await self.next()
        assert isinstance(event, FrameArrived), event
        return event

    async def take(self) -> bytes:
        """The payload of the next arrival; its slot is given back."""
        event = await self.arrival()
        assert event.payload is not None
        data = bytes(self.store.view(event.payload))
        self.store.release(event.payload)
        return data

    def send(self, to: Side, body: bytes, **more: object) -> None:
        self.transport.send(to.peer_id, body, **more)  # type: ignore[arg-type]

    def send_payload(self, to: Side, body: bytes, data: bytes, priority: Priority) -> Outcomes:
        """The slot goes back to the store when the transport is done with it."""
        ref, outcomes = self.store.put(data), Outcomes()

        def done(sent: bool) -> None:
            outcomes(sent)
            self.store.release(ref)

        try:
            self.transport.send(to.peer_id, body, priority=priority, payload=ref, on_sent=done)
        except Exception:
            self.store.release(ref)
            raise
        return outcomes

    def statistics(self, of: Side) -> LinkStatistics:
        return self.statistics_of(of.peer_id)

    def statistics_of(self, peer: PeerId) -> LinkStatistics:
        return next(found for found in self.transport.statistics() if found.peer == peer)


@dataclass
class Pair:
    a: Side
    b: Side

    async def link(self) -> None:
        self.a.transport.dial(self.b.peer_id, self.b.transport.addresses())
        assert await self.a.next() == LinkOpened(self.b.peer_id)
        assert await self.b.next() == LinkOpened(self.a.peer_id)


PATIENT = LinkLimits(dial_each_s=20.0, hello_s=20.0)
"""For links that are to come about: on a crowded machine that takes seconds."""

MakeTransport = Callable[[HeapStore], LinkTransport]


def running_pair(
    make: MakeTransport, *, store_bytes: int = 1 << 30
) -> AbstractAsyncContextManager[Pair]:
    return _running_pair(make, store_bytes)


@asynccontextmanager
async def _running_pair(make: MakeTransport, store_bytes: int):  # type: ignore[no-untyped-def]
    """Two transports that run. At the end nobody may hold a slot."""
    stores = HeapStore(store_bytes), HeapStore(store_bytes)
    sides = [Side(make(store), store) for store in stores]
    async with trio.open_nursery() as nursery:
        for side in sides:
            await nursery.start(_run, side.transport)
        yield Pair(*sides)
        for side in sides:
            await side.transport.aclose()
        nursery.cancel_scope.cancel()
    assert [store.held for store in stores] == [0, 0], "slots leaked"


def loopback_pair(store_bytes: int = 1 << 30) -> AbstractAsyncContextManager[Pair]:
    """The real transport on loopback, any free ports."""
    seeds = count()
    return running_pair(
        lambda store: SwarmTransport(
            blake2b(b"%d" % next(seeds), digest_size=32).digest(),
            ["/ip4/127.0.0.1/tcp/0"],
            store,
            limits=PATIENT,
        ),
        store_bytes=store_bytes,
    )


async def _run(transport: LinkTransport, task_status: object = trio.TASK_STATUS_IGNORED) -> None:
    await transport.run(task_status=task_status)


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place, so that a shifted copy shows."""
    return bytes((i * 31 + (i >> 8) * 17 + seed) & 255 for i in range(min(size, 1 << 16))) * (
        size // (1 << 16) + 1
    )


class TransportContract:
    async def test_a_dial_opens_the_link_on_both_sides(self, pair: Pair) -> None:
        await pair.link()
        assert pair.a.statistics(pair.b).path == "direct"
        assert pair.b.statistics(pair.a).path == "direct"

    async def test_simultaneous_dials_end_as_one_link(self, pair: Pair) -> None:
        pair.a.transport.dial(pair.b.peer_id, pair.b.transport.addresses())
        pair.b.transport.dial(pair.a.peer_id, pair.a.transport.addresses())
        assert await pair.a.next() == LinkOpened(pair.b.peer_id)
        assert await pair.b.next() == LinkOpened(pair.a.peer_id)
        # Any second link, end or failed dial would come before this.
        for number in range(3):
            await trio.sleep(0.1)
            pair.a.send(pair.b, b"still the first %d" % number)
            assert (await pair.b.arrival()).body == b"still the first %d" % number

    async def test_dialling_a_linked_peer_does_nothing(self, pair: Pair) -> None:
        await pair.link()
        pair.a.transport.dial(pair.b.peer_id, pair.b.transport.addresses())
        pair.a.send(pair.b, b"x")
        assert (await pair.b.arrival()).body == b"x"

    async def test_messages_arrive_whole_and_in_order(self, pair: Pair) -> None:
        await pair.link()
        sizes = [0, 1, 3, 1000, 32 << 10, 65_521, 200_000, 1 << 20]
        bodies = [pattern(size, size)[:size] for size in sizes]
        outcomes = Outcomes()
        for body in bodies:
            pair.a.send(pair.b, body, on_sent=outcomes)
        for body in bodies:
            arrived = await pair.b.arrival()
            assert arrived.body == body
            assert arrived.payload is None
            assert not arrived.refused
        assert outcomes.said == [True] * len(sizes)

    @pytest.mark.parametrize("size", [0, 1, 65_536, 3 * (1 << 20) + 7])
    async def test_a_payload_arrives_unchanged_and_is_told_once(
        self, pair: Pair, size: int
    ) -> None:
        await pair.link()
        data = pattern(size)[:size]
        outcomes = pair.a.send_payload(pair.b, b"tensor", data, Priority.MIX)
        arrived = await pair.b.arrival()
        assert arrived.body == b"tensor"
        assert arrived.payload is not None
        assert bytes(pair.b.store.view(arrived.payload)) == data
        pair.b.store.release(arrived.payload)
        await _until(lambda: outcomes.said == [True])

    async def test_payloads_go_both_ways_at_once(self, pair: Pair) -> None:
        await pair.link()
        there, back = pattern(2 << 20, 1), pattern(2 << 20, 2)
        pair.a.send_payload(pair.b, b"there", there, Priority.PIPELINE)
        pair.b.send_payload(pair.a, b"back", back, Priority.PIPELINE)
        assert await pair.b.take() == there
        assert await pair.a.take() == back

    async def test_what_is_urgent_overtakes_what_waits(self, pair: Pair) -> None:
        await pair.link()
        for number in range(8):
            pair.a.send_payload(pair.b, b"state %d" % number, bytes(1 << 20), Priority.STATE)
        pair.a.send_payload(pair.b, b"activation", bytes(1 << 16), Priority.PIPELINE)
        order = []
        for _ in range(9):
            arrived = await pair.b.arrival()
            order.append(arrived.body)
            assert arrived.payload is not None
            pair.b.store.release(arrived.payload)
        assert order.index(b"activation") <= 1
        assert [body for body in order if body != b"activation"] == [
            b"state %d" % number for number in range(8)
        ]

    async def test_a_full_queue_is_backpressure_for_its_priority_only(self, pair: Pair) -> None:
        await pair.link()
        outcomes, queued = Outcomes(), 0
        body = bytes(1 << 20)
        while queued < 100:
            try:
                pair.a.send(pair.b, body, priority=Priority.MIX, on_sent=outcomes)
            except Backpressure:
                break
            queued += 1
        assert 1 <= queued <= 16
        pair.a.send(pair.b, b"urgent")
        got = [(await pair.b.arrival()).body for _ in range(queued + 1)]
        assert sorted(got) == sorted([b"urgent"] + [body] * queued)
        await _until(lambda: outcomes.said == [True] * queued)

    async def test_a_payload_without_room_is_refused_and_the_next_one_is_not(
        self, small_pair: Pair
    ) -> None:
        pair = small_pair
        await pair.link()
        hog = pair.b.store.acquire(1 << 20)
        assert hog is not None
        first = pair.a.send_payload(pair.b, b"one", bytes(500_000), Priority.PIPELINE)
        arrived = await pair.b.arrival()
        assert (arrived.body, arrived.payload, arrived.refused) == (b"one", None, True)
        pair.b.store.release(hog)
        pair.a.send_payload(pair.b, b"two", pattern(500_000)[:500_000], Priority.PIPELINE)
        assert await pair.b.take() == pattern(500_000)[:500_000]
        await _until(lambda: first.said == [True])

    async def test_sending_without_a_link_is_an_error_at_once(self, pair: Pair) -> None:
        outcomes = Outcomes()
        with pytest.raises(LinkClosed):
            pair.a.send(pair.b, b"x", on_sent=outcomes)
        assert outcomes.said == []

    async def test_an_orderly_end_is_told_from_a_loss(self, pair: Pair) -> None:
        await pair.link()
        await pair.a.transport.aclose()
        assert await pair.b.next() == LinkEnded(pair.a.peer_id, "closed")

    async def test_a_drop_ends_the_link_once_on_both_sides(self, pair: Pair) -> None:
        await pair.link()
        pair.a.transport.drop(pair.b.peer_id, "a test wants it")
        assert await pair.a.next() == LinkEnded(pair.b.peer_id, "dropped")
        assert await pair.b.next() == LinkEnded(pair.a.peer_id, "lost")
        await pair.link()

    async def test_a_denied_peer_is_refused_until_its_time_is_over(self, pair: Pair) -> None:
        await pair.link()
        pair.a.transport.drop(pair.b.peer_id, "a test wants it", deny_s=0.6)
        await pair.a.next()
        await pair.b.next()
        pair.b.transport.dial(pair.a.peer_id, pair.a.transport.addresses())
        refused = await pair.b.next()
        assert isinstance(refused, DialEnded)
        assert set(refused.causes.values()) == {"refused"}
        assert pair.a.transport.counters()["denied"] == 1
        await trio.sleep(0.7)
        pair.b.transport.dial(pair.a.peer_id, pair.a.transport.addresses())
        assert await pair.b.next() == LinkOpened(pair.a.peer_id)

    async def test_what_was_queued_at_the_end_is_told_as_not_sent(self, pair: Pair) -> None:
        await pair.link()
        told = [
            pair.a.send_payload(pair.b, b"never", bytes(4 << 20), Priority.STATE) for _ in range(5)
        ]
        pair.a.transport.drop(pair.b.peer_id, "a test wants it")
        assert await pair.a.next() == LinkEnded(pair.b.peer_id, "dropped")
        assert [outcomes.said for outcomes in told] == [[False]] * 5

    async def test_a_dead_address_costs_little_and_is_named(self, pair: Pair) -> None:
        with self.dead_address() as dead:
            pair.a.transport.dial(STRANGER, [dead])
            ended = await pair.a.next()
            assert ended == DialEnded(STRANGER, {dead: "refused"})
            begun_s = trio.current_time()
            pair.a.transport.dial(pair.b.peer_id, [dead, *pair.b.transport.addresses()])
            assert await pair.a.next() == LinkOpened(pair.b.peer_id)
            assert trio.current_time() - begun_s < 3.5, "it was not waited for until its deadline"

    async def test_another_peer_at_the_address_is_a_wrong_id(self, pair: Pair) -> None:
        addresses = self.without_id(pair.b.transport.addresses())
        pair.a.transport.dial(STRANGER, addresses)
        assert await pair.a.next() == DialEnded(STRANGER, dict.fromkeys(addresses, "wrong_peer_id"))

    async def test_a_reader_that_does_not_read_stops_its_sender(self, pair: Pair) -> None:
        """Bounded on both sides: the receiver's window, then the sender's queue."""
        await pair.link()
        body, sent, full_since = bytes(100_000), 0, None
        while full_since is None or trio.current_time() - full_since < 1.0:
            try:
                pair.a.send(pair.b, body)
                sent, full_since = sent + 1, None
            except Backpressure:
                full_since = full_since or trio.current_time()
            await trio.sleep(0.01)
        assert sent * len(body) < 8 << 20
        for _ in range(sent):
            assert len((await pair.b.arrival()).body) == len(body)
        pair.a.send(pair.b, b"flows again")
        assert (await pair.b.arrival()).body == b"flows again"

    async def test_statistics_show_the_bytes_of_each_purpose(self, pair: Pair) -> None:
        await pair.link()
        outcomes = pair.a.send_payload(pair.b, b"t", bytes(1 << 20), Priority.PIPELINE)
        await pair.b.take()
        await _until(lambda: outcomes.said == [True])
        sent, received = pair.a.statistics(pair.b), pair.b.statistics(pair.a)
        assert 1 << 20 < sent.bytes_by_purpose["pipeline"][0] < (1 << 20) + 2000
        assert sent.bytes_by_purpose["pipeline"][0] == received.bytes_by_purpose["pipeline"][1]
        assert sent.wire_bytes_sent > 1 << 20
        assert received.wire_bytes_received > 1 << 20
        await _until(lambda: pair.a.statistics(pair.b).rtt_s is not None)

    # ------------------------------------------------------------------- what differs between them

    def dead_address(self) -> AbstractContextManager[str]:
        raise NotImplementedError

    def without_id(self, addresses: object) -> list[str]:
        raise NotImplementedError


async def _until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.01)
