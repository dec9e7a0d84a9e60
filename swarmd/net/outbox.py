"""What waits to leave on one plane of one link: four lanes, bounded, highest priority first.

No I/O and no clock: a writer asks for the next piece and says when it has left. Each lane has a
bound of its own, so a full queue of state never turns an activation away.

On an acknowledged plane (bulk) a message stays until the receiver has the whole of it; then a
broken connection costs only what was on the way (`rewind`). On the control plane a message is done
once its last byte was handed to the socket: when that connection ends, the link ends.

Credit: the receiver says how many bytes of a lane its reader has taken. A message may begin while
fewer than the receiver's window are out; the receiver enforces it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.errors import Backpressure
from swarmd.net.frames import (
    DIGEST_BYTES,
    HAS_PAYLOAD,
    HEADER,
    LANES,
    MESSAGE_COST_BYTES,
    OPEN,
    Kind,
)
from swarmd.protocols.errors import RemoteProtocolError

Sent = Callable[[bool], None]


@dataclass(slots=True, eq=False)
class Message:
    """A message on its way out. Its bytes are `body`, then `payload`."""

    id: int
    lane: int
    body: bytes
    payload: memoryview | None
    on_sent: Sent | None
    size: int
    begun: bool = False
    offset: int = 0
    """Bytes already given to a carrier."""
    delivered_before: int = -1
    """For the rate: bytes the link had delivered when this began to leave; -1: not begun."""
    since_s: float = 0.0

    @property
    def cost(self) -> int:
        return self.size + MESSAGE_COST_BYTES

    def slices(self, start: int, stop: int) -> list[bytes | memoryview]:
        """The bytes from `start` to `stop`, uncopied where they are payload."""
        parts: list[bytes | memoryview] = []
        split = len(self.body)
        if start < split:
            parts.append(self.body[start : min(stop, split)])
        if stop > split:
            assert self.payload is not None
            parts.append(self.payload[max(0, start - split) : stop - split])
        return parts

    def digest(self, stop: int) -> bytes:
        hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in self.slices(0, stop):
            hasher.update(part)
        return hasher.digest()

    def finish(self, sent: bool) -> None:
        """Let go of the payload and tell its owner, once."""
        told, self.on_sent, self.payload = self.on_sent, None, None
        if told is not None:
            told(sent)


@dataclass(frozen=True, slots=True)
class Piece:
    """One frame, ready to be written: `parts` in order. `size`: of it, bytes of the message."""

    parts: list[bytes | memoryview]
    message: Message
    size: int
    last: bool


class _Lane:
    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.unacknowledged: deque[Message] = deque()
        self.next_id = 1
        self.begun_bytes = 0
        self.taken_bytes = 0
        self.queued_bytes = 0


class Outbox:
    """The sending half of a plane."""

    def __init__(self, *, acknowledged: bool, lane_bytes_max: int) -> None:
        self._acknowledged = acknowledged
        self._lane_bytes_max = lane_bytes_max
        self._lanes = [_Lane() for _ in LANES]
        self.window_bytes = 1
        """The receiver's, from its HELLO. Until then one message per lane may begin."""
        self.delivered = 0
        """Messages that are done."""
        self.untouched = True
        """Nothing was ever given to a carrier: nothing can have been received."""

    @property
    def queued_bytes(self) -> int:
        return sum(lane.queued_bytes for lane in self._lanes)

    @property
    def has_work(self) -> bool:
        return any(lane.waiting for lane in self._lanes)

    @property
    def is_empty(self) -> bool:
        return not any(lane.waiting or lane.unacknowledged for lane in self._lanes)

    def push(
        self, lane_number: int, body: bytes, payload: memoryview | None, on_sent: Sent | None
    ) -> None:
        """Raises Backpressure, and then nothing was queued. One message always fits."""
        lane = self._lanes[lane_number]
        size = len(body) + (len(payload) if payload is not None else 0)
        message = Message(lane.next_id, lane_number, body, payload, on_sent, size)
        if lane.queued_bytes and lane.queued_bytes + message.cost > self._lane_bytes_max:
            raise Backpressure("full", f"{lane.queued_bytes} bytes wait on lane {lane_number}")
        lane.next_id += 1
        lane.queued_bytes += message.cost
        lane.waiting.append(message)

    def next_piece(self, frame_bytes: int, *, left_max: int | None = None) -> Piece | None:
        """At most `frame_bytes` with its headers; None when nothing may leave now, or when more
        than `left_max` bytes of its message are left."""
        for lane in self._lanes:
            if not lane.waiting:
                continue
            message, begins = lane.waiting[0], not lane.waiting[0].begun
            if begins:
                if lane.begun_bytes - lane.taken_bytes >= self.window_bytes:
                    continue
            if left_max is not None and message.size - message.offset > left_max:
                return None
            if begins:
                lane.begun_bytes += message.cost
                message.begun = True
            return self._cut(lane, message, begins, frame_bytes)
        return None

    def _cut(self, lane: _Lane, message: Message, begins: bool, frame_bytes: int) -> Piece:
        head_bytes = HEADER.size + (OPEN.size if begins else 0)
        size = min(message.size - message.offset, frame_bytes - head_bytes)
        start, message.offset = message.offset, message.offset + size
        if begins:
            flags = HAS_PAYLOAD if message.payload is not None else 0
            head = HEADER.pack(Kind.OPEN, message.lane, 0, OPEN.size + size) + OPEN.pack(
                message.id, len(message.body), message.size - len(message.body), flags
            )
        else:
            head = HEADER.pack(Kind.DATA, message.lane, 0, size)
        last = message.offset == message.size
        if last:
            lane.waiting.popleft()
            if self._acknowledged:
                lane.unacknowledged.append(message)
        self.untouched = False
        return Piece([head, *message.slices(start, start + size)], message, size, last)

    def left(self, piece: Piece) -> None:
        """The carrier took the piece whole."""
        if piece.last and not self._acknowledged:
            self._done(self._lanes[piece.message.lane], piece.message, True)

    def acknowledge(self, lane_number: int, done_id: int, taken_bytes: int) -> list[Message]:
        """Returns what is now done. Raises RemoteProtocolError if the counts cannot be right."""
        lane = self._lanes[lane_number]
        if not lane.taken_bytes <= taken_bytes <= lane.begun_bytes:
            raise RemoteProtocolError("malformed", "ACK of bytes that were never sent")
        if self._acknowledged and done_id >= lane.next_id:
            raise RemoteProtocolError("malformed", "ACK of a message that was never sent")
        lane.taken_bytes = taken_bytes
        done = []
        while lane.unacknowledged and lane.unacknowledged[0].id <= done_id:
            done.append(lane.unacknowledged.popleft())
        for message in done:
            self._done(lane, message, True)
        return done

    def rewind(
        self, lane_number: int, done_id: int, partial_id: int, have_bytes: int, digest: bytes
    ) -> int:
        """Take up a lane where the receiver says it stands. Returns the bytes to be sent again.

        What the receiver has in part goes on from there, if `digest` proves that both sides mean
        the same bytes; later messages go from their beginning. Raises RemoteProtocolError if what
        the receiver says cannot be.
        """
        lane = self._lanes[lane_number]
        if done_id >= lane.next_id:
            raise RemoteProtocolError("malformed", "RESUME of a message that was never sent")
        begun = [*lane.unacknowledged, *(m for m in lane.waiting if m.begun)]
        partial = next((m for m in begun if m.id == partial_id), None)
        if partial_id and (
            partial is None or done_id + 1 != partial_id or not 0 < have_bytes <= partial.offset
        ):
            raise RemoteProtocolError("malformed", "RESUME of a message that was never sent")
        if partial is not None and partial.digest(have_bytes) != digest:
            raise RemoteProtocolError("hash_mismatch", "the partial message differs")
        while lane.unacknowledged and lane.unacknowledged[0].id <= done_id:
            self._done(lane, lane.unacknowledged.popleft(), True)
        lane.waiting.extendleft(reversed(lane.unacknowledged))
        lane.unacknowledged.clear()
        resent = 0
        for message in lane.waiting:
            if not message.begun:
                break
            keep = have_bytes if message is partial else 0
            resent += message.offset - keep
            message.offset = keep
            if message is not partial:
                message.begun = False
                lane.begun_bytes -= message.cost
        return resent

    def fail_all(self) -> None:
        """The link is over: tell every owner that its message did not arrive."""
        for lane in self._lanes:
            messages = [*lane.unacknowledged, *lane.waiting]
            lane.unacknowledged.clear()
            lane.waiting.clear()
            for message in messages:
                self._done(lane, message, False)

    def _done(self, lane: _Lane, message: Message, sent: bool) -> None:
        self.delivered += sent
        lane.queued_bytes -= message.cost
        message.finish(sent)
