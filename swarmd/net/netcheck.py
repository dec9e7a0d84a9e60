"""What a running transport knows of its own reach: addresses, NAT, neighbours. Asks nobody.

NAT, as far as TCP tells: each neighbour says where it sees us (HELLO). The same host and port as
ours: none. Our port under another host, for all that see us so: the mapping does not depend on whom
we talk to. Several hosts: it does. Anything else is unknown: a port that was changed once may stand
for either.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import psutil

from swarmd.net.addresses import parse_address
from swarmd.protocols.ids import PeerId
from swarmd.result_records import InterfaceAddress, Neighbour, Netcheck

if TYPE_CHECKING:
    from swarmd.net.swarm_transport import SwarmTransport

Nat = Literal["none", "endpoint_independent", "symmetric", "unknown"]
Sight = tuple[str, str]
"""(our end of a connection, where the far side sees it), both `IP:PORT`."""


def look(transport: SwarmTransport, stages: Mapping[PeerId, int | None]) -> Netcheck:
    """stages: of the peers we know; neighbours that hold none, or whose stage is unknown: None."""
    here = _interfaces()
    sights = [sight for sight in transport.sights().values() if _is_ip(_host(sight[1]))]
    links = [link for link in transport.statistics() if link.path != "none"]
    return Netcheck(
        addresses=[*_announced(transport, here), *_others(transport, here, sights)],
        nat=nat_kind(sights, here),
        ipv4=any(_is_outside(host, 4) for host in here),
        ipv6=any(_is_outside(host, 6) for host in here),
        relays=[link.peer for link in links if link.path == "direct"],
        neighbours=[
            Neighbour(
                peer=link.peer,
                stage=stages.get(link.peer),
                path="relay" if link.path == "relay" else "direct",
                rtt_ms=None if link.rtt_s is None else round(1e3 * link.rtt_s, 3),
                up_bytes_per_s=link.up_bytes_per_s,
                down_bytes_per_s=link.down_bytes_per_s,
            )
            for link in links
        ],
    )


def nat_kind(sights: Iterable[Sight], here: Mapping[str, str]) -> Nat:
    """here: our own hosts. The sight of a neighbour on this machine says nothing."""
    found = [(ours, seen) for ours, seen in sights if not _is_loop(_host(seen))]
    outside = [(ours, seen) for ours, seen in found if _host(seen) not in here]
    if not outside:
        return "none" if found else "unknown"
    if len({_host(seen) for _, seen in outside}) > 1:
        return "symmetric"
    is_kept = all(_port(ours) == _port(seen) for ours, seen in outside)
    return "endpoint_independent" if is_kept and len(outside) > 1 else "unknown"


def _announced(transport: SwarmTransport, here: Mapping[str, str]) -> Iterable[InterfaceAddress]:
    bulk = transport.bulk_addresses()
    for text in [*transport.addresses(), *bulk]:
        causes = transport.answers(text)
        reached = sum(cause == "" for cause in causes)
        if not causes:
            why = "no neighbour was asked yet"
        elif reached:
            why = f"reached by {reached} of {len(causes)} neighbours"
        else:
            why = f"not reached by {len(causes)} of {len(causes)}: {', '.join(sorted(set(causes)))}"
        yield InterfaceAddress(
            addr=text,
            interface=here.get(parse_address(text).host),
            announced=True,
            reachable=transport.reachable(text),
            why=f"bulk; {why}" if text in bulk else why,
        )


def _others(
    transport: SwarmTransport, here: Mapping[str, str], sights: Iterable[Sight]
) -> Iterable[InterfaceAddress]:
    """Hosts of ours that nobody is told, and those that others see."""
    told = {parse_address(text).host for text in transport.addresses()}
    for host, name in sorted(here.items()):
        if host not in told:
            why = "loopback" if _is_loop(host) else "nothing of ours is announced there"
            yield InterfaceAddress(addr=host, interface=name, announced=False, why=why)
    for host in sorted({_host(seen) for _, seen in sights} - set(here) - told):
        why = "neighbours see us there: forward a port and say it with `--announce`"
        yield InterfaceAddress(addr=host, interface="observed", announced=False, why=why)


def _interfaces() -> dict[str, str]:
    """Host to the name of its interface. Link-local ones need a zone and cannot travel."""
    found = {}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                host = ipaddress.ip_address(entry.address.partition("%")[0])
                if not host.is_link_local:
                    found[str(host)] = name
    return found


def _is_outside(host: str, version: int) -> bool:
    address = ipaddress.ip_address(host)
    return address.version == version and not address.is_loopback


def _is_loop(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _is_ip(host: str) -> bool:
    """A neighbour's word may be anything."""
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _host(place: str) -> str:
    return place.rpartition(":")[0]


def _port(place: str) -> str:
    return place.rpartition(":")[2]
