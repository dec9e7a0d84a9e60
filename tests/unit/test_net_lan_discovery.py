"""Peers of one run find each other by multicast on loopback; noise and other runs are ignored."""

from __future__ import annotations

import random
import socket

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.net import lan_discovery, mdns
from swarmd.net.lan_discovery import LanDiscovery, runs_nearby
from swarmd.net.mdns import Question, Sighting, decode_packet, encode_question, encode_sighting
from swarmd.peer_id import peer_id_of
from swarmd.protocols.ids import PeerId

RUN, OTHER_RUN = "ab" * 32, "cd" * 32
A, B, C = (peer_id_of(bytes([number]) * 32) for number in range(3))


def where(number: int, peer: PeerId) -> str:
    return f"/ip4/127.0.0.1/tcp/{4710 + number}/p2p/{peer}"


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def multicast_works(port: int) -> bool:
    with lan_discovery._open(["127.0.0.1"], port) as group:
        group.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        raw = socket.socket(fileno=socket.dup(group.fileno()))
        with raw:
            raw.settimeout(2)
            try:
                raw.sendto(b"here", (lan_discovery.GROUP, port))
                return raw.recv(10) == b"here"
            except OSError:
                return False


async def test_peers_of_one_run_find_each_other_and_nobody_else() -> None:
    port = free_port()
    if not multicast_works(port):
        pytest.skip("no multicast on the loopback interface of this machine")
    found: list[tuple[PeerId, PeerId, tuple[str, ...]]] = []

    def peer(number: int, name: PeerId, run_id: str) -> LanDiscovery:
        return LanDiscovery(
            name,
            run_id,
            lambda: [where(number, name)],
            lambda seen, addresses: found.append((name, seen, tuple(addresses))),
            listen_host="127.0.0.1",
            port=port,
        )

    peers = [peer(0, A, RUN), peer(1, B, RUN), peer(2, C, OTHER_RUN)]
    async with trio.open_nursery() as nursery:
        for one in peers:
            nursery.start_soon(one.run)
        with trio.fail_after(20):
            await peers[0].found_any.wait()
            await peers[1].found_any.wait()
            runs: dict[str, dict[PeerId, tuple[str, ...]]] = {}
            while len(runs) < 2 or len(runs[RUN]) < 2:
                runs = await runs_nearby("127.0.0.1", 0.7, port=port)
        nursery.cancel_scope.cancel()
    assert set(found) == {(A, B, (where(1, B),)), (B, A, (where(0, A),))}
    assert not peers[2].found_any.is_set()
    of_run = {A: (where(0, A),), B: (where(1, B),)}
    assert runs == {RUN: of_run, OTHER_RUN: {C: (where(2, C),)}}, "whoever only asks sees them all"


@pytest.mark.parametrize(
    ("peer", "addresses"),
    [
        (PeerId("nobody"), [where(0, PeerId("nobody"))]),
        (B, [where(0, C)]),
        (B, ["nonsense", "/p2p/12D3KooW/p2p-circuit"]),
        (B, []),
    ],
)
async def test_a_sighting_that_cannot_be_true_is_not_told(
    peer: PeerId, addresses: list[str], autojump_clock: object
) -> None:
    told: list[PeerId] = []
    discovery = LanDiscovery(A, RUN, lambda: [], lambda seen, where: told.append(seen))
    discovery._hear(Sighting(peer, RUN, tuple(addresses)))
    assert told == []


async def test_a_peer_is_told_once_in_a_while_and_memory_is_bounded(
    autojump_clock: object,
) -> None:
    told: list[PeerId] = []
    discovery = LanDiscovery(A, RUN, lambda: [], lambda seen, where: told.append(seen))
    for _ in range(5):
        discovery._hear(Sighting(B, RUN, (where(1, B),)))
    assert told == [B]
    await trio.sleep(lan_discovery.HEARD_AGAIN_S)
    discovery._hear(Sighting(B, RUN, (where(1, B),)))
    assert told == [B, B]
    for number in range(2 * lan_discovery.REMEMBERED_MAX):
        peer = peer_id_of(number.to_bytes(32, "big"))
        discovery._hear(Sighting(peer, RUN, (where(1, peer),)))
    assert len(discovery._heard_s) == lan_discovery.REMEMBERED_MAX


def test_packets_come_back_as_they_were_said() -> None:
    assert decode_packet(encode_question()) == Question()
    seen = Sighting(A, RUN, (where(0, A), where(1, A)))
    assert decode_packet(encode_sighting(seen)) == seen
    many = Sighting(A, RUN, tuple(f"/dns/{'x' * 150}{n}/tcp/1" for n in range(20)))
    packet = encode_sighting(many)
    read = decode_packet(packet)
    assert len(packet) <= mdns.PACKET_BYTES_MAX
    assert isinstance(read, Sighting)
    assert 0 < len(read.addresses) <= mdns.ADDRESSES_MAX


def test_names_may_point_back_and_never_in_circles() -> None:
    head = mdns.HEADER.pack(0, 0, 2, 0, 0, 0)
    name = mdns._name(mdns.SERVICE)
    pointer = (0xC000 | len(head)).to_bytes(2, "big")
    ask = mdns.struct.pack("!HH", mdns.PTR, mdns.IN)
    assert decode_packet(head + name + ask + pointer + ask) == Question()
    assert decode_packet(head + pointer + ask + pointer + ask) is None


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_read_or_ignored(packet: bytes) -> None:
    assert decode_packet(packet) is None or isinstance(decode_packet(packet), Question | Sighting)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_packets_are_read_or_ignored(seed: int) -> None:
    rng = random.Random(seed)
    good = encode_sighting(Sighting(A, RUN, (where(0, A),)))
    for _ in range(2000):
        packet = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            packet[rng.randrange(len(packet))] = rng.randrange(256)
        decode_packet(bytes(packet))
