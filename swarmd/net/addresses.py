"""Addresses: reading and writing them, and which of our own to tell others.

A peer address is `/ip4/203.0.113.7/tcp/4710/p2p/PEERID`, also `/ip6/...` and `/dns/NAME/...`. A
bulk address is the same without the id. `/p2p/RELAY/p2p-circuit` leads through a neighbour.

What we announce is never a wildcard and never port 0, and loopback only if nothing else is there or
we listen on loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

CIRCUIT = "circuit"
_NAME_KINDS = ("dns", "dns4", "dns6")


class BadAddress(ValueError):
    """What is wrong with an address, in words."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer can be reached. `kind`: ip4, ip6, dns, dns4, dns6 or circuit; then `host` is the
    relay's id and there is no port. `peer` may be empty."""

    kind: str
    host: str
    port: int
    peer: str = ""

    @property
    def is_circuit(self) -> bool:
        return self.kind == CIRCUIT

    def __str__(self) -> str:
        text = f"/p2p/{self.host}/p2p-circuit" if self.is_circuit else self._over_tcp()
        return f"{text}/p2p/{self.peer}" if self.peer else text

    def _over_tcp(self) -> str:
        return f"/{self.kind}/{self.host}/tcp/{self.port}"

    @property
    def family(self) -> int:
        """The socket family to resolve in; AF_UNSPEC for plain names."""
        if self.kind.endswith("4"):
            return socket.AF_INET
        return socket.AF_INET6 if self.kind.endswith("6") else socket.AF_UNSPEC


def parse_address(text: str) -> Address:
    """Raises BadAddress."""
    parts = text.split("/")
    if parts[1:2] == ["p2p"]:
        return _parse_circuit(parts)
    if len(parts) not in (5, 7) or parts[0]:
        raise BadAddress("it has not the form /ip4/IP/tcp/PORT/p2p/PEERID")
    kind, host, protocol, port_text = parts[1:5]
    if kind in ("ip4", "ip6"):
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            raise BadAddress(f"{host!r} is no IP address") from None
        if version != int(kind[2]):
            raise BadAddress(f"{host} is not an {kind} address")
    elif kind not in _NAME_KINDS or not host:
        raise BadAddress(f"{kind!r} is none of ip4, ip6, dns")
    if protocol != "tcp":
        raise BadAddress(f"{protocol!r} is not tcp")
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise BadAddress(f"{port_text!r} is no port")
    if len(parts) == 7 and (parts[5] != "p2p" or not parts[6]):
        raise BadAddress("the part after the port is not /p2p/PEERID")
    return Address(kind, host, int(port_text), parts[6] if len(parts) == 7 else "")


def _parse_circuit(parts: Sequence[str]) -> Address:
    sound = len(parts) in (4, 6) and parts[2] and parts[3] == "p2p-circuit"
    if not sound or parts[0] or (len(parts) == 6 and (parts[4] != "p2p" or not parts[5])):
        raise BadAddress("it has not the form /p2p/RELAY/p2p-circuit")
    return Address(CIRCUIT, parts[2], 0, parts[5] if len(parts) == 6 else "")


def circuit_address(relay: str) -> str:
    """The way to whoever is a neighbour of `relay`, too."""
    return str(Address(CIRCUIT, relay, 0))


def ip_address(host: str, port: int, peer: str = "") -> Address:
    """The address of a numeric host."""
    return Address(f"ip{ipaddress.ip_address(host).version}", host, port, peer)


def announced_hosts(listen_host: str) -> list[str]:
    """The hosts under which a listener on `listen_host` can be reached, best first."""
    listening = ipaddress.ip_address(listen_host)
    if not listening.is_unspecified:
        return [listen_host]
    version, outside, inside = listening.version, [], []
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            found = ipaddress.ip_address(entry.address.partition("%")[0])
            # An IPv6 wildcard listens on both families; link-local needs a zone and cannot travel.
            if (found.version != version and version == 4) or found.is_link_local:
                continue
            (inside if found.is_loopback else outside).append(found)
    chosen = outside or [found for found in inside if found.version == version]
    return [str(found) for found in sorted(chosen, key=_rank)]


def _rank(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[bool, int, bytes]:
    """Public before private, IPv4 before IPv6."""
    return (found.is_private, found.version, found.packed)


def is_loopback(text: str) -> bool:
    """Whether an address leads to this machine only."""
    try:
        address = parse_address(text)
        return address.kind.startswith("ip") and ipaddress.ip_address(address.host).is_loopback
    except (BadAddress, ValueError):
        return False


def with_peer(addresses: Sequence[Address], peer: str) -> list[str]:
    return [str(Address(a.kind, a.host, a.port, peer)) for a in addresses]
