"""What `swarmd netcheck` found, for people."""

from __future__ import annotations

from collections.abc import Iterator

from swarmd.cli import format as f
from swarmd.cli.layout import row, table, wrap
from swarmd.cli.output import harmless
from swarmd.result_records import InterfaceAddress, Neighbour, Netcheck

NAT_WORDS = {
    "none": "none: neighbours see this machine's own address",
    "endpoint_independent": "endpoint-independent mapping",
    "symmetric": "symmetric: another address for each neighbour",
    "unknown": "unknown",
}


def lines_of(found: Netcheck, width: int) -> list[str]:
    lines = ["addresses"]
    lines += [
        f"  {line}"
        for line in table(("ADDRESS", "INTERFACE", "WHY"), map(_address, found.addresses))
    ]
    lines += row("NAT", _nat(found), width, indent=0)
    relays = [f.peer(None, peer) for peer in found.relays] or [
        "none: no neighbour is linked directly"
    ]
    lines += row("relays", relays, width, indent=0)
    if found.neighbours:
        header = ("NEIGHBOUR", "STAGE", "PATH", "RTT", "UP / DOWN Mbit/s")
        rows = table(header, map(_neighbour, found.neighbours), right=(3, 4))
        lines += ["neighbours", *(f"  {line}" for line in rows)]
    else:
        lines += row("neighbours", ["none: name some with --peer or --run"], width, indent=0)
    if found.verdict.text:
        lines += wrap(found.verdict.text, width, first="verdict    ", follow=" " * 11)
    return lines


def _address(address: InterfaceAddress) -> tuple[str, str, str]:
    said = "announced" if address.announced else "not announced"
    return (
        _place(address.addr),
        address.interface or f.UNKNOWN,
        f"{said}; {harmless(address.why or f.UNKNOWN)}",
    )


def _place(addr: str) -> str:
    """`203.0.113.7:4710` of an address that names a peer: it is ours, and too long for a line."""
    parts = addr.split("/")
    if len(parts) < 5:
        return addr
    host = f"[{parts[2]}]" if parts[1] == "ip6" else parts[2]
    return f"{host}:{parts[4]}"


def _nat(found: Netcheck) -> Iterator[str]:
    yield NAT_WORDS[found.nat]
    for name, has in (("IPv4", found.ipv4), ("IPv6", found.ipv6), ("UDP", found.udp)):
        yield f"{name} {'not looked at' if has is None else 'yes' if has else 'none'}"


def _neighbour(neighbour: Neighbour) -> tuple[str, ...]:
    rates = (neighbour.up_bytes_per_s, neighbour.down_bytes_per_s)
    return (
        f.peer(None, neighbour.peer),
        f.UNKNOWN if neighbour.stage is None else str(neighbour.stage),
        "not reached" if neighbour.path == "none" else neighbour.path or f.UNKNOWN,
        f.UNKNOWN if neighbour.rtt_ms is None else f"{neighbour.rtt_ms:.0f} ms",
        " / ".join(map(f.mbit, rates)),
    )
