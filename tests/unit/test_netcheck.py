"""What a peer can tell of its own reach: NAT from what neighbours see, addresses with their why."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import trio

from swarmd.cli.netcheck_view import lines_of
from swarmd.net import swarm_transport
from swarmd.net.heap_store import HeapStore
from swarmd.net.netcheck import look, nat_kind
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.node.netcheck import check_network
from swarmd.peer_config import PeerConfig
from swarmd.protocols.ids import PeerId
from swarmd.result_records import Netcheck, Verdict
from swarmd.settings import parse_host_port

HERE = {"192.168.1.20": "eth0", "127.0.0.1": "lo"}
LAN, OUT, OTHER = "192.168.1.20:4710", "203.0.113.7:4710", "203.0.113.8:4710"


@pytest.mark.parametrize(
    ("sights", "kind"),
    [
        ([], "unknown"),
        ([("127.0.0.1:4710", "127.0.0.1:4710")], "unknown"),
        ([(LAN, LAN)], "none"),
        ([(LAN, OUT)], "unknown"),
        ([(LAN, OUT), (LAN, OUT)], "endpoint_independent"),
        ([(LAN, OUT), (LAN, "203.0.113.7:61000")], "unknown"),
        ([(LAN, OUT), (LAN, OTHER)], "symmetric"),
        ([(LAN, LAN), (LAN, OUT), (LAN, OUT)], "endpoint_independent"),
    ],
)
def test_nat_is_told_from_what_neighbours_see_and_not_guessed(
    sights: list[tuple[str, str]], kind: str
) -> None:
    assert nat_kind(sights, HERE) == kind


async def test_a_peer_that_joins_nothing_learns_who_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swarm_transport, "ASK_EVERY_S", 0.05)
    there = SwarmTransport(os.urandom(32), ["/ip4/127.0.0.1/tcp/0"], HeapStore())
    nobody = PeerId("12D3KooWGC8xfFjnnHnZeCVv1xZQ5PYvhDYQZ5GUJmZ3N2kFbG1S")
    config = PeerConfig(name="a", listen=parse_host_port("127.0.0.1:0"))
    async with trio.open_nursery() as nursery:
        await nursery.start(there.run)
        dead = ("/ip4/127.0.0.1/tcp/1",)
        entries = {there.peer_id: tuple(there.addresses()), nobody: dead}
        found = await check_network(config, entries, 20.0)
        nursery.cancel_scope.cancel()
    announced = [address for address in found.addresses if address.announced]
    assert [address.reachable for address in announced] == ["yes", "yes"], "both planes"
    assert announced[0].why == "reached by 1 of 1 neighbours"
    paths = {neighbour.peer: neighbour.path for neighbour in found.neighbours}
    assert paths == {there.peer_id: "direct", nobody: "none"}
    assert found.relays == [there.peer_id]
    assert found.nat == "unknown", "loopback says nothing"
    found = replace(found, verdict=Verdict(text="can hold 1 stage"))
    text = "\n".join(lines_of(found, 100))
    for part in ("announced; reached by 1 of 1", "not reached", "NAT", "verdict    can hold"):
        assert part in text


async def test_where_a_neighbour_sees_us_elsewhere_the_place_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = SwarmTransport(os.urandom(32), ["/ip4/127.0.0.1/tcp/0"], HeapStore())
    seen = {PeerId("a"): (LAN, OUT), PeerId("b"): ("", "\x1b[31m nonsense:1")}
    monkeypatch.setattr(transport, "sights", lambda: seen)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        found: Netcheck = look(transport, {})
        nursery.cancel_scope.cancel()
    (observed,) = [address for address in found.addresses if address.interface == "observed"]
    assert (observed.addr, observed.announced) == ("203.0.113.7", False)
    assert "--announce" in str(observed.why)
    assert {a.reachable for a in found.addresses} == {"unknown"}
