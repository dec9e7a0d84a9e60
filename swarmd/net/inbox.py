"""What arrives on one plane of one link: bounds checked before memory is reserved.

No I/O: a reader asks where the next bytes go, fills them in, and gets a whole message when it is
complete. A payload goes straight into a slot of the store; if there is none, its bytes are read and
dropped, and the arrival says `refused`. Whatever a peer sends can only raise RemoteProtocolError.

Window: a peer may begin a message while fewer than `window_bytes` of that lane are unread by the
application. One message may thus overshoot; the bound on what a peer makes us hold is the window
plus one message, per lane.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from swarmd.net.frames import (
    ACK,
    DIGEST_BYTES,
    HAS_PAYLOAD,
    LANES,
    MESSAGE_COST_BYTES,
    OPEN,
    RESUME_LANE,
    Kind,
    frame,
)
from swarmd.net.transport import FrameArrived, PayloadStore
from swarmd.protocols import limits
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef

_SCRATCH_BYTES = 64 << 10


@dataclass(slots=True, eq=False)
class _Incoming:
    id: int
    body: bytearray
    payload_bytes: int
    has_payload: bool
    ref: BufferRef | None
    view: memoryview | None
    offset: int = 0

    @property
    def size(self) -> int:
        return len(self.body) + self.payload_bytes

    def digest(self) -> bytes:
        """Of what came so far. The payload's slot must be there."""
        hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
        split = len(self.body)
        hasher.update(memoryview(self.body)[: self.offset])
        if self.offset > split and self.view is not None:
            hasher.update(self.view[: self.offset - split])
        return hasher.digest()


class _Lane:
    def __init__(self) -> None:
        self.current: _Incoming | None = None
        self.done_id = 0
        self.begun_bytes = 0
        self.taken_bytes = 0
        self.told_taken_bytes = 0
        self.told_done_id = 0


class Inbox:
    """The receiving half of a plane."""

    def __init__(
        self, peer: PeerId, store: PayloadStore, *, acknowledged: bool, window_bytes: int
    ) -> None:
        self._peer = peer
        self._store = store
        self._acknowledged = acknowledged
        self.window_bytes = window_bytes
        self._lanes = [_Lane() for _ in LANES]
        self._scratch = memoryview(bytearray(0))

    def open(self, lane_number: int, fields: bytes | bytearray, more_bytes: int) -> None:
        """A message begins. `more_bytes` of it are in this frame."""
        lane = self._lanes[lane_number]
        id_, body_bytes, payload_bytes, flags = OPEN.unpack(fields)
        if lane.current is not None or id_ != lane.done_id + 1:
            raise RemoteProtocolError("malformed", f"message {id_} out of turn")
        if body_bytes > limits.CONTROL_MESSAGE_BYTES_MAX:
            raise RemoteProtocolError("too_large", f"message of {body_bytes} bytes")
        if payload_bytes > (limits.PAYLOAD_BYTES_MAX if self._acknowledged else 0):
            raise RemoteProtocolError("too_large", f"payload of {payload_bytes} bytes")
        has_payload = bool(flags & HAS_PAYLOAD)
        if (payload_bytes and not has_payload) or more_bytes > body_bytes + payload_bytes:
            raise RemoteProtocolError("malformed", "OPEN contradicts itself")
        if lane.begun_bytes - lane.told_taken_bytes >= self.window_bytes:
            raise RemoteProtocolError("rate_exceeded", "message beyond the window")
        lane.begun_bytes += body_bytes + payload_bytes + MESSAGE_COST_BYTES
        ref = self._store.acquire(payload_bytes) if has_payload else None
        view = self._store.view(ref)[:payload_bytes] if ref is not None else None
        lane.current = _Incoming(id_, bytearray(body_bytes), payload_bytes, has_payload, ref, view)

    def spans(self, lane_number: int, length: int) -> list[memoryview]:
        """Where the next `length` bytes of the lane go, in order."""
        message = self._lanes[lane_number].current
        if message is None:
            raise RemoteProtocolError("malformed", "DATA without OPEN")
        if length > message.size - message.offset:
            raise RemoteProtocolError("malformed", "more DATA than announced")
        start, stop, split = message.offset, message.offset + length, len(message.body)
        found = []
        if start < split:
            found.append(memoryview(message.body)[start : min(stop, split)])
        if stop > split:
            at, end = max(0, start - split), stop - split
            if message.view is not None:
                found.append(message.view[at:end])
            else:
                found.extend(self._nowhere(end - at))
        return found

    def _nowhere(self, length: int) -> list[memoryview]:
        if not self._scratch:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        whole, rest = divmod(length, _SCRATCH_BYTES)
        return [self._scratch] * whole + ([self._scratch[:rest]] if rest else [])

    def size(self, lane_number: int) -> int:
        """Bytes of the lane's open message, body and payload."""
        message = self._lanes[lane_number].current
        return message.size if message is not None else 0

    def filled(self, lane_number: int, length: int) -> FrameArrived | None:
        """The spans of `length` bytes were filled in; a message if that was its last byte."""
        lane = self._lanes[lane_number]
        message = lane.current
        assert message is not None
        message.offset += length
        if message.offset < message.size:
            return None
        lane.current = None
        lane.done_id = message.id
        message.view = None
        refused = message.has_payload and message.ref is None
        return FrameArrived(self._peer, bytes(message.body), message.ref, refused)

    def taken(self, lane_number: int, size: int) -> bool:
        """The application took a message of `size` bytes. True if the sender should be told."""
        lane = self._lanes[lane_number]
        lane.taken_bytes += size + MESSAGE_COST_BYTES
        return self._has_credit_news(lane)

    def _has_credit_news(self, lane: _Lane) -> bool:
        return lane.taken_bytes - lane.told_taken_bytes >= self.window_bytes // 4

    def acknowledgement(self, lane_number: int) -> bytes | None:
        """An ACK frame if there is news for the sender."""
        lane = self._lanes[lane_number]
        whole_news = self._acknowledged and lane.done_id > lane.told_done_id
        if not whole_news and not self._has_credit_news(lane):
            return None
        lane.told_taken_bytes, lane.told_done_id = lane.taken_bytes, lane.done_id
        return frame(Kind.ACK, ACK.pack(lane.done_id, lane.taken_bytes), lane_number)

    def resume(self) -> list[bytes]:
        """A RESUME frame that says where every lane stands, then an ACK for each lane.

        A message whose payload found no slot begins again: its bytes are gone.
        """
        parts, acks = [], []
        for number, lane in enumerate(self._lanes):
            message = lane.current
            if message is not None and (
                message.offset == 0 or (message.has_payload and message.ref is None)
            ):
                lane.begun_bytes -= message.size + MESSAGE_COST_BYTES
                self._drop(lane)
                message = None
            if message is None:
                parts.append(RESUME_LANE.pack(lane.done_id, 0, 0, bytes(DIGEST_BYTES)))
            else:
                state = (lane.done_id, message.id, message.offset, message.digest())
                parts.append(RESUME_LANE.pack(*state))
            lane.told_taken_bytes, lane.told_done_id = lane.taken_bytes, lane.done_id
            acks.append(frame(Kind.ACK, ACK.pack(lane.done_id, lane.taken_bytes), number))
        return [frame(Kind.RESUME, b"".join(parts)), *acks]

    def close(self) -> None:
        """Give back what half-arrived messages hold."""
        for lane in self._lanes:
            self._drop(lane)

    def _drop(self, lane: _Lane) -> None:
        message, lane.current = lane.current, None
        if message is not None and message.ref is not None:
            message.view = None
            self._store.release(message.ref)
