"""HELLO, both ways, on any carrier. Nothing counts as up before both have come."""

from __future__ import annotations

import trio

from swarmd.net.frames import HEADER, Hello, Kind, decode_hello, parse_header
from swarmd.net.underlay import Carrier, CarrierEnded
from swarmd.protocols.errors import RemoteProtocolError


async def say_hello(carrier: Carrier, hello: Hello) -> None:
    """Raises CarrierEnded."""
    await carrier.send([hello.encode()])


async def hear_hello(carrier: Carrier, plane: str, within_s: float) -> Hello:
    """The far side's HELLO for `plane`.

    Raises RemoteProtocolError, or CarrierEnded: with cause `refused` and the far side's reason if
    it said goodbye, `stalled` if nothing came.
    """
    with trio.move_on_after(within_s):
        head = bytearray(HEADER.size)
        await carrier.receive_into(memoryview(head))
        kind, _, length = parse_header(head)
        if kind not in (Kind.HELLO, Kind.GOODBYE):
            raise RemoteProtocolError("malformed", f"{kind.name} before HELLO")
        body = bytearray(length)
        await carrier.receive_into(memoryview(body))
        if kind is Kind.GOODBYE:
            raise CarrierEnded("refused", body.decode(errors="replace"))
        hello = decode_hello(body)
        if hello.plane != plane:
            raise RemoteProtocolError("malformed", f"HELLO for the {hello.plane} plane")
        return hello
    raise CarrierEnded("stalled", f"no HELLO within {within_s:.0f} s")
