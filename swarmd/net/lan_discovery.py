"""Finds peers of the same run on the local network (`--lan-discovery`), and lets itself be found.

A question by multicast now and then, an answer to whoever asks; see mdns.py for the packets. What
is heard is only a hint: a dial proves who is there. Where multicast is not to be had, nothing is
found and nothing else suffers. On our own sockets, because the library's discovery takes seconds to
stop and cannot be told from another run's.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence

import psutil
import trio

from swarmd.net.addresses import BadAddress, parse_address
from swarmd.net.mdns import (
    Question,
    Sighting,
    decode_packet,
    encode_question,
    encode_sighting,
)
from swarmd.peer_id import public_key_of
from swarmd.protocols.ids import PeerId, short_id

log = logging.getLogger("swarmd.net")

GROUP, PORT = "224.0.0.251", 5353
ASK_S = (0.0, 1.0, 3.0, 10.0)
"""Pauses before the first questions; then every `ASK_EVERY_S`."""
ASK_EVERY_S = 60.0
ANSWER_EVERY_S = 0.5
HEARD_AGAIN_S = 20.0
"""A peer is told to whoever listens no more often than this."""
REMEMBERED_MAX = 256
RUNS_MAX = 32
REOPEN_S = 30.0

Found = Callable[[PeerId, Sequence[str]], None]


class LanDiscovery:
    """Of one peer and one run. `ours` is asked each time, since addresses change."""

    def __init__(
        self,
        peer: PeerId,
        run_id: str,
        ours: Callable[[], Sequence[str]],
        on_found: Found,
        *,
        listen_host: str = "0.0.0.0",
        port: int = PORT,
    ) -> None:
        self.found_any = trio.Event()
        self._peer, self._run_id = peer, run_id
        self._ours, self._on_found = ours, on_found
        self._listen_host, self._port = listen_host, port
        self._heard_s: dict[PeerId, float] = {}
        self._answered_s = -ANSWER_EVERY_S

    async def run(self) -> None:
        """Until cancelled. Without multicast it tries again now and then."""
        told = False
        while True:
            hosts = _interfaces(self._listen_host)
            try:
                with _open(hosts, self._port) as group:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._ask, group, hosts)
                        await self._listen(group, hosts)
            except* OSError as error:
                if not told:
                    log.warning("lan_discovery_failed error=%s", error.exceptions[0])
                    told = True
            await trio.sleep(REOPEN_S)

    async def _ask(self, group: trio.socket.SocketType, hosts: Sequence[str]) -> None:
        for pause_s in ASK_S:
            await trio.sleep(pause_s)
            await self._send(group, hosts, encode_question())
        while True:
            await trio.sleep(ASK_EVERY_S)
            await self._send(group, hosts, encode_question())

    async def _listen(self, group: trio.socket.SocketType, hosts: Sequence[str]) -> None:
        while True:
            packet, _ = await group.recvfrom(9000)
            match decode_packet(packet):
                case Question() if trio.current_time() - self._answered_s >= ANSWER_EVERY_S:
                    self._answered_s = trio.current_time()
                    seen = Sighting(self._peer, self._run_id, tuple(self._ours()))
                    await self._send(group, hosts, encode_sighting(seen))
                case Sighting() as sighting:
                    self._hear(sighting)

    def _hear(self, sighting: Sighting) -> None:
        now_s = trio.current_time()
        peer = sighting.peer
        if sighting.run_id != self._run_id or peer == self._peer:
            return
        if now_s - self._heard_s.get(peer, -HEARD_AGAIN_S) < HEARD_AGAIN_S:
            return
        addresses = [text for text in sighting.addresses if _is_usable(text, peer)]
        if not addresses or not _is_peer_id(peer):
            return
        self._heard_s.pop(peer, None)
        self._heard_s[peer] = now_s
        while len(self._heard_s) > REMEMBERED_MAX:
            del self._heard_s[next(iter(self._heard_s))]
        log.info("lan_peer_found peer=%s addresses=%s", short_id(peer), ",".join(addresses))
        self._on_found(peer, addresses)
        self.found_any.set()

    async def _send(
        self, group: trio.socket.SocketType, hosts: Sequence[str], packet: bytes
    ) -> None:
        await _send(group, hosts, self._port, packet)


async def runs_nearby(
    listen_host: str, within_s: float, *, port: int = PORT
) -> dict[str, dict[PeerId, tuple[str, ...]]]:
    """Every run that peers on the local network tell of: run to peer to addresses, as they say.

    Raises OSError where multicast is not to be had.
    """
    hosts = _interfaces(listen_host)
    runs: dict[str, dict[PeerId, tuple[str, ...]]] = {}
    with _open(hosts, port) as group, trio.move_on_after(within_s):
        await _send(group, hosts, port, encode_question())
        while True:
            packet, _ = await group.recvfrom(9000)
            found = decode_packet(packet)
            if not isinstance(found, Sighting) or not _is_peer_id(found.peer):
                continue
            addresses = tuple(text for text in found.addresses if _is_usable(text, found.peer))
            if addresses and (found.run_id in runs or len(runs) < RUNS_MAX):
                peers = runs.setdefault(found.run_id, {})
                if len(peers) < REMEMBERED_MAX:
                    peers[found.peer] = addresses
    return runs


async def _send(
    group: trio.socket.SocketType, hosts: Sequence[str], port: int, packet: bytes
) -> None:
    """On every interface: a multicast leaves on one only."""
    for host in hosts:
        group.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
        try:
            await group.sendto(packet, (GROUP, port))
        except OSError as error:
            log.debug("lan_send_failed interface=%s error=%s", host, error)


def _open(hosts: Sequence[str], port: int) -> trio.socket.SocketType:
    """Joined on each interface, shared with every other listener of this host."""
    group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        group.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            group.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        group.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        group.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        group.bind(("", port))
        for host in hosts:
            membership = socket.inet_aton(GROUP) + socket.inet_aton(host)
            group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except BaseException:
        group.close()
        raise
    return trio.socket.from_stdlib_socket(group)


def _interfaces(listen_host: str) -> list[str]:
    """IPv4 hosts of the interfaces to speak on: those that a listener there is reached by."""
    if not ipaddress.ip_address(listen_host).is_unspecified:
        return [listen_host] if ":" not in listen_host else []
    return sorted(
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    )


def _is_usable(text: str, peer: PeerId) -> bool:
    try:
        address = parse_address(text)
    except BadAddress:
        return False
    return not address.is_circuit and address.peer in ("", peer)


def _is_peer_id(peer: str) -> bool:
    try:
        public_key_of(peer)
    except ValueError:
        return False
    return True
