"""How tensors find their way to one neighbour: which carrier, who dials, and what if none.

In this order: a connection that is there, whoever opened it; a dedicated one that we dial; one that
we ask the peer to dial (direction of dialling is not direction of data); a stream on the control
connection, slower by six to ten times, with the reason kept for `status`. The fallback is left
again as soon as a dedicated connection works; the planes resume where they stood.

The frames are the same on all of them, so nothing above can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from swarmd.net.frames import Hello
from swarmd.net.handshake import hear_hello, say_hello
from swarmd.net.pump import Plane, Pump, Wakeup
from swarmd.net.underlay import Carrier, CarrierEnded, Channel, DialFailed, Tally, Underlay
from swarmd.protocols.ids import PeerId

if TYPE_CHECKING:
    from swarmd.net.link import LinkLimits

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 8.0
"""Between carriers that end at once and deliver nothing."""
SETTLED_S = 1.0
"""A carrier that lives this long ends the back-off."""
DEDICATED_S = 3.0
"""Messages wait this long for a dedicated connection before they take the fallback."""
CALL_AFTER_S = 1.0
"""Our dial is silent for this long: ask the peer to dial us."""


class BulkWays:
    """The carriers of one link's bulk plane."""

    def __init__(
        self,
        peer: PeerId,
        plane: Plane,
        channel: Channel,
        underlay: Underlay,
        limits: LinkLimits,
        hello: Hello,
        say_call: Callable[[], None],
    ) -> None:
        self.hello = hello
        """What we say first on each bulk carrier."""
        self.addresses: tuple[str, ...] = ()
        self.reason = "nothing was sent yet"
        self._peer, self._plane = peer, plane
        self._channel, self._underlay = channel, underlay
        self._limits, self._say_call = limits, say_call
        self._pumps: list[Pump] = []
        self._past = Tally()
        self._nursery: trio.Nursery | None = None
        self._new_pump = Wakeup()
        self._tried = Wakeup()
        self._theirs: set[Pump] = set()
        self._dialling = False
        self._dedicated_failed_s: float | None = None
        self._stopped = False

    # ------------------------------------------------------------------------------------ its life

    async def run(self) -> None:
        """Find a carrier whenever something waits for one. Until cancelled."""
        pause_s, delivered = RETRY_FIRST_S, 0
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._close_idle)
            nursery.start_soon(self._leave_fallback)
            while True:
                if self._plane.outbox.is_empty or self._plane.sending is not None:
                    await self._plane.wanted.wait()
                    continue
                if delivered != self._plane.outbox.delivered:
                    pause_s, delivered = RETRY_FIRST_S, self._plane.outbox.delivered
                pump = self._standing() or await self._dedicated() or await self._fallback()
                if pump is not None and not pump.ended.is_set():
                    pump.attach()
                    with trio.move_on_after(SETTLED_S):
                        await pump.ended.wait()
                    if not pump.ended.is_set():
                        pause_s = RETRY_FIRST_S
                        continue
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def adopt(self, carrier: Carrier, hello: Hello) -> None:
        """A bulk carrier that the peer opened. Returns when it has ended."""
        for pump in self._pumps:
            if pump in self._theirs and pump.carrier.kind == carrier.kind:
                pump.stop("dropped", "the peer opened another one")
        pump = self._start(carrier, hello)
        if pump is None:
            carrier.close_now()
            return
        self._theirs.add(pump)
        await pump.ended.wait()

    def be_called(self) -> None:
        """The peer wants a dedicated connection and could not open it."""
        if self._nursery is not None and not self._dialling:
            self._nursery.start_soon(self._dial_dedicated)

    def close(self) -> None:
        self._stopped = True
        for pump in list(self._pumps):
            pump.stop("dropped", "the link ended")

    def tallies(self) -> Iterator[Tally]:
        yield self._past
        for pump in self._pumps:
            yield pump.carrier.tally

    @property
    def carrier_kind(self) -> str:
        """Of what our messages leave on: tls, stream, memory or none."""
        if self._plane.sending is not None:
            return self._plane.sending.carrier.kind
        pump = self._standing()
        return pump.carrier.kind if pump is not None else "none"

    # ------------------------------------------------------------------------------------ the ways

    def _standing(self) -> Pump | None:
        live = [pump for pump in self._pumps if not pump.ended.is_set()]
        live.sort(key=lambda pump: pump.carrier.kind == "stream")
        return live[0] if live else None

    async def _dedicated(self) -> Pump | None:
        """A dedicated connection within a while, whoever opened it. None if there is none."""
        now_s = trio.current_time()
        failed_s = self._dedicated_failed_s
        if failed_s is not None and now_s - failed_s < self._limits.bulk_retry_s:
            return None
        if not self.addresses and not self._underlay.bulk_addresses():
            self.reason = "neither side has a bulk port"
            return None
        self.be_called()
        with trio.move_on_after(DEDICATED_S):
            while True:
                pump = self._standing()
                if pump is not None and pump.carrier.kind != "stream":
                    self._dedicated_failed_s = None
                    return pump
                await self._new_pump.wait()
        self._dedicated_failed_s = trio.current_time()
        return None

    async def _dial_dedicated(self) -> None:
        """All addresses, a little after one another; the first that works stays.

        It goes on when the peer's own dial is faster: if both gave up theirs for the other's, both
        would lose.
        """
        self._dialling = True
        causes: dict[str, str] = {}
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._call_after, CALL_AFTER_S)
                async with trio.open_nursery() as dials:
                    for address in self.addresses:
                        dials.start_soon(self._dial_one, address, causes, nursery.cancel_scope)
                        with trio.move_on_after(self._limits.dial_stagger_s):
                            while address not in causes:
                                await self._tried.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._dialling = False
        if len(causes) == len(self.addresses):
            said = ", ".join(f"{address} {cause}" for address, cause in causes.items())
            self.reason = f"no bulk port of the peer answered: {said or 'it has none'}"
            self._say_call()

    async def _call_after(self, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self._say_call()

    async def _dial_one(
        self, address: str, causes: dict[str, str], scope: trio.CancelScope
    ) -> None:
        carrier = None
        try:
            with trio.fail_after(self._limits.dial_each_s):
                carrier = await self._underlay.dial_bulk(self._peer, address)
                hello = await self._greet(carrier)
        except DialFailed as failed:
            causes[address] = failed.cause
        except CarrierEnded as ended:
            causes[address] = ended.cause
        except trio.TooSlowError:
            causes[address] = "timeout"
        else:
            if self._start(carrier, hello) is not None:
                self.reason = ""
                carrier = None
            scope.cancel()
        finally:
            if carrier is not None:
                carrier.close_now()
            self._tried.set()

    async def _fallback(self) -> Pump | None:
        """A stream on the control connection."""
        carrier = None
        try:
            with trio.fail_after(self._limits.dial_each_s):
                carrier = await self._channel.open_bulk()
                hello = await self._greet(carrier)
        except (CarrierEnded, trio.TooSlowError) as error:
            self.reason = f"no bulk stream either: {error or 'timeout'}"
            if carrier is not None:
                carrier.close_now()
            return None
        return self._start(carrier, hello)

    async def _greet(self, carrier: Carrier) -> Hello:
        await say_hello(carrier, self.hello)
        return await hear_hello(carrier, "bulk", self._limits.hello_s)

    def _start(self, carrier: Carrier, hello: Hello) -> Pump | None:
        if self._stopped or self._nursery is None:
            return None
        self._plane.outbox.window_bytes = hello.window_bytes
        pump = Pump(carrier, self._plane)
        self._pumps.append(pump)
        self._nursery.start_soon(self._run_pump, pump)
        self._new_pump.set()
        return pump

    async def _run_pump(self, pump: Pump) -> None:
        try:
            await pump.run()
        finally:
            self._pumps.remove(pump)
            self._theirs.discard(pump)
            self._past.sent += pump.carrier.tally.sent
            self._past.received += pump.carrier.tally.received

    # -------------------------------------------------------------------------------- housekeeping

    async def _close_idle(self) -> None:
        """What nobody used for a while is closed by the side that opened it."""
        while True:
            await trio.sleep(self._limits.bulk_idle_s / 4)
            now_s = trio.current_time()
            for pump in self._pumps:
                idle_s = now_s - max(pump.heard_s, pump.active_s)
                ours = pump not in self._theirs
                if ours and idle_s > self._limits.bulk_idle_s and self._plane.outbox.is_empty:
                    pump.part("idle")

    async def _leave_fallback(self) -> None:
        """While messages leave on a stream, try for a dedicated connection now and then."""
        while True:
            await trio.sleep(self._limits.bulk_retry_s)
            sending = self._plane.sending
            if sending is None or sending.carrier.kind != "stream":
                continue
            self._dedicated_failed_s = None
            pump = await self._dedicated()
            if pump is not None:
                pump.attach()
                sending.stop("dropped", "a dedicated connection works")
