"""Frames: how messages are cut up on a carrier. Bytes and bounds only, no I/O.

A carrier moves bytes in order (a TLS connection, a libp2p stream, a pipe in memory). On it, both
planes speak the same frames:

    kind u8 | lane u8 | zero u16 | length u32 | body of `length` bytes

A lane is a priority: four independent sequences of messages. A message starts with OPEN, goes on
with DATA, and ends with its last announced byte, so small messages are one frame. Frames of several
lanes may alternate: that is how an activation overtakes a chunk of state. Lengths are checked
against FRAME_BODY_BYTES_MAX and against what OPEN announced before any memory is reserved.

    HELLO     first frame both ways; nothing counts as up before it came
    BEAT      token u64, the last token heard u64, microseconds it was held u32: life, round trips
    OPEN      message id u64, body bytes u32, payload bytes u64, flags u8; then the first bytes
    DATA      further bytes of the lane's open message
    ACK       id of the last whole message u64, bytes taken by the reader so far u64
    ATTACH    "from now on my messages come on this carrier"; answered by RESUME
    RESUME    per lane: last whole id, partial id, its bytes so far, their digest
    CALL      "open a bulk connection to me": the caller's own dial failed
    GOODBYE   a reason; what ends without it was lost
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import msgpack

from swarmd.protocols import limits, wire
from swarmd.protocols.effects import Priority
from swarmd.protocols.errors import RemoteProtocolError

VERSION = 1
LANES = tuple(int(priority) for priority in Priority)
FRAME_BODY_BYTES_MAX = 1 << 20
HELLO_BYTES_MAX = 8 << 10
CERTIFICATE_BYTES_MAX = 2 << 10
GOODBYE_BYTES_MAX = 256
DIGEST_BYTES = 16
NONCE_BYTES = 8
MESSAGE_COST_BYTES = 256
"""Added to each message's size where windows are counted, so that empty ones are not free."""

HEADER = struct.Struct("!BBHI")
OPEN = struct.Struct("!QIQB")
ACK = struct.Struct("!QQ")
BEAT = struct.Struct("!QQI")
RESUME_LANE = struct.Struct(f"!QQQ{DIGEST_BYTES}s")

HAS_PAYLOAD = 1
NO_SHAPE = (0.0, 0.0, 0.0)


class Kind(IntEnum):
    HELLO = 1
    BEAT = 2
    OPEN = 3
    DATA = 4
    ACK = 5
    ATTACH = 6
    RESUME = 7
    CALL = 8
    GOODBYE = 9


_FIXED = {
    Kind.BEAT: BEAT.size,
    Kind.ACK: ACK.size,
    Kind.ATTACH: 0,
    Kind.RESUME: RESUME_LANE.size * len(LANES),
    Kind.CALL: 0,
}


def frame(kind: Kind, body: bytes = b"", lane: int = 0) -> bytes:
    return HEADER.pack(kind, lane, 0, len(body)) + body


def parse_header(head: bytes | bytearray) -> tuple[Kind, int, int]:
    """Kind, lane and length, checked. Raises RemoteProtocolError."""
    number, lane, zero, length = HEADER.unpack(head)
    try:
        kind = Kind(number)
    except ValueError:
        raise RemoteProtocolError("malformed", f"frame of unknown kind {number}") from None
    if lane >= len(LANES) or zero:
        raise RemoteProtocolError("malformed", f"frame on lane {lane}")
    if length > FRAME_BODY_BYTES_MAX:
        raise RemoteProtocolError("too_large", f"frame of {length} bytes")
    if kind in _FIXED and length != _FIXED[kind]:
        raise RemoteProtocolError("malformed", f"{kind.name} of {length} bytes")
    if kind is Kind.HELLO and length > HELLO_BYTES_MAX:
        raise RemoteProtocolError("too_large", f"HELLO of {length} bytes")
    if kind is Kind.GOODBYE and length > GOODBYE_BYTES_MAX:
        raise RemoteProtocolError("too_large", f"GOODBYE of {length} bytes")
    if kind is Kind.OPEN and length < OPEN.size:
        raise RemoteProtocolError("malformed", f"OPEN of {length} bytes")
    return kind, lane, length


def goodbye(reason: str) -> bytes:
    return frame(Kind.GOODBYE, reason.encode()[:GOODBYE_BYTES_MAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What both sides say first.

    nonce: of this start of the peer; a restarted peer is told from a lagging one by it.
    yours: the nonce the sender believes the receiver to have (bulk only: same pair of starts?).
    window_bytes: a message may begin while fewer unread bytes than this are out on its lane.
    bulk: addresses of the sender's bulk port. certificate: what it shows there, DER.
    observed: where the sender sees the receiver, `IP:PORT`.
    shape: rate in bytes/s (0: none), delay and jitter in s that the sender puts on its links.
    """

    plane: str
    nonce: bytes
    window_bytes: int
    yours: bytes = b""
    bulk: tuple[str, ...] = ()
    certificate: bytes = b""
    observed: str = ""
    shape: tuple[float, float, float] = NO_SHAPE

    def encode(self) -> bytes:
        body: bytes = msgpack.packb(
            {
                "v": VERSION,
                "plane": self.plane,
                "nonce": self.nonce,
                "window": self.window_bytes,
                "yours": self.yours,
                "bulk": list(self.bulk),
                "certificate": self.certificate,
                "observed": self.observed,
                "shape": list(self.shape),
            }
        )
        return frame(Kind.HELLO, body)


def decode_hello(body: bytes | bytearray) -> Hello:
    """Raises RemoteProtocolError. Unknown keys are ignored."""
    plain = wire.unpack(body)
    if not isinstance(plain, dict):
        raise RemoteProtocolError("malformed", "HELLO is not a map")
    if plain.get("v") != VERSION:
        raise RemoteProtocolError("malformed", f"HELLO of version {plain.get('v')!r:.20}")
    nonce, yours = plain.get("nonce"), plain.get("yours", b"")
    window, plane = plain.get("window"), plain.get("plane")
    bulk, observed = plain.get("bulk", []), plain.get("observed", "")
    certificate = plain.get("certificate", b"")
    shape = plain.get("shape", list(NO_SHAPE))
    sound = (
        isinstance(nonce, bytes)
        and len(nonce) == NONCE_BYTES
        and isinstance(yours, bytes)
        and len(yours) <= NONCE_BYTES
        and type(window) is int
        and 0 < window <= limits.GIB
        and plane in ("control", "bulk")
        and isinstance(bulk, list)
        and len(bulk) <= limits.ADDRESSES_MAX
        and all(isinstance(a, str) and len(a) <= limits.ADDRESS_CHARS_MAX for a in bulk)
        and isinstance(certificate, bytes)
        and len(certificate) <= CERTIFICATE_BYTES_MAX
        and isinstance(observed, str)
        and len(observed) <= limits.ADDRESS_CHARS_MAX
        and isinstance(shape, list)
        and len(shape) == 3
        and all(type(x) in (int, float) and 0 <= x < 1e15 for x in shape)
    )
    if not sound:
        raise RemoteProtocolError("malformed", "HELLO with a field out of bounds")
    return Hello(
        plane=plane,
        nonce=nonce,
        window_bytes=window,
        yours=yours,
        bulk=tuple(bulk),
        certificate=certificate,
        observed=observed,
        shape=(float(shape[0]), float(shape[1]), float(shape[2])),
    )
