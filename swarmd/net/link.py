"""One neighbour: a control plane with its heartbeat, and a bulk plane that finds its own way.

The link is the control carrier. It ends once, with a cause: closed, lost, stalled, dropped. While
it lives, the bulk plane may go over any carrier, none, or change it (bulk.py).

Heartbeat: one frame a second and side on the control carrier. It repeats the last one heard and how
long ago that was, so the round trip is measured without an answer. Nothing heard for
`silence_s` ends the link as stalled, whatever the transport below thinks (a frozen process keeps
its sockets open for ever). If our own loop was late, the others get the time back first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import trio

from swarmd.net.bulk import BulkWays
from swarmd.net.frames import BEAT, Hello, Kind, frame
from swarmd.net.pump import Deliver, Plane, Pump, raise_broken_rule
from swarmd.net.transport import LinkStatistics, PayloadStore
from swarmd.net.underlay import Channel, Tally, Underlay
from swarmd.protocols.effects import Priority
from swarmd.protocols.ids import PeerId

HELD_US_MAX = (1 << 32) - 1
LATE_S = 1.0
"""Our own loop is this late: what we missed is our fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What one neighbour may cost, and how long it may be silent."""

    heartbeat_s: float = 1.0
    silence_s: float = 8.0
    """Two lost segments on a bad path cost 3 s; a busy peer must not be taken for a dead one."""
    control_window_bytes: int = 256 << 10
    control_lane_bytes_max: int = 4 << 20
    bulk_window_bytes: int = 32 << 20
    bulk_lane_bytes_max: int = 64 << 20
    bulk_idle_s: float = 60.0
    bulk_retry_s: float = 60.0
    """On the fallback carrier: how often the dedicated one is tried again."""
    dial_each_s: float = 4.0
    dial_stagger_s: float = 0.5
    """The next address is tried this much after the one before, without waiting for its end."""
    hello_s: float = 4.0
    links_max: int = 256
    remember_s: float = 60.0
    """Statistics of an ended link are kept this long."""


class Link:
    """A live neighbour."""

    def __init__(
        self,
        channel: Channel,
        hello: Hello,
        nonce: bytes,
        underlay: Underlay,
        store: PayloadStore,
        deliver: Deliver,
        limits: LinkLimits,
        *,
        opened_by_us: bool,
    ) -> None:
        self.peer: PeerId = channel.peer
        self.hello = hello
        self.opened_by_us = opened_by_us
        self.opened_s = trio.current_time()
        self.ended_s: float | None = None
        self.gone = trio.Event()
        """Set once the link is out of every table."""
        self.channel = channel
        self.rtt_s: float | None = None
        self._limits = limits
        self.control = Plane(
            self.peer,
            store,
            deliver,
            acknowledged=False,
            window_bytes=limits.control_window_bytes,
            lane_bytes_max=limits.control_lane_bytes_max,
        )
        self.bulk = Plane(
            self.peer,
            store,
            deliver,
            acknowledged=True,
            window_bytes=limits.bulk_window_bytes,
            lane_bytes_max=limits.bulk_lane_bytes_max,
        )
        self.control.outbox.window_bytes = hello.window_bytes
        self._pump = Pump(
            channel.carrier,
            self.control,
            on_beat=self._take_beat,
            on_call=self._take_call,
            riders=self._riders,
        )
        bulk_hello = Hello(
            plane="bulk", nonce=nonce, yours=hello.nonce, window_bytes=limits.bulk_window_bytes
        )
        self.ways = BulkWays(
            self.peer, self.bulk, channel, underlay, limits, bulk_hello, self._say_call
        )
        self.ways.addresses = hello.bulk
        self._beats: dict[int, float] = {}
        self._next_beat = 1
        self._last_heard = (0, 0.0)
        self._is_beat_due = False

    # ----------------------------------------------------------------------------------- its life

    async def run(self) -> str:
        """Until the link ends. Returns the cause. Raises RemoteProtocolError if the peer broke a
        rule; the link has ended then, too."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat)
                nursery.start_soon(self.ways.run)
                self._pump.attach()
                ended = await self._pump.run()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_broken_rule(group)
        finally:
            self.ended_s = trio.current_time()
            self.ways.close()
            self.channel.close_now()
            self.control.close()
            self.bulk.close()
        return ended.cause

    def part(self, reason: str) -> None:
        """Say goodbye and end, cause `closed`."""
        self._pump.part(reason)

    def drop(self, cause: str, text: str = "") -> None:
        """End now."""
        self._pump.stop(cause, text)
        self.channel.close_now()

    async def _beat(self) -> None:
        """A beat that is due goes with the next frame that leaves; alone, if there is none until
        the next one is due: each write costs a millisecond, and most links say something anyhow."""
        every_s, silence_s = self._limits.heartbeat_s, self._limits.silence_s
        grace_until_s = 0.0
        self._say_beat()
        while True:
            if self._is_beat_due:
                self._say_beat()
            self._is_beat_due = True
            while len(self._beats) > 2 + silence_s / every_s:
                self._beats.pop(next(iter(self._beats)))
            due_s = trio.current_time() + every_s
            await trio.sleep_until(due_s)
            now_s = trio.current_time()
            if now_s - due_s > LATE_S:
                grace_until_s = now_s + silence_s
            if now_s - self._pump.heard_s > silence_s and now_s > grace_until_s:
                self.drop("stalled", f"nothing heard for {silence_s:.0f} s")
                return

    def _say_beat(self) -> None:
        self._pump.say(self._next_beat_frame())

    def _riders(self) -> list[bytes]:
        """What goes along with whatever leaves now."""
        return [self._next_beat_frame()] if self._is_beat_due else []

    def _next_beat_frame(self) -> bytes:
        self._is_beat_due = False
        token, heard_s = self._last_heard
        now_s = trio.current_time()
        held_us = min(int((now_s - heard_s) * 1e6), HELD_US_MAX) if token else 0
        body = BEAT.pack(self._next_beat, token, held_us)
        self._last_heard = (0, 0.0)
        self._beats[self._next_beat] = now_s
        self._next_beat += 1
        return frame(Kind.BEAT, body)

    def _take_beat(self, token: int, echo: int, held_us: int) -> None:
        now_s, first = trio.current_time(), self.rtt_s is None and not self._last_heard[0]
        self._last_heard = (token, now_s)
        sent_s = self._beats.pop(echo, None)
        if sent_s is not None:
            sample_s = max(0.0, now_s - sent_s - held_us / 1e6)
            self.rtt_s = sample_s if self.rtt_s is None else 0.8 * self.rtt_s + 0.2 * sample_s
        elif first:
            # At once, so that both sides know their round trip after one.
            self._say_beat()

    def _say_call(self) -> None:
        self._pump.say(frame(Kind.CALL))

    def _take_call(self) -> None:
        self.ways.be_called()

    # -------------------------------------------------------------------------------- its figures

    def statistics(self) -> LinkStatistics:
        alive = self.ended_s is None
        wire = Tally()
        for tally in (self.channel.carrier.tally, *self.ways.tallies()):
            wire.sent += tally.sent
            wire.received += tally.received
        return LinkStatistics(
            peer=self.peer,
            path=self.channel.path if alive else "none",
            bulk_carrier=self.ways.carrier_kind if alive else "none",
            bulk_reason=self.ways.reason,
            rtt_s=self.rtt_s,
            up_bytes_per_s=self.bulk.up.bytes_per_s,
            down_bytes_per_s=self.bulk.down.bytes_per_s,
            wire_bytes_sent=wire.sent,
            wire_bytes_received=wire.received,
            bytes_by_purpose={
                priority.name.lower(): (
                    self.control.sent_by_lane[priority] + self.bulk.sent_by_lane[priority],
                    self.control.received_by_lane[priority] + self.bulk.received_by_lane[priority],
                )
                for priority in Priority
            },
            queued_bytes=self.control.outbox.queued_bytes + self.bulk.outbox.queued_bytes,
        )

    def sent_by_purpose(self) -> Counter[str]:
        """Bytes of frames, of this link alone."""
        sent = self.statistics().bytes_by_purpose
        return Counter({purpose: out for purpose, (out, _) in sent.items()})
