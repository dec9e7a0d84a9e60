"""Two peers that cannot dial each other are linked through a third, which can only cut."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b

import pytest
import trio
from free_ports import dead_address
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_contract import PATIENT, Side

from swarmd.net import relay
from swarmd.net.addresses import ip_address
from swarmd.net.heap_store import HeapStore
from swarmd.net.relay import decode_message, encode_message
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import DialEnded, LinkEnded, LinkOpened
from swarmd.protocols.effects import Priority
from swarmd.protocols.errors import RemoteProtocolError


@dataclass
class Three:
    """`a` and `b` announce what nobody reaches; both can dial the relay."""

    a: Side
    b: Side
    relay: Side

    async def meet_the_relay(self) -> None:
        for side in (self.a, self.b):
            side.transport.dial(self.relay.peer_id, self.relay.transport.addresses())
            assert await side.next() == LinkOpened(self.relay.peer_id)
            assert await self.relay.next() == LinkOpened(side.peer_id)

    async def link(self) -> None:
        await self.meet_the_relay()
        self.a.transport.dial(self.b.peer_id, self.b.transport.addresses())
        assert await self.a.next() == LinkOpened(self.b.peer_id)
        assert await self.b.next() == LinkOpened(self.a.peer_id)


@asynccontextmanager
async def three_peers(host: str = "127.0.0.1") -> AsyncIterator[Three]:
    sides = []
    with dead_address(host) as nowhere:
        async with trio.open_nursery() as nursery:
            for name in (b"a", b"b", b"relay"):
                store, hidden = HeapStore(), name != b"relay"
                transport = SwarmTransport(
                    blake2b(name, digest_size=32).digest(),
                    [str(ip_address(host, 0))],
                    store,
                    announce=[nowhere] if hidden else (),
                    bulk_port=None if hidden else 0,
                    limits=PATIENT,
                )
                await nursery.start(lambda task_status, t=transport: t.run(task_status=task_status))
                sides.append(Side(transport, store))
            yield Three(*sides)
            for side in sides:
                await side.transport.aclose()
            nursery.cancel_scope.cancel()
    assert all(side.store.held == 0 for side in sides)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_transfer_completes_through_a_third_peer_and_the_path_is_shown(host: str) -> None:
    async with three_peers(host) as three:
        await three.link()
        data = os.urandom(3_000_000)
        three.a.send_payload(three.b, b"state", data, Priority.STATE)
        assert await three.b.take() == data
        three.b.send_payload(three.a, b"back", data[:100_000], Priority.PIPELINE)
        assert await three.a.take() == data[:100_000]
        for side, other in ((three.a, three.b), (three.b, three.a)):
            figures = side.statistics(other)
            assert (figures.path, figures.bulk_carrier) == ("relay", "stream")
            assert figures.wire_bytes_sent + figures.wire_bytes_received > len(data)
            assert side.statistics(three.relay).path == "direct"
        assert three.relay.transport.counters()["circuits_relayed"] == 1


async def test_a_relay_that_goes_ends_the_link_and_nothing_else() -> None:
    async with three_peers() as three:
        await three.link()
        three.relay.transport.drop(three.b.peer_id, "for this test")
        ended = {await three.a.next(), await three.b.next(), await three.b.next()}
        lost = {event.peer for event in ended if isinstance(event, LinkEnded)}
        assert lost == {three.a.peer_id, three.b.peer_id, three.relay.peer_id}
        three.a.send(three.relay, b"still here")
        assert await three.relay.next() == LinkEnded(three.b.peer_id, "dropped")
        assert (await three.relay.arrival()).body == b"still here"


async def test_a_peer_that_no_neighbour_knows_is_not_reached() -> None:
    async with three_peers() as three:
        three.a.transport.dial(three.relay.peer_id, three.relay.transport.addresses())
        assert await three.a.next() == LinkOpened(three.relay.peer_id)
        where = three.b.transport.addresses()
        three.a.transport.dial(three.b.peer_id, where)
        assert await three.a.next() == DialEnded(three.b.peer_id, {where[0]: "refused"})


async def test_a_full_relay_says_so_and_keeps_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CIRCUITS_MAX", 0)
    async with three_peers() as three:
        await three.meet_the_relay()
        where = three.b.transport.addresses()
        three.a.transport.dial(three.b.peer_id, where)
        assert await three.a.next() == DialEnded(three.b.peer_id, {where[0]: "refused"})
        three.a.send(three.relay, b"still here")
        assert (await three.relay.arrival()).body == b"still here"


# ----------------------------------------------------------------------------------------- messages


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_message_or_a_broken_rule(body: bytes) -> None:
    try:
        fields = decode_message(body)
    except RemoteProtocolError:
        return
    assert all(isinstance(value, int | bytes) for value in fields.values())


@given(st.dictionaries(st.integers(1, 100), st.integers(0, 2**63) | st.binary(max_size=60)))
@settings(deadline=None)
def test_a_message_comes_back_as_it_was_said(fields: dict[int, int | bytes]) -> None:
    said = encode_message(fields.items())
    size = 1 if said[0] < 0x80 else 2
    assert decode_message(said[size:]) == fields


def test_messages_are_those_of_the_library() -> None:
    pb = pytest.importorskip("libp2p.relay.circuit_v2.pb.circuit_pb2")
    ours = encode_message([(1, relay.CONNECT), (2, relay._peer_field(b"somebody"))])
    theirs = pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=b"somebody"))
    assert pb.HopMessage.FromString(ours[1:]) == theirs
    status = pb.HopMessage(type=pb.HopMessage.STATUS, status=relay.OK)
    assert decode_message(status.SerializeToString()) == {1: relay.STATUS, 5: relay.OK}
