"""A proxy before a bulk port that closes the first connection after so many bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tcp_proxy import tcp_proxy
from transport_contract import Side

from swarmd.net.addresses import parse_address


@dataclass
class Cut:
    address: str
    count: int = 0


@asynccontextmanager
async def cutting_proxy(side: Side, after_bytes: int) -> AsyncIterator[Cut]:
    """On the way to the bulk port of `side`. Later connections pass unharmed."""
    real = parse_address(side.transport.bulk_addresses()[0])
    cut = Cut("")

    def cut_once(data: bytearray, passed: int) -> bool:
        if cut.count or passed <= after_bytes:
            return True
        cut.count += 1
        return False

    async with tcp_proxy(real.host, real.port, lets_in=cut_once) as port:
        cut.address = f"/ip4/{real.host}/tcp/{port}"
        yield cut
