"""The packets of LAN discovery: as much of multicast DNS (RFC 6762) as one service needs.

    question   PTR _swarmd._udp.local
    answer     PTR _swarmd._udp.local -> PEERID._swarmd._udp.local, and its TXT record:
               `run=RUNID`, then `dnsaddr=ADDRESS` for each address, as libp2p's mDNS writes them

Anybody on the network can send anything, so reading is bounded and strict: what is not exactly this
is None. Bytes only, no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from swarmd.protocols.ids import PeerId

SERVICE = ("_swarmd", "_udp", "local")
PACKET_BYTES_MAX = 1400
"""Of ours: one packet of any network. Larger ones of others are read up to this."""
ADDRESSES_MAX = 8
RECORDS_MAX = 16
POINTERS_MAX = 8
LABELS_MAX = 16
TTL_S = 120
HEADER = struct.Struct("!6H")
RECORD = struct.Struct("!HHIH")
PTR, TXT, IN, FLUSH = 12, 16, 1, 0x8000
ANSWER_FLAGS = 0x8400

Name = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Who is there?"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A peer on the local network, as it says; a dial has to prove it."""

    peer: PeerId
    run_id: str
    addresses: tuple[str, ...]


class _Broken(Exception):
    pass


def encode_question() -> bytes:
    return HEADER.pack(0, 0, 1, 0, 0, 0) + _name(SERVICE) + struct.pack("!HH", PTR, IN)


def encode_sighting(found: Sighting) -> bytes:
    """As many addresses as fit."""
    instance = (found.peer, *SERVICE)
    texts = [f"run={found.run_id}", *(f"dnsaddr={a}" for a in found.addresses[:ADDRESSES_MAX])]
    while True:
        packet = (
            HEADER.pack(0, ANSWER_FLAGS, 0, 1, 0, 1)
            + _record(SERVICE, PTR, IN, _name(instance))
            + _record(instance, TXT, IN | FLUSH, b"".join(map(_text, texts)))
        )
        if len(packet) <= PACKET_BYTES_MAX:
            return packet
        texts.pop()


def decode_packet(packet: bytes) -> Question | Sighting | None:
    try:
        return _decode(packet[: 4 * PACKET_BYTES_MAX])
    except (_Broken, struct.error, IndexError, UnicodeDecodeError):
        return None


def _decode(packet: bytes) -> Question | Sighting | None:
    _, flags, questions, answers, authorities, others = HEADER.unpack_from(packet)
    records = answers + authorities + others
    if questions > RECORDS_MAX or records > RECORDS_MAX:
        return None
    at, is_asked = HEADER.size, False
    for _ in range(questions):
        name, at = _read_name(packet, at)
        kind, _ = struct.unpack_from("!HH", packet, at)
        at += 4
        is_asked |= _is_service(name) and kind == PTR
    if not flags & 0x8000:
        return Question() if is_asked else None
    for _ in range(records):
        name, at = _read_name(packet, at)
        kind, _, _, size = RECORD.unpack_from(packet, at)
        at += RECORD.size
        if size > len(packet) - at:
            return None
        if kind == TXT and len(name) == 1 + len(SERVICE) and _is_service(name[1:]):
            return _sighting(name[0], packet[at : at + size])
        at += size
    return None


def _sighting(peer: str, body: bytes) -> Sighting | None:
    texts, at = [], 0
    while at < len(body):
        size = body[at]
        texts.append(body[at + 1 : at + 1 + size].decode())
        at += 1 + size
    run_ids = [text[4:] for text in texts if text.startswith("run=")]
    addresses = [text[8:] for text in texts if text.startswith("dnsaddr=")]
    if len(run_ids) != 1:
        return None
    return Sighting(PeerId(peer), run_ids[0], tuple(addresses[:ADDRESSES_MAX]))


def _is_service(name: Sequence[str]) -> bool:
    return [label.lower() for label in name] == list(SERVICE)


def _name(labels: Sequence[str]) -> bytes:
    return b"".join(_text(label) for label in labels) + b"\0"


def _text(text: str) -> bytes:
    raw = text.encode()[:255]
    return bytes([len(raw)]) + raw


def _record(name: Sequence[str], kind: int, class_: int, body: bytes) -> bytes:
    return _name(name) + RECORD.pack(kind, class_, TTL_S, len(body)) + body


def _read_name(packet: bytes, at: int) -> tuple[Name, int]:
    """The labels, and where reading goes on. Pointers lead back only, and not for ever."""
    labels: list[str] = []
    after = -1
    for _ in range(LABELS_MAX + POINTERS_MAX):
        size = packet[at]
        if size & 0xC0 == 0xC0:
            target = (size & 0x3F) << 8 | packet[at + 1]
            after = at + 2 if after < 0 else after
            if target >= at:
                raise _Broken
            at = target
        elif size & 0xC0 or len(labels) >= LABELS_MAX or at + 1 + size > len(packet):
            raise _Broken
        elif size == 0:
            return tuple(labels), at + 1 if after < 0 else after
        else:
            labels.append(packet[at + 1 : at + 1 + size].decode())
            at += 1 + size
    raise _Broken
