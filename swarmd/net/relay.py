"""Circuit relay v2: two peers that cannot dial each other meet through a neighbour of both.

The wire is that of the libp2p specification (`/libp2p/circuit/relay/0.2.0/hop` and `/stop`): the
dialler asks the relay for a peer, the relay asks that peer, and from then on copies bytes. Noise
and yamux run end to end inside, so the relay reads nothing and can only cut. Where we differ: the
link is the reservation. A relay serves its present neighbours and nobody else, and answers RESERVE
with a refusal; so there is no table to fill up and nothing to refresh.

Bounds: a few circuits at a time and peer, one buffer a direction, a circuit that carries nothing
for a while is cut. What is copied waits for the relay's own caps like any tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import trio

from swarmd.net.sockets import RawStream
from swarmd.net.stream_carrier import StreamCarrier
from swarmd.net.underlay import Buffer, CarrierEnded, DialFailed, Tally
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
MESSAGE_BYTES_MAX = 4096
ANSWER_S = 5.0
CIRCUITS_MAX = 16
CIRCUITS_OF_PEER_MAX = 4
IDLE_S = 60.0
COPY_BYTES = 64 << 10

RESERVE, CONNECT, STATUS = 0, 1, 2
"""Types on the hop protocol."""
STOP_CONNECT, STOP_STATUS = 0, 1
OK, REFUSED, LIMIT, DENIED, FAILED, NO_RESERVATION, MALFORMED = 100, 200, 201, 202, 203, 204, 400
_MEANING = {REFUSED: "refused", LIMIT: "refused", DENIED: "refused", MALFORMED: "error"}
"""Causes of a failed dial; any other status says that the relay did not reach the peer."""

Fields = dict[int, int | bytes]
OpenStop = Callable[[PeerId], Awaitable[StreamCarrier]]


# ------------------------------------------------------------------------------- messages: protobuf


def encode_message(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """(number, value) in order; with its length before it."""
    body = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            body += _varint(number << 3) + _varint(value)
        else:
            body += _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(len(body)) + bytes(body)


def decode_message(body: bytes) -> Fields:
    """The last value of each field, numbers and bytes only. Raises RemoteProtocolError."""
    fields: Fields = {}
    at = 0
    while at < len(body):
        key, at = _read_varint(body, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            fields[number], at = _read_varint(body, at)
        elif kind == 2:
            size, at = _read_varint(body, at)
            if size > len(body) - at:
                raise RemoteProtocolError("malformed", "relay message with a field beyond its end")
            fields[number], at = body[at : at + size], at + size
        else:
            raise RemoteProtocolError("malformed", f"relay message with wire type {kind}")
    return fields


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(body) or shift > 63:
            raise RemoteProtocolError("malformed", "relay message with a broken number")
        byte, at = body[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


async def read_message(carrier: StreamCarrier) -> Fields:
    """Raises CarrierEnded (also for silence) or RemoteProtocolError."""
    with trio.move_on_after(ANSWER_S):
        size = shift = 0
        byte = bytearray(1)
        while True:
            await carrier.receive_into(memoryview(byte))
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if size > MESSAGE_BYTES_MAX or shift > 21:
                raise RemoteProtocolError("too_large", "relay message")
            if byte[0] < 0x80:
                break
        body = bytearray(size)
        await carrier.receive_into(memoryview(body))
        return decode_message(bytes(body))
    raise CarrierEnded("stalled", f"no relay message within {ANSWER_S:.0f} s")


def _peer_field(peer_bytes: bytes) -> bytes:
    return b"\x0a" + _varint(len(peer_bytes)) + peer_bytes


def _peer_in(fields: Fields) -> bytes:
    peer = fields.get(2)
    found = decode_message(peer).get(1) if isinstance(peer, bytes) else None
    if not isinstance(found, bytes):
        raise RemoteProtocolError("malformed", "relay message without a peer")
    return found


# -------------------------------------------------------------------------- the ends of a circuit


async def ask_relay(carrier: StreamCarrier, peer_bytes: bytes) -> None:
    """On a hop stream: from now on its bytes are the peer's. Raises DialFailed."""
    try:
        await carrier.send([encode_message([(1, CONNECT), (2, _peer_field(peer_bytes))])])
        answer = await read_message(carrier)
    except (CarrierEnded, RemoteProtocolError) as error:
        raise DialFailed("no_route", f"the relay: {error}") from None
    status = answer.get(5)
    if answer.get(1) != STATUS or status != OK:
        meaning = _MEANING.get(status, "no_route") if isinstance(status, int) else "error"
        raise DialFailed(meaning, f"the relay says {status!r}")


async def accept_circuit(carrier: StreamCarrier) -> None:
    """On a stop stream: somebody comes. Who it is, its handshake inside has to prove."""
    fields = await read_message(carrier)
    sound = fields.get(1) == STOP_CONNECT
    if sound:
        _peer_in(fields)
    await carrier.send([encode_message([(1, STOP_STATUS), (4, OK if sound else MALFORMED)])])
    if not sound:
        raise RemoteProtocolError("malformed", "a relay that does not connect")


class Circuit:
    """A stream through a relay, in the place of a socket (sockets.RawStream)."""

    remote = local = None

    def __init__(self, carrier: StreamCarrier) -> None:
        self._carrier = carrier
        self.tally = Tally()
        """What went through it; at the relay's socket it is counted, too."""
        self.closed = False
        self.on_close = trio.CancelScope()

    def follow(self, path: object, nursery: object) -> None:
        """The link to the relay is shaped already."""

    async def ready(self, *, capped: bool | None = None) -> None:
        """The carrier below waits for caps and shape by itself."""

    async def pause_down(self, most_s: float) -> None:
        """The carrier below does."""

    async def send_all(self, data: Buffer) -> None:
        if self.closed:
            raise CarrierEnded("dropped")
        await self._carrier.send([data])
        self.tally.sent += len(data)

    async def receive_some(self, bytes_max: int = COPY_BYTES) -> bytes | bytearray:
        data = await self._carrier.receive_some(bytes_max)
        self.tally.received += len(data)
        return data

    def close_now(self) -> None:
        if not self.closed:
            self.closed = True
            self._carrier.close_now()
            self.on_close.cancel()


Wire = RawStream | Circuit
"""What carries a libp2p connection."""


# ---------------------------------------------------------------------------------------- the relay


class Relay:
    """Copies bytes between neighbours."""

    def __init__(self, counts: Counter[str], open_stop: OpenStop, id_of: Callable[[bytes], PeerId]):
        self._counts = counts
        self._open_stop = open_stop
        """A stop stream to a neighbour. Raises CarrierEnded."""
        self._id_of = id_of
        """Raises ValueError."""
        self._circuits: Counter[PeerId] = Counter()

    @property
    def circuit_count(self) -> int:
        return self._circuits.total() // 2

    async def serve(self, source: PeerId, source_bytes: bytes, carrier: StreamCarrier) -> None:
        """A hop stream that a neighbour opened, until its circuit ends."""
        far: StreamCarrier | None = None
        try:
            fields = await read_message(carrier)
            if fields.get(1) != CONNECT:
                refusal = REFUSED if fields.get(1) == RESERVE else MALFORMED
                await self._answer(carrier, refusal)
                return
            target = self._id_of(_peer_in(fields))
            if self._is_full(source) or self._is_full(target):
                await self._answer(carrier, LIMIT)
                return
            self._circuits.update((source, target))
            try:
                far = await self._reach(target, source_bytes)
                await self._answer(carrier, OK if far is not None else NO_RESERVATION)
                if far is not None:
                    self._counts["circuits_relayed"] += 1
                    await _splice(carrier, far)
            finally:
                self._circuits.subtract((source, target))
        except (RemoteProtocolError, ValueError):
            self._counts["bad_relay_message"] += 1
        except CarrierEnded:
            self._counts["circuits_failed"] += 1
        finally:
            carrier.close_now()
            if far is not None:
                far.close_now()

    def _is_full(self, peer: PeerId) -> bool:
        return self.circuit_count >= CIRCUITS_MAX or self._circuits[peer] >= CIRCUITS_OF_PEER_MAX

    async def _reach(self, target: PeerId, source_bytes: bytes) -> StreamCarrier | None:
        """A stream to the neighbour, which has agreed. None: it is none, or it did not agree."""
        carrier = None
        try:
            carrier = await self._open_stop(target)
            await carrier.send(
                [encode_message([(1, STOP_CONNECT), (2, _peer_field(source_bytes))])]
            )
            answer = await read_message(carrier)
            if answer.get(1) == STOP_STATUS and answer.get(4) == OK:
                found, carrier = carrier, None
                return found
            return None
        except CarrierEnded:
            return None
        finally:
            if carrier is not None:
                carrier.close_now()

    async def _answer(self, carrier: StreamCarrier, status: int) -> None:
        await carrier.send([encode_message([(1, STATUS), (5, status)])])


async def _splice(near: StreamCarrier, far: StreamCarrier) -> None:
    """Until one side ends, or nothing has moved for a while."""
    moved_s = trio.current_time()

    async def copy(source: StreamCarrier, sink: StreamCarrier, scope: trio.CancelScope) -> None:
        nonlocal moved_s
        try:
            while True:
                data = await source.receive_some(COPY_BYTES)
                moved_s = trio.current_time()
                await sink.send([data])
        except CarrierEnded:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy, near, far, nursery.cancel_scope)
        nursery.start_soon(copy, far, near, nursery.cancel_scope)
        while trio.current_time() - moved_s < IDLE_S:
            await trio.sleep_until(moved_s + IDLE_S)
        nursery.cancel_scope.cancel()
