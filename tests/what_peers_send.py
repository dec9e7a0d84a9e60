"""Everything that reads bytes of a peer before anybody vouched for them, as one function to fuzz.

`feed(data)`: the first byte chooses a reader, the rest is what a peer sent. It returns quietly or
lets out an exception, and an exception is a bug: readers may raise RemoteProtocolError (for
certificates ValueError) and nothing else. After each run what was reserved must be within bounds.

`examples(rng)` makes good inputs of every kind, so that a fuzzer need not guess them.
"""

from __future__ import annotations

import inspect
import random
import ssl
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import msgpack

from swarmd.net import certificates, dial_back, mdns, relay
from swarmd.net.addresses import BadAddress, parse_address
from swarmd.net.frames import (
    ACK,
    HEADER,
    OPEN,
    RESUME_LANE,
    Hello,
    Kind,
    decode_hello,
    frame,
    parse_header,
)
from swarmd.net.heap_store import HeapStore
from swarmd.net.inbox import Inbox
from swarmd.net.outbox import Outbox
from swarmd.protocols import wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import REGISTRY, Message
from swarmd.protocols.messages.gossip import PHASES, PeerRecord
from swarmd.protocols.records import read_record

PEER = PeerId("12D3KooWGC8xfFjnnHnZeCVv1xZQ5PYvhDYQZ5GUJmZ3N2kFbG1S")
WINDOW_BYTES = 64 << 10
STORE_BYTES = 1 << 20
HOST = "192.0.2.7"
DIALLED = (f"/ip4/{HOST}/tcp/4710", f"/ip4/{HOST}/tcp/4711")
"""Addresses that a dial-back question or answer is about."""


def feed(data: bytes) -> None:
    if not data:
        return
    reader = READERS[data[0] % len(READERS)]
    try:
        reader(data[1:])
    except RemoteProtocolError:
        return


def _read_message(body: bytes) -> None:
    message = wire.decode(body)
    assert wire.decode(wire.encode(message)) == message, "what was accepted can be told on"


def _read_certificate(body: bytes) -> None:
    try:
        certificates.check_certificate(body, PEER)
    except ValueError:
        return


def _read_frames(data: bytes) -> None:
    """A bulk carrier: frames as pump.py takes them, into an inbox and an outbox that has sent."""
    store = HeapStore(STORE_BYTES)
    inbox = Inbox(PEER, store, acknowledged=True, window_bytes=WINDOW_BYTES)
    outbox = Outbox(acknowledged=True, lane_bytes_max=1 << 20)
    outbox.window_bytes = WINDOW_BYTES
    for size in (10, 1000):
        outbox.push(0, b"b", memoryview(bytes(size)), None)
        outbox.next_piece(64)
    at = 0
    try:
        while len(data) - at >= HEADER.size:
            kind, lane, length = parse_header(data[at : at + HEADER.size])
            body = data[at + HEADER.size : at + HEADER.size + length]
            at += HEADER.size + length
            if len(body) < length:
                return
            _take_frame(inbox, outbox, store, kind, lane, body)
    finally:
        inbox.close()
        outbox.fail_all()
        assert store.held == 0, "what half-arrived is given back"


def _take_frame(
    inbox: Inbox, outbox: Outbox, store: HeapStore, kind: Kind, lane: int, body: bytes
) -> None:
    if kind in (Kind.OPEN, Kind.DATA):
        if kind is Kind.OPEN:
            inbox.open(lane, body[: OPEN.size], len(body) - OPEN.size)
            body = body[OPEN.size :]
        left = body
        for span in inbox.spans(lane, len(body)):
            span[:] = left[: len(span)]
            left = left[len(span) :]
        size = inbox.size(lane)
        arrived = inbox.filled(lane, len(body))
        if arrived is not None:
            inbox.taken(lane, size)
            inbox.acknowledgement(lane)
            if arrived.payload is not None:
                store.release(arrived.payload)
    elif kind is Kind.ACK:
        outbox.acknowledge(lane, *ACK.unpack(body))
    elif kind is Kind.RESUME:
        for number in range(len(body) // RESUME_LANE.size):
            outbox.rewind(number, *RESUME_LANE.unpack_from(body, number * RESUME_LANE.size))
    elif kind is Kind.HELLO:
        decode_hello(body)


def _read_dial_back(body: bytes) -> None:
    """A question of a peer at HOST, and the same bytes as an answer to ours."""
    plain = wire.unpack(body)
    for plane, address in dial_back.asked_at(HOST, plain):
        assert plane in dial_back.PLANES
        assert parse_address(address).host == HOST, "nobody else's door is knocked at"
    for cause in dial_back.causes_said(plain, DIALLED).values():
        assert len(cause) <= dial_back.CAUSE_CHARS_MAX


def _read_lan_packet(packet: bytes) -> None:
    found = mdns.decode_packet(packet)
    if not isinstance(found, mdns.Sighting):
        return
    assert len(found.addresses) <= mdns.ADDRESSES_MAX
    for text in found.addresses:
        try:
            parse_address(text)
        except BadAddress:
            continue


READERS: tuple[Callable[[bytes], object], ...] = (
    _read_message,
    _read_frames,
    decode_hello,
    read_record,
    relay.decode_message,
    _read_certificate,
    _read_dial_back,
    _read_lan_packet,
)


# ----------------------------------------------------------------------------------- good examples


def examples(rng: random.Random) -> Iterator[bytes]:
    for kind in REGISTRY.values():
        body = msgpack.packb([kind.NUMBER, plausible_fields(kind, rng)], use_bin_type=True)
        yield bytes([READERS.index(_read_message)]) + body
    record = plausible_fields(PeerRecord, rng) | {"phase": rng.choice(PHASES), "peer": PEER}
    body = msgpack.packb([PeerRecord.NUMBER, record], use_bin_type=True)
    yield bytes([READERS.index(read_record)]) + body
    hello = Hello(plane="bulk", nonce=rng.randbytes(8), window_bytes=1 << 20, bulk=("/ip4/1.2",))
    yield bytes([READERS.index(decode_hello)]) + hello.encode()[HEADER.size :]
    parts = [hello.encode()]
    for number in range(1, 4):
        payload = rng.randbytes(rng.randrange(200))
        head = OPEN.pack(number, 3, len(payload) + 5, 1)
        parts += [frame(Kind.OPEN, head + b"abc" + payload), frame(Kind.DATA, b"12345")]
    parts += [frame(Kind.ACK, ACK.pack(1, 267)), frame(Kind.GOODBYE, b"bye")]
    yield bytes([READERS.index(_read_frames)]) + b"".join(parts)
    hop = relay.encode_message([(1, 1), (2, b"\x0a\x03abc"), (5, 100)])
    yield bytes([READERS.index(relay.decode_message)]) + hop[1:]
    pem, _ = certificates.make_certificate(rng.randbytes(32))
    yield bytes([READERS.index(_read_certificate)]) + ssl.PEM_cert_to_DER_cert(pem)
    question = {"control": [DIALLED[0], "/ip4/10.0.0.1/tcp/1"], "bulk": [DIALLED[1]]}
    yield bytes([READERS.index(_read_dial_back)]) + msgpack.packb(question)
    answer = question | {DIALLED[0]: "", DIALLED[1]: "timeout"}
    yield bytes([READERS.index(_read_dial_back)]) + msgpack.packb(answer)
    yield bytes([READERS.index(_read_lan_packet)]) + mdns.encode_question()
    sighting = mdns.Sighting(PEER, "ab" * 32, DIALLED)
    yield bytes([READERS.index(_read_lan_packet)]) + mdns.encode_sighting(sighting)


def plausible_fields(kind: type[Message], rng: random.Random) -> dict[str, Any]:
    """Values within the bounds that the fields declare (protocols/schema.py)."""
    return {
        item.name: plausible(item.metadata["check"], rng)
        for item in fields(kind)  # type: ignore[arg-type]
    }


def plausible(check: Any, rng: random.Random) -> Any:
    bound = inspect.getclosurevars(check).nonlocals
    match check.__qualname__.partition(".")[0]:
        case "_integer":
            return rng.choice(
                (bound["low"], bound["high"], rng.randint(bound["low"], bound["high"]))
            )
        case "_number":
            return rng.uniform(bound["low"], min(bound["high"], 1e9))
        case "_text":
            return "x" * rng.randrange(min(bound["chars_max"], 20) + 1)
        case "_raw":
            return rng.randbytes(rng.randrange(min(bound["bytes_max"], 40) + 1))
        case "_truth":
            return rng.random() < 0.5
        case "optional_check":
            return None if rng.random() < 0.3 else plausible(bound["inner"], rng)
        case "sequence_check":
            count = rng.randrange(min(bound["items_max"], 3) + 1)
            return [plausible(bound["inner"], rng) for _ in range(count)]
        case "nested_check":
            return plausible_fields(bound["kind"], rng)
    raise AssertionError(f"no example for the check {check.__qualname__}")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to four small changes: bits, bytes, cuts, repeats, and numbers that hurt."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at:at] = rng.choice(HURTFUL)
            case 2:
                del changed[at : at + rng.randrange(1, 9)]
            case 3:
                changed[at:at] = changed[at : at + rng.randrange(1, 40)]
            case _:
                changed[at : at + 4] = rng.choice(HURTFUL)
    return bytes(changed)


HURTFUL = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b"\xc0", b"\xc1", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd4\x01\x00", b"\x91" * 40, b"\x81\xa1a" * 20,
)  # fmt: skip
