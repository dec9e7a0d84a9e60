"""Peer addresses and run links, as people pass them around.

    /ip4/203.0.113.7/tcp/4710/p2p/12D3KooW...       also /ip6/ and /dns/NAME/
    swarmd://RUNID?peer=ADDR&peer=ADDR

The peer id in an address is required: without it nobody could check who answered. Parsing is strict
and says what is wrong, because a link that is read half right founds or joins the wrong swarm.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from swarmd.peer_id import public_key_of
from swarmd.protocols.ids import PeerId, RunId
from swarmd.units import BadValue

SCHEME = "swarmd://"
PEERS_MAX = 64
"""Entry addresses in one link. More help nobody and no longer fit a line."""
LINK_CHARS_MAX = 16_384

ADDRESS_EXAMPLE = (
    "/ip4/203.0.113.7/tcp/4710/p2p/12D3KooWP8fQVkZVyT3wAUoUcFpiSq4wQovz4J4fJtxjjb388aJ2"
)
LINK_EXAMPLE = f"{SCHEME}{'7f3a' * 16}?peer={ADDRESS_EXAMPLE}"

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_RUN_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class PeerAddress:
    """One place where one peer can be reached over libp2p."""

    peer: PeerId
    base: str
    """Without the /p2p part, as the transport dials it."""

    def __str__(self) -> str:
        return f"{self.base}/p2p/{self.peer}"


@dataclass(frozen=True, slots=True)
class RunLink:
    """A run's id and where to begin to look for it."""

    run_id: RunId
    entries: tuple[PeerAddress, ...] = ()

    def __str__(self) -> str:
        query = "&".join(f"peer={entry}" for entry in self.entries)
        return f"{SCHEME}{self.run_id}" + (f"?{query}" if query else "")


def parse_peer_address(text: str) -> PeerAddress:
    """Raises BadValue."""
    if not text:
        raise BadValue(text, "is empty", ADDRESS_EXAMPLE)
    if text != text.strip() or any(letter.isspace() for letter in text):
        raise BadValue(text, "has a space in it", ADDRESS_EXAMPLE)
    parts = text.split("/")
    if parts[0] or len(parts) < 3:
        raise BadValue(text, "does not have the form /ip4/HOST/tcp/PORT/p2p/ID", ADDRESS_EXAMPLE)
    if "p2p" not in parts:
        raise BadValue(text, "has no /p2p/ID: nobody could check who answers", ADDRESS_EXAMPLE)
    if len(parts) != 7:
        raise BadValue(text, f"has {len(parts) - 1} parts between slashes, not 6", ADDRESS_EXAMPLE)
    _, kind, host, transport, port, marker, peer = parts
    _check_host(text, kind, host)
    if transport != "tcp":
        raise BadValue(text, f"goes over {transport!r}, swarmd over tcp", ADDRESS_EXAMPLE)
    if not (port.isascii() and port.isdigit() and 1 <= int(port[:9]) <= 65_535):
        raise BadValue(text, f"has the port {port!r}, which is not in 1..65535", ADDRESS_EXAMPLE)
    if marker != "p2p":
        raise BadValue(text, f"has {marker!r} where /p2p/ID belongs", ADDRESS_EXAMPLE)
    try:
        public_key_of(peer)
    except ValueError as error:
        raise BadValue(text, f"names the peer {peer!r}, which {error}", ADDRESS_EXAMPLE) from None
    return PeerAddress(PeerId(peer), f"/{kind}/{host}/tcp/{int(port)}")


def parse_run_link(text: str) -> RunLink:
    """Raises BadValue."""
    if not text.startswith(SCHEME):
        raise BadValue(text, f"does not begin with {SCHEME}", LINK_EXAMPLE)
    if len(text) > LINK_CHARS_MAX:
        raise BadValue(text[:60] + "...", f"has {len(text)} characters", LINK_EXAMPLE)
    run_id, _, query = text.removeprefix(SCHEME).partition("?")
    run_id = run_id.rstrip("/")
    if not _RUN_ID.fullmatch(run_id):
        raise BadValue(
            text,
            f"has {run_id!r} where a run id of 64 digits 0-9a-f belongs",
            LINK_EXAMPLE,
        )
    entries = [_entry(text, part) for part in query.split("&")] if query else []
    return RunLink(RunId(run_id), unique_entries(entries))


def unique_entries(entries: Iterable[PeerAddress]) -> tuple[PeerAddress, ...]:
    """Without repeats, in the given order, and no more than a link may have."""
    return tuple(dict.fromkeys(entries))[:PEERS_MAX]


def by_peer(entries: Iterable[PeerAddress]) -> dict[PeerId, tuple[str, ...]]:
    """Peer to the addresses it is dialled at, as the bootstrap machine takes them."""
    found: dict[PeerId, list[str]] = {}
    for entry in entries:
        bases = found.setdefault(entry.peer, [])
        if entry.base not in bases:
            bases.append(entry.base)
    return {peer: tuple(bases) for peer, bases in sorted(found.items())}


def _entry(link: str, part: str) -> PeerAddress:
    key, equals, value = part.partition("=")
    if key != "peer" or not equals:
        raise BadValue(link, f"has {part!r} where peer=ADDR belongs", LINK_EXAMPLE)
    try:
        return parse_peer_address(unquote(value))
    except BadValue as error:
        raise BadValue(link, f"holds {error.value!r}, which {error.fault}", LINK_EXAMPLE) from None


def _check_host(text: str, kind: str, host: str) -> None:
    fault = None
    if kind in ("ip4", "ip6"):
        version = ipaddress.IPv4Address if kind == "ip4" else ipaddress.IPv6Address
        try:
            version(host)
        except ValueError:
            fault = f"has the host {host!r}, which is no {kind} address"
    elif kind in ("dns", "dns4", "dns6"):
        labels = host.removesuffix(".").split(".")
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
            fault = f"has the host {host!r}, which is no host name"
    else:
        fault = f"begins with {kind!r}, not with ip4, ip6 or dns"
    if fault is not None:
        raise BadValue(text, fault, ADDRESS_EXAMPLE)
