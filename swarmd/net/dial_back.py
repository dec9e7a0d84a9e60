"""Can others reach us? Neighbours say: they dial the addresses we announce, and tell what happened.

One stream of `/swarmd/dialback/1` a question: a msgpack map of plane (control, bulk) to addresses
with its length before it, and a map of address to cause as the answer; where it works, the cause is
empty. A peer dials
only where the connection that asks comes from, and for its neighbours only, so nobody can be made
to knock at strangers' doors. An address at another host is left out of the answer, not refused.

What neighbours said holds for a while, and any success outweighs failures: a neighbour may sit
behind a firewall of its own. Nobody asked yet, or nobody could tell: unknown.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgpack
import trio

from swarmd.net.addresses import BadAddress, parse_address
from swarmd.net.stream_carrier import StreamCarrier
from swarmd.net.transport import Answer
from swarmd.net.underlay import CarrierEnded, DialFailed
from swarmd.protocols import limits, wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId

DIAL_BACK = "/swarmd/dialback/1"
ASKED_MAX = 2
"""Neighbours asked in `RECHECK_S`."""
ASK_EVERY_S = 3.0
"""How often new neighbours are looked for. Joining comes first."""
RECHECK_S = 300.0
HOLDS_S = 2 * RECHECK_S
SERVED_EVERY_S = 10.0
DIAL_EACH_S = 4.0
ANSWER_S = 30.0
CAUSE_CHARS_MAX = 40
LENGTH = struct.Struct("!H")

PLANES = ("control", "bulk")

Dial = Callable[[PeerId, str, str], Awaitable[None]]
"""Reach the peer on a plane at an address, prove that it is it, and go again. Raises DialFailed."""


async def ask(carrier: StreamCarrier, ours: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Cause by address, empty where it works. Raises CarrierEnded or RemoteProtocolError."""
    with trio.move_on_after(ANSWER_S):
        await _write(carrier, {plane: list(ours[plane]) for plane in PLANES})
        said = wire.unpack(await _read(carrier))
        return causes_said(said, [address for plane in PLANES for address in ours[plane]])
    raise CarrierEnded("stalled", f"no dial-back answer within {ANSWER_S:.0f} s")


class DialBackServer:
    """Dials for neighbours."""

    def __init__(self, counts: Counter[str], dial: Dial) -> None:
        self._counts, self._dial = counts, dial
        self._served_s: dict[PeerId, float] = {}

    async def serve(self, peer: PeerId, host: str, carrier: StreamCarrier) -> None:
        """One question of a neighbour that sits at `host`. Closes the carrier."""
        try:
            now_s = trio.current_time()
            self._served_s = {
                p: at_s for p, at_s in self._served_s.items() if now_s - at_s < SERVED_EVERY_S
            }
            if peer in self._served_s:
                raise RemoteProtocolError("rate_exceeded", "dial-back questions")
            self._served_s[peer] = now_s
            answer: dict[str, str] = {}
            asked = asked_at(host, wire.unpack(await _read(carrier)))
            with trio.move_on_after(ANSWER_S / 2):
                for plane, address in asked:
                    answer[address] = await self._try(peer, plane, address)
            await _write(carrier, answer)
        except RemoteProtocolError as error:
            self._counts[f"dial_back_{error.code}"] += 1
        except CarrierEnded:
            self._counts["dial_back_ended"] += 1
        finally:
            carrier.close_now()

    async def _try(self, peer: PeerId, plane: str, address: str) -> str:
        with trio.move_on_after(DIAL_EACH_S):
            try:
                await self._dial(peer, plane, address)
                return ""
            except (DialFailed, CarrierEnded) as failed:
                return failed.cause
        return "timeout"


def asked_at(host: str, asked: object) -> list[tuple[str, str]]:
    """(plane, address) of a question, those at the asker's own host. Raises RemoteProtocolError."""
    found = []
    for plane in PLANES:
        addresses = asked.get(plane) if isinstance(asked, dict) else None
        if not isinstance(addresses, list) or len(addresses) > limits.ADDRESSES_MAX:
            raise RemoteProtocolError("malformed", "dial-back question")
        found += [(plane, text) for text in addresses if _is_at(host, text)]
    return list(dict.fromkeys(found))


def causes_said(said: object, asked: Sequence[str]) -> dict[str, str]:
    """Of an answer, what was asked for. Raises RemoteProtocolError."""
    if not isinstance(said, dict):
        raise RemoteProtocolError("malformed", "dial-back answer is not a map")
    return {a: str(said[a])[:CAUSE_CHARS_MAX] for a in asked if isinstance(said.get(a), str)}


def _is_at(host: str, text: object) -> bool:
    if not isinstance(text, str) or len(text) > limits.ADDRESS_CHARS_MAX:
        raise RemoteProtocolError("malformed", "dial-back address")
    try:
        address = parse_address(text)
    except BadAddress as error:
        raise RemoteProtocolError("malformed", str(error)) from None
    return address.kind in ("ip4", "ip6") and address.host == host


class Reachability:
    """What neighbours said of our addresses, and whom to ask next."""

    def __init__(self) -> None:
        self._said: dict[str, dict[PeerId, tuple[str, float]]] = {}
        self._asked_s: dict[PeerId, float] = {}

    def choose(self, neighbours: Sequence[PeerId]) -> list[PeerId]:
        """Whom to ask now: a few in a while, those never asked first."""
        now_s = trio.current_time()
        fresh = sum(now_s - at_s < RECHECK_S for at_s in self._asked_s.values())
        due = [p for p in neighbours if now_s - self._asked_s.get(p, -RECHECK_S) >= RECHECK_S]
        due.sort(key=lambda peer: (self._asked_s.get(peer, 0.0), peer))
        chosen = due[: max(0, ASKED_MAX - fresh)]
        for peer in chosen:
            self._asked_s[peer] = now_s
        return chosen

    def note(self, peer: PeerId, causes: dict[str, str]) -> None:
        now_s = trio.current_time()
        for address, cause in causes.items():
            self._said.setdefault(address, {})[peer] = (cause, now_s)
        self._asked_s = {p: s for p, s in self._asked_s.items() if now_s - s < HOLDS_S}

    def of(self, address: str) -> Answer:
        causes = self.causes(address)
        if not causes:
            return "unknown"
        return "yes" if "" in causes else "no"

    def causes(self, address: str) -> list[str]:
        """One of each neighbour that could tell; empty where it reached us."""
        now_s = trio.current_time()
        return [c for c, at_s in self._said.get(address, {}).values() if now_s - at_s < HOLDS_S]


async def _write(carrier: StreamCarrier, value: object) -> None:
    body: bytes = msgpack.packb(value)
    await carrier.send([LENGTH.pack(len(body)), body])


async def _read(carrier: StreamCarrier) -> bytes:
    head = bytearray(LENGTH.size)
    await carrier.receive_into(memoryview(head))
    body = bytearray(LENGTH.unpack(head)[0])
    await carrier.receive_into(memoryview(body))
    return bytes(body)
