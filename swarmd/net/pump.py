"""One plane of one link, and the tasks that move its frames over a carrier.

A `Plane` is what lasts: queues, half-arrived messages, counts. A `Pump` is one carrier at work for
it: a task that writes, a task that reads. The control plane has one pump for its whole life. The
bulk plane may go from carrier to carrier: messages leave on `sending`, arrive on `receiving`, and
ATTACH/RESUME say where to go on.

Order of what is written: answers and heartbeats, acknowledgements, then lanes by priority. So a
ping waits behind one frame at most, never behind a tensor.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from swarmd.net.frames import (
    ACK,
    BEAT,
    HEADER,
    LANES,
    OPEN,
    RESUME_LANE,
    Kind,
    frame,
    goodbye,
    parse_header,
)
from swarmd.net.inbox import Inbox
from swarmd.net.meters import DeliveryMeter
from swarmd.net.outbox import Outbox, Piece, Sent
from swarmd.net.transport import FrameArrived, PayloadStore
from swarmd.net.underlay import Buffer, Carrier, CarrierEnded
from swarmd.protocols.effects import Priority
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId

FRAME_S = 30.0
"""From the header of a frame to its end. 64 KiB in this time are 17 kbit/s."""
SLOW_BYTES_PER_S = 2.5e6
SLOW_FRAME_BYTES = 68 << 10
FAST_BYTES_PER_S = 50e6
USUAL_FRAME_BYTES = 260 << 10
"""What is urgent waits for one frame: 64 KiB take 26 ms at 20 Mbit/s, 256 KiB 21 ms at 100 Mbit/s.
Where even the largest frames pass in 10 ms, they are fewer. The 4 KiB above a power of two are for
headers, so that a message of such a size is not one small frame more."""
TOGETHER_BYTES = 4 << 10
"""A message this small goes with the words before it. A larger one would make them wait for it."""
GOODBYE_S = 0.5
CREDIT_MESSAGES_PER_S = 200.0
CREDIT_BURST = 2000.0
"""Ten times what gossip takes from one peer, for leases and requests beside it. Guesses."""
BEATS_BURST = 20
BEATS_PER_S = 10.0
"""We send one a second. The burst is for what piled up while a peer was frozen."""

Deliver = Callable[[FrameArrived, "Plane", int, int], None]


class Wakeup:
    """Wakes whoever waits now. Look at the state, then wait, with no await in between."""

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()

    def set(self) -> None:
        self._lot.unpark_all()

    async def wait(self) -> None:
        await self._lot.park()


class Plane:
    """What lasts from carrier to carrier."""

    def __init__(
        self,
        peer: PeerId,
        store: PayloadStore,
        deliver: Deliver,
        *,
        acknowledged: bool,
        window_bytes: int,
        lane_bytes_max: int,
    ) -> None:
        self.acknowledged = acknowledged
        self.outbox = Outbox(acknowledged=acknowledged, lane_bytes_max=lane_bytes_max)
        self.inbox = Inbox(peer, store, acknowledged=acknowledged, window_bytes=window_bytes)
        self.deliver = deliver
        self.sending: Pump | None = None
        self.receiving: Pump | None = None
        self.wanted = Wakeup()
        """Set when something waits and no pump sends it."""
        self.floods = 0
        """How often the peer used up its credit faster than it may."""
        self._flooding = False
        self._messages_left = CREDIT_BURST
        self._messages_at_s = trio.current_time()
        self.sent_by_lane = [0] * len(LANES)
        self.received_by_lane = [0] * len(LANES)
        self.up = DeliveryMeter()
        self.down = DeliveryMeter()

    def push(
        self, priority: Priority, body: bytes, payload: memoryview | None, on_sent: Sent | None
    ) -> None:
        """Raises Backpressure."""
        self.outbox.push(int(priority), body, payload, on_sent)
        (self.sending or self).wake()

    def wake(self) -> None:
        self.wanted.set()

    def taken(self, lane: int, size: int) -> None:
        """The application took a message: the sender may get credit for it."""
        self._messages_left -= 1
        if self.inbox.taken(lane, size) and self.receiving is not None:
            self.receiving.wake()

    def acknowledgements(self, now_s: float) -> list[bytes]:
        """ACK frames that are due. A control plane gives credit at a bounded rate of messages, so
        that a flood is slowed to what we are willing to read. A late one goes with a heartbeat."""
        if not self.acknowledged:
            gained = (now_s - self._messages_at_s) * CREDIT_MESSAGES_PER_S
            self._messages_left = min(CREDIT_BURST, self._messages_left + gained)
            self._messages_at_s = now_s
            if self._messages_left < 0:
                self.floods += not self._flooding
                self._flooding = True
                return []
            self._flooding = False
        found = (self.inbox.acknowledgement(lane) for lane in LANES)
        return [ack for ack in found if ack is not None]

    def close(self) -> None:
        self.outbox.fail_all()
        self.inbox.close()


class Pump:
    """A carrier at work for a plane."""

    def __init__(
        self,
        carrier: Carrier,
        plane: Plane,
        *,
        on_beat: Callable[[int, int, int], None] | None = None,
        on_call: Callable[[], None] | None = None,
        riders: Callable[[], list[bytes]] = list,
    ) -> None:
        """riders: frames that may wait for others, asked for when something leaves."""
        self.carrier = carrier
        self.ended = trio.Event()
        self.heard_s = self.active_s = trio.current_time()
        self._plane = plane
        self._on_beat, self._on_call = on_beat, on_call
        self._riders = riders
        self._begun_s, self._beats = self.heard_s, 0
        self._wakeup = Wakeup()
        self._words: deque[bytes] = deque()
        self._parting: bytes | None = None
        self._may_send = False
        self._end: CarrierEnded | None = None

    # --------------------------------------------------------------------------------- what to do

    def wake(self) -> None:
        self._wakeup.set()

    def say(self, body: bytes) -> None:
        """Write a frame before anything else that waits."""
        self._words.append(body)
        self.wake()

    def part(self, reason: str) -> None:
        """Say goodbye once the frame at hand has left, then end with cause `closed`."""
        self._parting = goodbye(reason)
        self.wake()

    def stop(self, cause: str, text: str = "") -> None:
        """End now. The first cause stays."""
        if self._end is None:
            self._end = CarrierEnded(cause, text)
        self.carrier.close_now()

    def attach(self) -> None:
        """From now on the plane's messages leave here."""
        self._plane.sending = self
        if self._plane.acknowledged:
            self.say(frame(Kind.ATTACH))
            # Nothing was ever sent, so nothing can be half there: no need to ask.
            self._may_send = self._plane.outbox.untouched
        else:
            self._may_send = True
            self._plane.receiving = self
        self.wake()

    # ---------------------------------------------------------------------------------- the tasks

    async def run(self) -> CarrierEnded:
        """Until the carrier ends; says why. Raises RemoteProtocolError if the peer broke a rule."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_when_cancelled)
                nursery.start_soon(self._one, nursery, self._write)
                nursery.start_soon(self._one, nursery, self._read)
        except BaseExceptionGroup as group:
            raise_broken_rule(group)
        finally:
            self.carrier.close_now()
            if self._plane.sending is self:
                self._plane.sending = None
            if self._plane.receiving is self:
                self._plane.receiving = None
            self._plane.wake()
            self.ended.set()
        return self._end or CarrierEnded("lost")

    async def _one(self, nursery: trio.Nursery, half: Callable[[], Awaitable[None]]) -> None:
        try:
            await half()
        except CarrierEnded as ended:
            if self._end is None:
                self._end = ended
        self.carrier.close_now()
        nursery.cancel_scope.cancel()

    async def _close_when_cancelled(self) -> None:
        """A frame leaves under a shield; only a closed carrier lets it go before its deadline."""
        try:
            await trio.sleep_forever()
        finally:
            self.carrier.close_now()

    async def _write(self) -> None:
        carrier = self.carrier
        while True:
            if self._parting is not None:
                await self._say_goodbye(self._parting)
            words = self._words_due()
            if words and not self._plane.outbox.has_work:
                # Whoever took a message may answer at once: its answer and this go together.
                await trio.lowlevel.checkpoint()
                words += self._words_due()
            piece = self._next_piece(left_max=TOGETHER_BYTES if words else None)
            if piece is not None:
                await carrier.send([*words, *self._riders(), *piece.parts])
                self._has_left(piece)
            elif words:
                await carrier.send([*words, *self._riders()])
            else:
                await self._wakeup.wait()

    def _words_due(self) -> list[Buffer]:
        """Frames that go before messages: answers, heartbeats, acknowledgements."""
        words: list[Buffer] = list(self._words)
        self._words.clear()
        if self._plane.receiving is self:
            words += self._plane.acknowledgements(trio.current_time())
        return words

    def _next_piece(self, *, left_max: int | None) -> Piece | None:
        if self._plane.sending is not self or not self._may_send:
            return None
        return self._plane.outbox.next_piece(self._frame_bytes(), left_max=left_max)

    def _has_left(self, piece: Piece) -> None:
        plane = self._plane
        self.active_s = trio.current_time()
        plane.sent_by_lane[piece.message.lane] += sum(map(len, piece.parts))
        plane.up.began(piece.message, self.active_s)
        plane.outbox.left(piece)

    async def _say_goodbye(self, parting: bytes) -> NoReturn:
        await self.carrier.send([parting])
        self._end = self._end or CarrierEnded("closed", "we said goodbye")
        # Closing with unread bytes would reset the connection and destroy the goodbye: leave the
        # far side the time to read it and to close.
        await trio.sleep(GOODBYE_S)
        raise self._end

    def _frame_bytes(self) -> int:
        """Smaller on slow links and unknown ones: what is urgent waits for one frame."""
        rate = self._plane.up.bytes_per_s
        if rate is None or rate < SLOW_BYTES_PER_S:
            return min(self.carrier.frame_bytes, SLOW_FRAME_BYTES)
        if rate < FAST_BYTES_PER_S:
            return min(self.carrier.frame_bytes, USUAL_FRAME_BYTES)
        return self.carrier.frame_bytes

    async def _read(self) -> None:
        head = bytearray(HEADER.size)
        view = memoryview(head)
        with trio.CancelScope() as scope:
            while True:
                await self.carrier.receive_into(view)
                kind, lane, length = parse_header(head)
                self.heard_s = trio.current_time()
                scope.deadline = self.heard_s + FRAME_S
                if kind is Kind.OPEN or kind is Kind.DATA:
                    await self._take_message(kind, lane, length)
                else:
                    body = bytearray(length)
                    await self.carrier.receive_into(memoryview(body))
                    await self._take_word(kind, lane, body)
                scope.deadline = math.inf
        if scope.cancelled_caught:
            raise CarrierEnded("stalled", f"a frame did not arrive within {FRAME_S:.0f} s")

    async def _take_message(self, kind: Kind, lane: int, length: int) -> None:
        plane, inbox, left = self._plane, self._plane.inbox, length
        if plane.receiving is not self:
            raise RemoteProtocolError("malformed", "message before ATTACH")
        if kind is Kind.OPEN:
            fields = bytearray(OPEN.size)
            await self.carrier.receive_into(memoryview(fields))
            left -= OPEN.size
            inbox.open(lane, fields, left)
        for span in inbox.spans(lane, left):
            await self.carrier.receive_into(span)
        self.heard_s = self.active_s = trio.current_time()
        plane.received_by_lane[lane] += HEADER.size + length
        plane.down.arrived(left, self.heard_s)
        size = inbox.size(lane)
        arrived = inbox.filled(lane, left)
        if arrived is not None:
            plane.deliver(arrived, plane, lane, size)
            if plane.acknowledged:
                self.wake()

    async def _take_word(self, kind: Kind, lane: int, body: bytearray) -> None:
        plane = self._plane
        if kind is Kind.BEAT and self._on_beat is not None:
            self._beats += 1
            if self._beats > BEATS_BURST + BEATS_PER_S * (self.heard_s - self._begun_s):
                raise RemoteProtocolError("rate_exceeded", "heartbeats")
            self._on_beat(*BEAT.unpack(body))
        elif kind is Kind.ACK:
            done_id, taken = ACK.unpack(body)
            for message in plane.outbox.acknowledge(lane, done_id, taken):
                plane.up.delivered(message, self.heard_s)
            (plane.sending or plane).wake()
        elif kind is Kind.ATTACH and plane.acknowledged and plane.receiving is not self:
            await self._be_attached()
        elif kind is Kind.RESUME and plane.acknowledged:
            self._resume(body)
        elif kind is Kind.CALL and self._on_call is not None:
            self._on_call()
        elif kind is Kind.GOODBYE:
            raise CarrierEnded("closed", body.decode(errors="replace"))
        else:
            raise RemoteProtocolError("malformed", f"{kind.name} has no place here")

    async def _be_attached(self) -> None:
        """Messages come here from now on. The old reader must be gone first: both would write
        into the same slot, and one of them after it was handed on."""
        plane, old = self._plane, self._plane.receiving
        if old is not None and old is not self:
            old.stop("dropped", "another carrier took over")
            await old.ended.wait()
        plane.receiving = self
        for answer in plane.inbox.resume():
            self.say(answer)

    def _resume(self, body: bytearray) -> None:
        if self._plane.sending is not self or self._may_send:
            return
        for lane in LANES:
            state = RESUME_LANE.unpack_from(body, lane * RESUME_LANE.size)
            self._plane.outbox.rewind(lane, *state)
        self._may_send = True
        self.wake()


def raise_broken_rule(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """From a nursery: the rule the peer broke, alone; anything else is our bug and comes whole."""
    broken, rest = group.split(RemoteProtocolError)
    if broken is None or rest is not None:
        raise group
    error: BaseException = broken
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    raise error from None
